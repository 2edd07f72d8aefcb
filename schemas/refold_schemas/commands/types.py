"""What is asked: one frozen class for each command. Any client in any language may publish one.

`command_id` is the sender's (a UUID as text): a repeat of it is applied once. `by` is who asks.
"""

from refold_schemas.values import Value
from refold_schemas.values.frozen import frozen


@frozen
class StartRun:
    """Begin a run. `version` None: whatever version the owner offers."""

    command_id: str
    run_id: str
    run: str
    input: Value
    version: str | None
    by: str


@frozen
class ResolveStep:
    """A person says of a slot in doubt whether its effect happened; `result` if it did.

    `attempt` is the latest attempt that the person knew of: their word is refused if another one
    was made since. None: whichever there is.
    """

    command_id: str
    run_id: str
    slot: str
    attempt: int | None
    happened: bool
    result: Value | None
    by: str
    why: str


@frozen
class CancelRun:
    """End a run: nothing new starts, open attempts are settled, then it is cancelled."""

    command_id: str
    run_id: str
    by: str
    why: str


@frozen
class RetryRun:
    """Let a parked run go on, or try the failed slot of a failed run again."""

    command_id: str
    run_id: str
    slot: str | None
    fresh_key: bool
    by: str
    why: str


@frozen
class RecordFinding:
    """Put on record what a reconciliation found of one effect, or that it is settled.

    `kind`, `status` and `command` as in FindingRecorded; `finding_id` is the same whenever the same
    is found again, so that it is written once.
    """

    command_id: str
    run_id: str
    finding_id: str
    kind: str
    slot: str
    step: str
    effect_key: str
    detail: str
    command: str
    status: str
    by: str
    why: str


Command = StartRun | ResolveStep | CancelRun | RetryRun | RecordFinding
