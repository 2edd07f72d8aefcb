"""What a session asks of its owner: steps, timers and cursors that the record does not have yet."""

from typing import NamedTuple

from refold.app.definitions import StepDef
from refold_schemas.values import Argument, Value


class StepAsked(NamedTuple):
    """Run code waits for a step that is not recorded. `stored` are its arguments as to be recorded.

    They are encoded when asked, since run code may share and change the objects in `arguments`.
    """

    slot: str
    definition: StepDef
    arguments: dict[str, object]
    fingerprint: bytes
    stored: tuple[Argument, ...] = ()


class ChunkAsked(NamedTuple):
    """Run code waits for a chunk of a `map` over a re-executable step: one list of results.

    `items` are the arguments of each call; recorded is the one argument `items`, all of them.
    """

    slot: str
    definition: StepDef
    items: list[dict[str, object]]
    concurrency: int
    fingerprint: bytes
    stored: tuple[Argument, ...] = ()

    @property
    def arguments(self) -> dict[str, object]:
        """The chunk's arguments as they are recorded."""
        return {"items": self.items}


class SleepAsked(NamedTuple):
    """Run code waits for a timer."""

    slot: str
    duration_ms: int


class CursorAsked(NamedTuple):
    """A loop committed a batch and went on at once. `at_ms` is the time to record it with."""

    slot: str
    cursor: int
    total: int
    state: Value
    at_ms: int


class Unsettled(NamedTuple):
    """Run code waits for a recorded slot that has no outcome yet, or whose handle has `expired`.

    `definition` is None for a timer. `ask` is what today's call would have asked (the record may
    hold long arguments as digests only); None for a timer or an expired handle.
    """

    slot: str
    definition: StepDef | None
    expired: bool
    ask: StepAsked | ChunkAsked | None = None


class LogLine(NamedTuple):
    """A line of `ctx.log`, to be written when what led to it is durable.

    Its fields are text already: an object may have changed until then.
    """

    level: str
    message: str
    fields: dict[str, str]
    at_ms: int


class Returned(NamedTuple):
    """The run function returned and everything it acquired is released."""

    result: object


class Raised(NamedTuple):
    """The run function raised and everything it acquired is released."""

    error: BaseException


class Diverged(NamedTuple):
    """Code and record differ, first at `slot`; nothing else is asked. `detail` says how."""

    slot: str
    detail: str


Ask = (
    StepAsked
    | ChunkAsked
    | SleepAsked
    | CursorAsked
    | Unsettled
    | LogLine
    | Returned
    | Raised
    | Diverged
)
