"""The Log port: what refold asks of a log, whichever broker or file is behind it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable


class Topic(StrEnum):
    """The topics of a namespace, by their suffix: `ns.commands` and so on."""

    COMMANDS = "commands"
    EVENTS = "events"
    SNAPSHOTS = "snapshots"
    DEAD_LETTERS = "dead-letters"


class Entry(NamedTuple):
    """A record to be appended: key and value as bytes, and the `refold` header if it has one.

    In `snapshots` (compacted) a value of None deletes its key.
    """

    key: bytes | None
    value: bytes | None
    header: bytes | None = None


class Record(NamedTuple):
    """A record as stored. `append_ms` is the log's own clock, milliseconds since 1970 UTC."""

    offset: int
    key: bytes | None
    value: bytes | None
    header: bytes | None
    append_ms: int


class Ack(NamedTuple):
    """What the log answered to an append.

    `offset` is that of the batch's first record; None or -1 means *unknown*, never "not stored":
    read it as `stored_at`.
    `append_ms` is the log's clock at the append where it says, else None.
    """

    offset: int | None
    append_ms: int | None = None

    @property
    def stored_at(self) -> int | None:
        """The offset where the batch surely stands; None where the answer is no such word.

        None is not "not stored": the batch may be there now, or later.
        """
        return None if self.offset is None or self.offset < 0 else self.offset


class Suggestion(NamedTuple):
    """Which partitions this process may try to own now. A suggestion only: log order decides."""

    partitions: frozenset[int]


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What the log is: ids of its topics, partition count, limits in bytes, and what is amiss.

    `partition_count` is what every topic has. Runs may be routed over fewer: `routing.py` says.
    """

    namespace: str
    partition_count: int
    topic_ids: tuple[str, ...]
    batch_size_max: int
    partition_counts: tuple[int, ...] = ()
    """Of each topic, in the order of `Topic`, where somebody else may raise them; else empty."""
    unsafe: tuple[str, ...] = ()
    """What of the topics' settings cannot hold the promises: `suggest` refuses to go on."""
    settings: tuple[Mapping[str, str], ...] = ()
    """Of each topic those that the promises rest on, in the order of `Topic`; empty without."""
    broker_count: int = 0
    """How many brokers the cluster had when the log was opened; 0: it is on no cluster."""


class Upgrade(NamedTuple):
    """What an upgrade has changed, or would, and what it cannot: a sentence each."""

    changes: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Log(Protocol):
    """A namespace's topics. Every adapter passes `refold.testing.log_conformance`.

    All methods are called on one event loop. An append is atomic: all its records are readable
    afterwards, contiguous and in order, or none is.
    """

    @property
    def url(self) -> str:
        """The URL it was opened with, without secrets."""

    @property
    def facts(self) -> LogFacts:
        """Namespace, partition count, topic ids and limits; fixed while it is open.

        But for `batch_size_max`, which falls where the log has refused a batch within it.
        """

    async def open(self, *, create: bool) -> bool:
        """Connect; with `create`, make what is missing and return True if anything was made.

        Raises LogUnavailable (not reachable, locked, read-only, corrupted, full) and
        LogMissing where topics are missing and `create` is False.
        """

    async def upgrade(self, *, dry_run: bool) -> Upgrade:
        """Bring the topics to what this version wants, and say each change.

        Call it before `open`. With `dry_run` nothing is changed. Raises LogUnavailable, LogMissing,
        and NotUpgradable for what no command can bring back.
        """

    async def close(self) -> None:
        """Give everything back. Appends under way end as unknown."""

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append one batch and wait for the log's answer.

        Raises BatchTooLarge with nothing stored: before anything is sent, or because the log takes
        less by now than `facts` said, which say it from then on. Any *other* exception, a timeout,
        a cancellation, `Ack(None)` and `Ack(-1)` mean *unknown*: it may be stored, now or later.
        """

    def idle_when(self, is_idle: Callable[[], bool]) -> None:
        """Let the log ask whether its caller has anything else to do on the loop.

        While it has not, an append may hold the loop up. A hint that an adapter need not take.
        """

    async def read(
        self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
    ) -> Sequence[Record]:
        """Stored records from `offset` on, in order, at least one if there is any, about `size_max`
        bytes of them. Offsets may have holes. Raises OffsetOutOfRange before the log's start.
        """

    async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        """`(start, end)`: the first offset that is kept, and the next one to be written."""

    async def wait(self, topic: Topic, partition: int, offset: int, *, timeout_ms: int) -> bool:
        """Wait until something at or after `offset` can be read; False when the time is over."""

    async def trim(self, topic: Topic, partition: int, before_offset: int) -> int:
        """Delete the records before `before_offset`, at most up to the end; return the new start.

        Deleting what is gone already is no error. Offsets go on where they were. Who asks is no
        matter of the log: what is still needed nobody may ask for (`refold.engine.trimming`).
        """

    async def suggest(self, owner: str) -> Suggestion:
        """Which partitions the group or the leases give to `owner` now; call it once a second."""

    async def owner_lives(self, partition: int) -> bool | None:
        """Whether the partition's owner lives, as far as leases or the group can tell.

        True while it is heard of; False if there is none or it is surely dead; None where nobody
        can say (not heard of, but perhaps only frozen). For what people read: it decides nothing.
        """

    async def give_up(self, owner: str) -> None:
        """Leave the group or free the leases, so that another owner is suggested at once."""


@runtime_checkable
class Shared(Protocol):
    """What a log can do beside where several processes may share the reading of its events.

    Of another log each reader reads all of it. Sharing is a suggestion, as owning is.
    """

    async def share(self, readers: str, member: str) -> frozenset[int]:
        """Which partitions `member` of these readers has now; call it once a second.

        Raises LogUnavailable where the group cannot be asked and has given them away by now, and
        PartitionsRaised where there are more partitions than when the log was opened.
        """

    async def leave_share(self, readers: str, member: str) -> None:
        """Leave them, so that another member has its partitions at once."""

    async def note_read(self, readers: str, member: str, offsets: Mapping[int, int]) -> None:
        """Tell the group how far its member is, for whoever looks at lag: it decides nothing."""
