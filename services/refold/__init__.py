"""refold: durable execution for agent runs, on a log. What an agent author and a caller import.

Every name is loaded when it is first used, so that `import refold` and the command line start fast.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from refold.app import App, Effect, RunContext
    from refold.client import BlockingClient, Client
    from refold_schemas.errors.base import RefoldError
    from refold_schemas.errors.cli import RunCancelledError, RunFailedError
    from refold_schemas.errors.run import (
        CallRefused,
        EffectBarred,
        ForeignAwait,
        InputRefused,
        LoopMisused,
        RegistrationRefused,
        ResultUnrecordable,
        Revalidation,
        RunTornDown,
        StepAbsent,
        StepError,
        StepOutsideRun,
        ValueTooLarge,
    )
    from refold_schemas.values import (
        Absent,
        Found,
        NotDone,
        Pending,
        Policy,
        Rejected,
        Retry,
    )

__version__ = "0.1.0"

_ROOMS = {
    "refold.app": ("App", "Effect", "RunContext"),
    "refold.client": ("BlockingClient", "Client"),
    "refold_schemas.errors.base": ("RefoldError",),
    "refold_schemas.errors.cli": ("RunCancelledError", "RunFailedError"),
    "refold_schemas.errors.run": (
        "CallRefused",
        "EffectBarred",
        "ForeignAwait",
        "InputRefused",
        "LoopMisused",
        "RegistrationRefused",
        "ResultUnrecordable",
        "Revalidation",
        "RunTornDown",
        "StepAbsent",
        "StepError",
        "StepOutsideRun",
        "ValueTooLarge",
    ),
    "refold_schemas.values": (
        "Absent",
        "Found",
        "NotDone",
        "Pending",
        "Policy",
        "Rejected",
        "Retry",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "Absent",
    "App",
    "BlockingClient",
    "CallRefused",
    "Client",
    "Effect",
    "EffectBarred",
    "ForeignAwait",
    "Found",
    "InputRefused",
    "LoopMisused",
    "NotDone",
    "Pending",
    "Policy",
    "RefoldError",
    "RegistrationRefused",
    "Rejected",
    "ResultUnrecordable",
    "Retry",
    "Revalidation",
    "RunCancelledError",
    "RunContext",
    "RunFailedError",
    "RunTornDown",
    "StepAbsent",
    "StepError",
    "StepOutsideRun",
    "ValueTooLarge",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its room. Source: PEP 562."""
    room = _ROOM_OF.get(name)
    if room is None:
        raise AttributeError(f"module 'refold' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(room), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
