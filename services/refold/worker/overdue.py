"""The end of a worker that waited for a call that does not end."""

from typing import ClassVar

from refold_schemas.errors import RefoldError

EXIT_OVERDUE = 70
"""The exit code of such a process, whether it ends in order or hard."""


class CallOverdue(RefoldError):
    """A step's call outlived its deadline: by `lookup_for`, or at all while nobody owns it.

    In the first case its worker hands over and ends, in the second it ends at once. A thread
    cannot be cancelled and a coroutine may swallow its cancellation; only the end of the process
    ends them. `overdue_ms` counts from the deadline.
    """

    code: ClassVar[str] = "R023"
    exit_code: ClassVar[int] = EXIT_OVERDUE

    def __init__(self, run_id: str, slot: str, attempt: int, overdue_ms: int) -> None:
        self.run_id, self.slot, self.attempt = run_id, slot, attempt
        self.overdue_ms = overdue_ms
        super().__init__(
            f"run {run_id}: the call of {slot}, attempt {attempt}, has not ended {overdue_ms} ms "
            "after its deadline, so this worker ends",
            kept="every run and every acknowledged event; the attempt is in doubt and a person is "
            "asked",
            next=f"start the worker again, look up what {slot} did, and give its requests a "
            "timeout; see docs/errors/R023.md",
        )
