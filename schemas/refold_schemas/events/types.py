"""What happened: one frozen class for each event. Its Avro schema beside it has the same fields.

A record's key is the `run_id`, its header `refold` carries claim, n and time; so no event repeats
them. Times are milliseconds since 1970 UTC on the owner's clock, durations are milliseconds.
"""

from refold_schemas.values import Argument, ErrorInfo, ModelUse, Unrecordable, Value
from refold_schemas.values.frozen import frozen

# ---- of a partition


@frozen
class PartitionClaimed:
    """A worker became owner of the partition, if the claim counts. `claim_id`, `epoch`: header.

    `process` is fresh for each start of a process; two claims of one process are no unclean end.
    `versions` are `run@version` as this worker offers them, `partition_count` is over how many
    partitions runs are routed, which no later claim changes.
    """

    owner: str
    process: str
    app: str
    engine: str
    versions: tuple[str, ...]
    topic_ids: tuple[str, ...]
    partition_count: int
    format_level: int


@frozen
class PartitionReleased:
    """The owner handed over on purpose: nothing of it is under way any more."""

    reason: str


@frozen
class CommandRejected:
    """A command had nothing to say. Keyed by its run where it names one.

    `reason` is one of: duplicate, run_exists, run_exists_other_input, unknown_run, run_ended,
    unknown_function, input_invalid, not_in_doubt, other_attempt, too_early, nothing_to_retry,
    undecodable, too_large, misplaced, gone, unknown_slot, nothing_to_settle, unsigned,
    bad_signature.
    `raw` holds the first 1,024 bytes of one that could not be decoded.
    """

    command_id: str
    command_type: str
    command_offset: int
    reason: str
    detail: str
    raw: bytes | None


@frozen
class CommandParked:
    """A command cannot be decided yet: it waits in `ns.commands`, and the position goes on.

    `state`: waiting (for its schema), behind (an earlier one with the same key), unknown (the
    registry said for the first time that it has no such schema), decided (it is parked no more; the
    decision stands in the same batch).
    `key` is the record's key, None where that names no run. `schema_id` is 0 where the frame has
    none.
    """

    command_offset: int
    key: bytes | None
    schema_id: int
    state: str
    detail: str


@frozen
class CommandEmitted:
    """A command has to go to the partition of its run: the owner appends `raw` there, unchanged.

    It may be appended more than once; the same `command_id` is applied once.
    """

    command_id: str
    command_type: str
    run_id: str
    command_offset: int
    partition: int
    raw: bytes


# ---- of a run


@frozen
class RunStarted:
    """A run exists. `nonce` (32 bytes) seeds fingerprints, `ctx.uuid` and `ctx.random`."""

    run: str
    version: str
    input: Value
    nonce: bytes
    command_id: str
    started_by: str


@frozen
class PlanDeclared:
    """The step names that the author expects, in order. Descriptive: only sentences use it."""

    steps: tuple[str, ...]


@frozen
class AmountsDeclared:
    """Which arguments of a step are amounts, so that a ledger can sum them. Descriptive.

    Stands before the first intent of the step in its run, and again where the code has changed.
    """

    step: str
    arguments: tuple[str, ...]


@frozen
class StepIntended:
    """An attempt is about to act: durable before anything leaves.

    `arguments` is None for a repeat: those of the slot's first intent are sent again.
    `key_ttl_ms`: how long the far system remembers the key, None is for ever.
    """

    slot: str
    step: str
    attempt: int
    generation: int
    arguments: tuple[Argument, ...] | None
    fingerprint: bytes
    effect_key: str
    policy: str
    timeout_ms: int
    settle_ms: int
    key_ttl_ms: int | None


@frozen
class StepCompleted:
    """A step returned. Without an intent (re-executable) it names step, fingerprint and arguments.

    `result` is None exactly if `unrecordable` is set: the effect happened, it never runs again.
    """

    slot: str
    attempt: int
    result: Value | None
    unrecordable: Unrecordable | None
    model: ModelUse | None
    step: str | None
    fingerprint: bytes | None
    arguments: tuple[Argument, ...] | None


@frozen
class StepFailed:
    """An attempt certainly did not act (or, re-executable, raised). `final`: run code is told."""

    slot: str
    attempt: int
    error: ErrorInfo
    final: bool
    fresh_key: bool
    step: str | None
    fingerprint: bytes | None
    arguments: tuple[Argument, ...] | None


@frozen
class StepInDoubt:
    """Nobody knows whether the attempt acted. `escalated`: the slot is handed to a person."""

    slot: str
    attempt: int
    reason: str
    escalated: bool


@frozen
class StepResolved:
    """An attempt in doubt was settled.

    `verdict`: done, absent, failed, never_started. `evidence`: lookup, person, late_report, or
    owner (the living owner barred the call before it could start).
    done and absent by lookup or person speak for the key, hence for all attempts of the slot.
    `final`: no attempt will follow (a run being cancelled, a person's word).
    """

    slot: str
    attempt: int
    verdict: str
    evidence: str
    result: Value | None
    error: ErrorInfo | None
    final: bool
    by: str | None
    why: str | None
    command_id: str | None


@frozen
class AttemptReported:
    """What a process learnt of a call after its claim or its slot had moved on: evidence, a set.

    Stands outside the claim rule; the header's claim and n name the *intent*.
    `outcome`: completed, failed, never_started.
    """

    slot: str
    attempt: int
    effect_key: str
    outcome: str
    result: Value | None
    error: ErrorInfo | None
    reporter: str


@frozen
class EvidenceConflict:
    """Evidence contradicts what was settled: a red row for a person, never a silent repair."""

    slot: str
    attempt: int
    settled: str
    evidence: str


@frozen
class FindingRecorded:
    """Record and far system differ, or do no more: what a reconciliation found. Repairs nothing.

    `kind`: missing, unexpected, different, conflict, settleable. `status`: open, agreed (a later
    look found agreement), accepted (a person has dealt with it). `command` settles it.
    """

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
    command_id: str


@frozen
class CursorAdvanced:
    """`ctx.each` committed a batch: items before `cursor` are done, `state` is what is carried."""

    slot: str
    cursor: int
    total: int
    state: Value


@frozen
class TimerScheduled:
    """A timer is due at `deadline_ms`. `kind`: sleep, backoff, settle, lookup, proof.

    `generation` rises each time the same `timer_id` is scheduled again.
    """

    timer_id: str
    generation: int
    kind: str
    slot: str
    deadline_ms: int


@frozen
class TimerFired:
    """A timer was due. One of an older generation, or of a cancelled timer, changes nothing."""

    timer_id: str
    generation: int


@frozen
class TimerCancelled:
    """A timer is not needed any more. One that has fired stays fired."""

    timer_id: str
    generation: int


@frozen
class RunDiverged:
    """Code and record differ at `slot`: nothing was executed, matching code takes it up again."""

    slot: str
    detail: str
    version: str


@frozen
class RunBlocked:
    """No live worker can continue the run. `reason`: crashes_worker, unknown_function, limit, …"""

    reason: str
    detail: str


@frozen
class RunResumed:
    """A person (`by` set) or matching code let a parked or failed run go on.

    `slot` is a failed slot that is tried again; `fresh_key`: under the next generation of its key.
    """

    by: str | None
    why: str | None
    slot: str | None
    fresh_key: bool
    command_id: str | None


@frozen
class RunCancelRequested:
    """Somebody asked for the run's end: no attempt starts any more, open ones are settled first."""

    by: str
    why: str
    command_id: str


@frozen
class RunCompleted:
    """The run function returned."""

    result: Value


@frozen
class RunFailed:
    """The run function raised."""

    error: ErrorInfo


@frozen
class RunCancelled:
    """A cancelled run has no open attempt left."""

    reason: str


PartitionEvent = PartitionClaimed | PartitionReleased | CommandParked | CommandEmitted
RunEvent = (
    RunStarted
    | PlanDeclared
    | AmountsDeclared
    | StepIntended
    | StepCompleted
    | StepFailed
    | StepInDoubt
    | StepResolved
    | AttemptReported
    | EvidenceConflict
    | FindingRecorded
    | CursorAdvanced
    | TimerScheduled
    | TimerFired
    | TimerCancelled
    | RunDiverged
    | RunBlocked
    | RunResumed
    | RunCancelRequested
    | RunCompleted
    | RunFailed
    | RunCancelled
    | CommandRejected
)
Event = PartitionEvent | RunEvent
