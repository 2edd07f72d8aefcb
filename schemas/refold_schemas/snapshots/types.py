"""What is kept so that a takeover need not fold everything: run snapshots and checkpoints.

Both are derived from the log and disposable; a reader that cannot use one falls back to the fold.
"""

from refold_schemas.values import Argument, ErrorInfo, Unrecordable, Value
from refold_schemas.values.frozen import frozen


@frozen
class AttemptKept:
    """One attempt of a slot, settled or not. `evidence` is the set of reported outcomes, sorted."""

    number: int
    claim_id: bytes
    n: int
    at_ms: int
    status: str
    timeout_ms: int
    settle_ms: int
    generation: int
    reason: str | None
    evidence: tuple[str, ...]
    reported_result: Value | None
    reported_error: ErrorInfo | None
    conflict_written: bool


@frozen
class OutcomeKept:
    """What run code was told of a slot. `kind`: ok, unrecordable, failed, absent."""

    kind: str
    order: int
    at_ms: int
    value: Value | None
    error: ErrorInfo | None
    unrecordable: Unrecordable | None


@frozen
class SlotKept:
    """One slot: what was asked, its attempts, its outcome if it has one."""

    name: str
    step: str
    born: int
    policy: str
    fingerprint: bytes
    arguments: tuple[Argument, ...]
    effect_key: str
    generation: int
    key_ttl_ms: int | None
    key_since_ms: int
    attempts: tuple[AttemptKept, ...]
    failures: int
    fresh_key: bool
    escalated: bool
    absent_until_proven: bool
    conflicted: bool
    outcome: OutcomeKept | None


@frozen
class TimerKept:
    """One armed timer."""

    timer_id: str
    generation: int
    kind: str
    slot: str
    deadline_ms: int


@frozen
class CursorKept:
    """Where a `ctx.each` loop is. `order` is that of its last outcome."""

    slot: str
    born: int
    cursor: int
    total: int
    order: int
    at_ms: int
    state: Value


@frozen
class StrayKept:
    """A completed or failed report whose intent does not count."""

    slot: str
    attempt: int
    outcome: str


@frozen
class EarlyKept:
    """An intent that was reported as never started before it was stored."""

    claim_id: bytes
    n: int


@frozen
class RunSnapshot:
    """A run's durable state at one record. Key: `run_id/claim_id.N`, the claim id in hexadecimal.

    `offset`, `record_claim_id`, `record_n`: the last record of the run in it, reports included.
    """

    run_id: str
    offset: int
    record_claim_id: bytes
    record_n: int
    run: str
    version: str
    input: Value
    nonce: bytes
    started_ms: int
    era: int
    plan: tuple[str, ...] | None
    slots: tuple[SlotKept, ...]
    timers: tuple[TimerKept, ...]
    cursors: tuple[CursorKept, ...]
    commands: tuple[str, ...]
    stray: tuple[StrayKept, ...]
    early: tuple[EarlyKept, ...]
    born_next: int
    order_next: int
    event_count: int
    byte_count: int
    changed_ms: int
    unclean_mark: int
    cancel_by: str | None
    cancel_why: str | None
    parked: str | None
    parked_reason: str | None
    parked_detail: str | None
    ended: str | None
    ended_ms: int | None
    result: Value | None
    error: ErrorInfo | None


@frozen
class RunSnapshotPart:
    """A piece of a run's snapshot that is too large for one record. Key: `run_id/claim_id.N.part`.

    The bodies of all parts, in order, are the framed bytes of the RunSnapshot.
    """

    run_id: str
    part: int
    part_count: int
    body: bytes


@frozen
class ParkedKept:
    """A command that waits in `ns.commands`. `unknown_ms`: since when its schema is missing."""

    offset: int
    key: bytes | None
    schema_id: int
    since_ms: int
    unknown_ms: int | None


@frozen
class Checkpoint:
    """A partition's durable position. Key: `/claim_id.N`, the claim id in hexadecimal.

    `last_*` name the last record read, verified at the start. `redo_offset`: the smallest offset
    not yet covered by its run's snapshot; a position that is held back to it has it as
    `offset_next`. What had to be sent and stands before `published_to` was sent; `outbox` are
    offsets before `offset_next` that were not. `run_count`: of so many runs a snapshot stood when
    it was written, None where nobody counted; with fewer of them it is true no more.
    """

    partition: int
    offset_next: int
    claim_epoch: int
    claim_id: bytes
    n_next: int
    claim_broken: bool
    command_next: int
    time_last_ms: int
    last_offset: int
    last_claim_id: bytes
    last_n: int
    redo_offset: int
    process: str
    owner: str
    app: str
    topic_ids: tuple[str, ...]
    partition_count: int
    format_level: int
    released: bool
    unclean_total: int
    unclean_row: int
    published_to: int
    outbox: tuple[int, ...]
    parked: tuple[ParkedKept, ...]
    run_count: int | None


@frozen
class Archived:
    """A stretch of `ns.events` that was copied to a file; the log may begin behind it.

    Key: `/archived.N`, with N the `offset_next` in decimal. `file` is a name without a folder,
    `sha256` of the file's bytes. `runs`: every run with a record in it. `position` is the framed
    Checkpoint of a reader that has read everything before `offset_next`.
    """

    partition: int
    offset_from: int
    offset_next: int
    record_count: int
    file: str
    sha256: bytes
    runs: tuple[str, ...]
    position: bytes
