"""Errors about a schema registry outside: away, without what is needed, or of another mind."""

from collections.abc import Sequence
from typing import ClassVar

from refold_schemas.errors.base import RefoldError

NAMES_SHOWN = 3


class RegistryUnavailable(RefoldError):
    """The schema registry gives no answer, or none that a schema registry gives."""

    code: ClassVar[str] = "R209"
    exit_code: ClassVar[int] = 4

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"the schema registry at {url} cannot be asked: {reason}",
            kept="the log and everything in it; schemas that are known already stay known",
            next="see that it runs and that REFOLD_REGISTRY_URL is right, then try again",
        )


class SchemasUnregistered(RefoldError):
    """The schema registry lacks schemas that this version would write. `names` are subjects."""

    code: ClassVar[str] = "R210"
    exit_code: ClassVar[int] = 3

    def __init__(self, url: str, names: Sequence[str]) -> None:
        self.url, self.names = url, tuple(names)
        shown = ", ".join(self.names[:NAMES_SHOWN])
        more = len(self.names) - NAMES_SHOWN
        super().__init__(
            f"the schema registry at {url} lacks what this version writes: {shown}"
            + (f" and {more} more" if more > 0 else ""),
            kept="the log as it was; nothing was written",
            next="`refold schemas register` registers them; workers never do it on their own",
        )


class RegistryClientMissing(RefoldError):
    """A schema registry is set, but the packages that ask one are not installed."""

    code: ClassVar[str] = "R211"
    exit_code: ClassVar[int] = 2

    def __init__(self, url: str, missing: str) -> None:
        self.url, self.missing = url, missing
        super().__init__(
            f"the schema registry at {url} cannot be asked: the package {missing} is not installed",
            kept="nothing was opened or changed",
            next="pip install 'refold[registry]', or unset REFOLD_REGISTRY_URL",
        )


class RegistryRefused(RefoldError):
    """The schema registry refuses what was asked for a subject, or gives what cannot be used."""

    code: ClassVar[str] = "R212"
    exit_code: ClassVar[int] = 1

    def __init__(self, url: str, subject: str, reason: str) -> None:
        self.url, self.subject, self.reason = url, subject, reason
        super().__init__(
            f"the schema registry at {url} refuses {subject}: {reason}",
            kept="what was registered before, and the log",
            next="`refold schemas check` compares the registry with this version; somebody else's "
            "schema may stand under the subject",
        )


class RegistryUnset(RefoldError):
    """A command works on the schema registry, and none is set."""

    code: ClassVar[str] = "R532"
    exit_code: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__(
            "no schema registry is set",
            kept="nothing was done",
            next="set REFOLD_REGISTRY_URL; without one refold uses the schemas of its package, "
            "which need no registering",
        )
