"""Which class a record name stands for."""

from typing import Final, get_args

from refold_schemas.commands import Command
from refold_schemas.events import Event
from refold_schemas.snapshots import types as snapshots
from refold_schemas.values import Argument, ErrorInfo, ModelUse, Ref, Unrecordable, Value

EVENT_NAMESPACE: Final = "refold.events"
COMMAND_NAMESPACE: Final = "refold.commands"
SNAPSHOT_NAMESPACE: Final = "refold.snapshots"
VALUE_NAMESPACE: Final = "refold.values"

EVENT_CLASSES: tuple[type, ...] = get_args(Event)
COMMAND_CLASSES: tuple[type, ...] = get_args(Command)
SNAPSHOT_CLASSES: tuple[type, ...] = (
    snapshots.RunSnapshot,
    snapshots.RunSnapshotPart,
    snapshots.Checkpoint,
    snapshots.Archived,
)


def _kept() -> tuple[type, ...]:
    held = vars(snapshots).values()
    return tuple(
        item for item in held if isinstance(item, type) and item.__module__ == snapshots.__name__
    )


CLASSES: dict[str, type] = {
    **{f"{EVENT_NAMESPACE}.{cls.__name__}": cls for cls in EVENT_CLASSES},
    **{f"{COMMAND_NAMESPACE}.{cls.__name__}": cls for cls in COMMAND_CLASSES},
    **{f"{SNAPSHOT_NAMESPACE}.{cls.__name__}": cls for cls in _kept()},
    **{
        f"{VALUE_NAMESPACE}.{cls.__name__}": cls
        for cls in (Argument, ErrorInfo, ModelUse, Ref, Unrecordable, Value)
    },
}
"""Full record name -> class, of messages and of the records inside them."""
