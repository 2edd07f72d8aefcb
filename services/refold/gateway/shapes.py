"""The shapes of requests and answers, as the OpenAPI document gives them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from refold_schemas.commands import SLOT_CHARS_MAX, TEXT_CHARS_MAX, WHY_CHARS_MAX
from refold_schemas.values import RUN_ID_LENGTH_MAX

Status = Annotated[
    str,
    Field(
        json_schema_extra={
            "enum": [
                *("running", "waiting", "paused", "in_doubt", "diverged", "blocked"),
                *("compensating", "cancelling", "completed", "failed", "cancelled"),
            ]
        }
    ),
]
Needs = Annotated[str, Field(json_schema_extra={"enum": ["time", "person", "code"]})]


class Strict(BaseModel):
    """A request: what it does not know, it refuses."""

    model_config = ConfigDict(extra="forbid")


class PositionShape(BaseModel):
    """A place in the log; `offset` is the next one to be read."""

    partition: int
    offset: int


class DoneShape(BaseModel):
    """A slot that is done."""

    slot: str
    step: str
    attempt: int
    at: str


class OpenShape(BaseModel):
    """A slot that is under way or in doubt."""

    slot: str
    step: str
    attempt: int
    since: str
    policy: str
    effect_key: str


class FailedShape(BaseModel):
    """A slot that failed."""

    slot: str
    step: str
    attempt: int
    at: str
    error: str


class BoundaryShape(BaseModel):
    """What is done, under way, in doubt, failed and remaining of a run at one log position."""

    run_id: str
    run: str
    version: str
    status: Status
    reason: str | None
    needs: Needs | None
    position: PositionShape
    done: list[DoneShape]
    under_way: list[OpenShape]
    in_doubt: list[OpenShape]
    failed: list[FailedShape]
    remaining: list[str] | None
    sentence: str
    archived: list[str] = Field(
        default_factory=list,
        description="Files with records that the log holds no more.",
    )


Json = Any
"""Any JSON."""


class StartShape(Strict):
    """A run to be started. Without `run_id` a fresh one is made, the same for the same
    Idempotency-Key."""

    run: str = Field(
        min_length=1, max_length=TEXT_CHARS_MAX, description="The run function's name."
    )
    input: Json = Field(default=None, description="Its input, as JSON.")
    run_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=RUN_ID_LENGTH_MAX,
        description="1 to 200 characters, no control characters, no personal data.",
    )
    version: str | None = Field(
        default=None,
        max_length=TEXT_CHARS_MAX,
        description="Only in this version of the run function.",
    )


class ResolveShape(Strict):
    """A person's word on a slot in doubt. `result`: what the step returned, if it happened."""

    slot: str = Field(min_length=1, max_length=SLOT_CHARS_MAX, examples=["charge#1"])
    happened: bool
    result: Json = None
    attempt: int | None = Field(
        default=None,
        ge=1,
        le=2**31 - 1,
        description="The latest attempt that the person knows of: refused if there was another.",
    )
    why: str = Field(default="", max_length=WHY_CHARS_MAX)


class RetryShape(Strict):
    """Let a parked run go on, or try the failed `slot` of a failed one again."""

    slot: str | None = Field(default=None, min_length=1, max_length=SLOT_CHARS_MAX)
    fresh_key: bool = Field(
        default=False, description="Under the next generation of its effect key."
    )
    why: str = Field(default="", max_length=WHY_CHARS_MAX)


class CancelShape(Strict):
    """End a run: nothing new starts, what is open is settled first."""

    why: str = Field(default="", max_length=WHY_CHARS_MAX)


class OutcomeShape(BaseModel):
    """A command, and how its run stands behind it.

    `decided` is false where no worker has taken it yet (202): it stands in the log and is applied
    once; a repeat with the same Idempotency-Key asks again.
    """

    command_id: str
    run_id: str
    decided: bool
    existed: bool | None = Field(default=None, description="Of a start: the run was there already.")
    status: Status | None = None
    sentence: str | None = None
    next: str | None = Field(default=None, description="What moves an undecided command.")


class ErrorShape(BaseModel):
    """Why a run has no result."""

    code: str
    message: str
    kept: str
    next: str


class ResultShape(BaseModel):
    """How a run stands: its result where it completed, the reason where it did not."""

    run_id: str
    status: Status
    needs: Needs | None
    sentence: str
    result: Json = None
    error: ErrorShape | None = None


class RecordShape(BaseModel):
    """One record of a run, as in `refold history`. `what` says it in words."""

    offset: int
    partition: int
    at: str
    claim: str
    epoch: int
    n: int
    event: str | None
    slot: str | None
    what: str | None
    counted: bool
    why_skipped: str | None


class HistoryShape(BaseModel):
    """A run's records in log order. `next`: the offset to go on after, None at the log's end."""

    run_id: str
    records: list[RecordShape]
    archived: list[str]
    next: int | None


class WhyShape(BaseModel):
    """A run explained: what is known, since when, on what evidence, and what moves it."""

    run_id: str
    status: Status
    reason: str | None
    needs: Needs | None
    sentence: str
    text: str
    commands: list[str] = Field(description="What could be typed to move it.")


class AttemptShape(BaseModel):
    """One execution of a slot."""

    attempt: int
    status: str
    began_at: str
    timeout_ms: int
    settle_ms: int
    generation: int
    reason: str | None
    evidence: list[str]
    conflict: bool


class SlotShape(BaseModel):
    """A slot with what is recorded of it."""

    slot: str
    step: str
    policy: str
    effect_key: str
    arguments: dict[str, Json]
    outcome: str | None = Field(description="ok, unrecordable, failed or absent.")
    at: str | None
    result: Json
    error: str | None
    escalated: bool
    absent_until_proven: bool
    conflicted: bool
    attempts: list[AttemptShape]


class TimerShape(BaseModel):
    """An armed timer."""

    timer_id: str
    kind: str
    slot: str
    due_at: str


class RunShape(BaseModel):
    """Everything that is folded of a run: its state, with values as plain JSON."""

    run_id: str
    run: str
    version: str
    status: Status
    reason: str | None
    needs: Needs | None
    sentence: str
    position: PositionShape
    started_at: str
    changed_at: str
    ended_at: str | None
    input: Json
    result: Json
    error: str | None
    plan: list[str] | None
    cancel_by: str | None
    cancel_why: str | None
    parked: str | None = Field(description="Of a diverged or blocked run: the exact reason.")
    events: int
    bytes: int
    slots: list[SlotShape]
    timers: list[TimerShape]


class RejectedShape(BaseModel):
    """A command that was rejected, as in `refold commands rejected`."""

    partition: int
    offset: int
    at: str
    reason: str
    detail: str
    command_type: str | None
    command_id: str | None
    run_id: str | None
    event_offset: int
    run_exists_now: bool | None


class RejectionsShape(BaseModel):
    """Rejected commands, the latest first."""

    rejected: list[RejectedShape]
    total: int


class AgainShape(BaseModel):
    """A command that was published again; its owner decides it."""

    command_type: str
    command_id: str
    run_id: str
    partition: int
    fresh_id: bool


class PartitionShape(BaseModel):
    """A partition of the log: who owns it, and how many commands nobody has decided yet."""

    partition: int
    owner: str
    owner_lives: bool | None
    released: bool
    claim: str
    epoch: int
    app: str | None
    offset: int
    command_next: int
    lag: int


class PartitionsShape(BaseModel):
    """Every partition."""

    namespace: str
    partitions: list[PartitionShape]


class HealthShape(BaseModel):
    """A look at what the gateway stands on. `ok` is false where somebody has to do something."""

    ok: bool
    namespace: str
    log: str
    tables: str = Field(description="ok, absent, or what is wrong.")
    requests: int
    streams: int
    draining: bool
    problems: list[str]


TableRow = dict[str, Json]
"""A row of a view; its columns are described in docs/projections.md."""


class PageShape(BaseModel):
    """Rows of a list. `next` is the cursor behind them, null: that was all."""

    rows: list[TableRow]
    next: str | None


class RowsShape(BaseModel):
    """All rows of a short list."""

    rows: list[TableRow]


class CountsShape(BaseModel):
    """How many runs have each status; `count_max` means: so many or more."""

    counts: dict[str, int]
    count_max: int


class TableRunShape(BaseModel):
    """A run as the tables have it."""

    run: TableRow
    steps: list[TableRow]
    attempts: list[TableRow]
    timers: list[TableRow]
