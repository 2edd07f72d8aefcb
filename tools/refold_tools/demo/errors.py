"""What can keep a demo from being shown."""

from typing import ClassVar

from refold_schemas.errors.base import RefoldError


class DemoStopped(RefoldError):
    """A process of the demo ended, or was not ready, where it should not; or nothing moved on."""

    code: ClassVar[str] = "R530"

    def __init__(self, reason: str, log_url: str, kept: bool) -> None:
        self.reason, self.log_url = reason, log_url
        super().__init__(
            f"the demo could not go on: {reason}",
            kept=f"the log {log_url}" if kept else "nothing; its files were temporary",
            next="repeat it with --log sqlite:///demo.db, then read `refold doctor` and "
            "`refold runs` with the same --log",
        )


class ExtraMissing(RefoldError):
    """The demo needs something that is not installed here."""

    code: ClassVar[str] = "R531"
    exit_code: ClassVar[int] = 2

    def __init__(self, missing: str) -> None:
        self.missing = missing
        super().__init__(
            f"refold demo needs {missing}, which is not installed",
            kept="nothing was started",
            next="install refold with its extra: pip install '.[demo]' in a checkout of it",
        )
