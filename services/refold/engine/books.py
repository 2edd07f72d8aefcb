"""The books of an owned partition: tentative and durable state, and the one way to add events.

A decision is folded when it is queued (tentative) and acts only after its acknowledgement; what a
person or another process can see comes from durable state. Source: design, section 3.2.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from refold.engine.log_clock import LogClock
from refold.engine.settings import WorkerSettings
from refold.engine.tail import Decision, Tail
from refold.log.port import Entry, Record
from refold.log.sizes import BATCH_OVERHEAD, RECORD_OVERHEAD
from refold_projections.fold import (
    Mark,
    Orders,
    PartitionFold,
    RunState,
    RunStates,
    Stamp,
    evolve,
    stamp_of,
)
from refold_schemas.codec import HEADER_SIZE, KIND_EVENT, ClaimHeaders, Codec, RecordHeader
from refold_schemas.errors import SchemaUnavailable, UndecodableRecord
from refold_schemas.events import (
    AttemptReported,
    CommandEmitted,
    CommandParked,
    CommandRejected,
    PartitionEvent,
    TimerScheduled,
)

ORDERS: Final = (CommandRejected, CommandParked, CommandEmitted)
_tuple: Final = tuple.__new__
"""Makes a NamedTuple without the Python function that its own call goes through."""


class Unacked:
    """What is queued of one run and not acknowledged yet, with the durable state before it."""

    __slots__ = ("count", "durable", "told", "waiting")

    def __init__(self, durable: RunState | None) -> None:
        self.durable = durable
        self.count = 1
        self.told = False
        """Whether a report was folded meanwhile: the states kept with decisions are without it."""
        self.waiting: list[Callable[[], None]] = []
        """Those that wait for the decision which was queued last."""


_Queued = tuple[
    str,
    Unacked,
    RunState | None,
    Sequence[Any],
    Sequence[Stamp],
    list[Callable[[], None]],
    list[tuple[int, Any]] | None,
    int,
]
"""One decision of a run on its way: the run, what is queued of it, its state behind the decision,
its events and their stamps, who waits, what of it is about commands, and how many records stand
between its first and its last one."""


class DecisionTooLarge(Exception):
    """A decision does not fit into one batch; nothing of it was written. Sizes in bytes."""

    def __init__(self, size: int, size_max: int) -> None:
        self.size, self.size_max = size, size_max
        super().__init__(f"{size:,} bytes in one decision, {size_max:,} fit into a batch")


class Books:
    """State of every run in the partition, and `commit`."""

    def __init__(
        self,
        fold: PartitionFold,
        states: RunStates,
        codec: Codec,
        log_clock: LogClock,
        *,
        epoch: int,
        batch_size_max: int,
        limits: WorkerSettings,
        on_timer: Callable[[str, TimerScheduled], None],
        on_change: Callable[[str], None],
        on_limit: Callable[[str], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        """`failed(run_id, error)` hears of an error of what was to be called for a run."""
        self.codec, self.log_clock = codec, log_clock
        self.claim_id, self.epoch = fold.position.claim_id, epoch
        self._headers = ClaimHeaders(KIND_EVENT, self.claim_id, epoch)
        self.facts = fold.facts
        self.states = states
        """Tentative: all queued events included. Of a run with nothing queued: durable too."""
        self._live = states.live
        self.marks: dict[str, Mark] = fold.marks
        self.orders = Orders(fold.orders.kept())
        """Tentative: what is parked, all queued events included. Its outbox is empty of those."""
        self.orders_durable = fold.orders
        self.on_outbox: Callable[[], None] = lambda: None
        self.dirty: dict[str, None] = dict(fold.touched)
        """Runs that changed durably since their last snapshot."""
        self.tail: Tail | None = None
        self.command_next = fold.position.command_next
        self.event_count = 0
        self._n_next = 0
        # A claim's time is not checked before it stands: one by a clock that was years ahead must
        # not take ours along.
        self._time_last_ms = log_clock.bounded_ms(fold.position.time_last_ms)
        self._wall_seen_ms = -1
        self._unacked: dict[str, Unacked] = {}
        self._to_pack: dict[str, None] = {}
        self._batch_size_max = batch_size_max
        self._events_max, self._run_bytes_max = limits.events_max, limits.run_bytes_max
        self._on_timer, self._on_change, self._on_limit = on_timer, on_change, on_limit
        self._failed = failed

    @property
    def n_next(self) -> int:
        """The n of the next event that is decided."""
        return self._n_next

    def now_ms(self) -> int:
        """The owner's wall clock, within bounds, and never behind an event that is in the log."""
        wall_ms = self.log_clock.read_ms()
        if wall_ms != self._wall_seen_ms:  # several steps share a millisecond
            self._wall_seen_ms = wall_ms
            self._time_last_ms = max(self._time_last_ms, self.log_clock.wall_ms())
        return self._time_last_ms

    def commit(
        self,
        run_id: str | None,
        events: Sequence[Any],
        *,
        at_ms: int | None = None,
        command_next: int | None = None,
        then: Callable[[], None] | None = None,
        beside: Sequence[PartitionEvent] = (),
    ) -> None:
        """Queue one decision and fold it into the tentative state; `then` runs when it is durable.

        `run_id` None is a partition event; `beside` are others of the same decision, before the
        run's. Raises DecisionTooLarge with nothing changed.
        """
        tail = self.tail
        if tail is None or tail.ended is not None:
            return  # the claim is over: the decision and the state it stands on are dropped
        if at_ms is None:
            at_ms = self.now_ms()
        key = None if run_id is None else run_id.encode()
        first = self._n_next
        n_last = first + len(beside) + len(events) - 1
        if n_last == first and not beside:  # one event of a run: what a step's decision is
            value = self.codec.encode(events[0])
            told = self.command_next if command_next is None else command_next
            entry = (key, value, self._headers.pack(first, at_ms, told))
            entries: Sequence[Entry] = (_tuple(Entry, entry),)
            bytes_here = len(value) + HEADER_SIZE + (len(key) if key else 0)
            size = BATCH_OVERHEAD + RECORD_OVERHEAD + bytes_here
            stamp = (at_ms, self.claim_id, first, bytes_here, self.facts.unclean_total)
            stamps: Sequence[Stamp] = (_tuple(Stamp, stamp),)
        else:
            entries, stamps, size = self._encoded(key, beside, events, at_ms, command_next)
        # As the log counts it (`log.sizes`): what it would refuse is refused here, before anything
        # changes.
        if size > self._batch_size_max:
            raise DecisionTooLarge(size, self._batch_size_max)
        self._n_next = n_last + 1
        if command_next is not None:
            self.command_next = command_next
        self.event_count += n_last + 1 - first
        orders: list[tuple[int, Any]] | None = None
        if beside or run_id is None or (events and type(events[0]) is CommandRejected):
            orders = self._orders_of((*beside, *events), at_ms)
        if run_id is None:
            noted = partial(self._noted, orders or [], at_ms, then)
            tail.put(Decision(entries, size, n_last, at_ms, self.command_next, noted))
            return
        live = self._live
        before = state = live.get(run_id) or self.states.get(run_id)
        unacked = self._unacked.get(run_id)
        if unacked is None:
            unacked = self._unacked[run_id] = Unacked(before)
        else:
            unacked.count += 1
        for at, event in enumerate(events):
            state = evolve(state, run_id, event, stamps[at])
            if type(event) is TimerScheduled:
                self._on_timer(run_id, event)
        waiting = unacked.waiting = [] if then is None else [then]
        # What is known of it once it is acknowledged: no closure, which costs a cell for each name.
        queued = (run_id, unacked, state, events, stamps, waiting, orders, n_last - first)
        acked = partial(self._acked, queued)
        tail.put(_tuple(Decision, (entries, size, n_last, at_ms, self.command_next, acked)))
        if state is None:
            return
        if run_id in live:
            live[run_id] = state
        else:
            self.states[run_id] = state
        if state.red or state.stray:
            self._on_change(run_id)
        if state.event_count > self._events_max or state.byte_count > self._run_bytes_max:
            self._on_limit(run_id)

    def _encoded(
        self,
        key: bytes | None,
        beside: Sequence[PartitionEvent],
        events: Sequence[Any],
        at_ms: int,
        command_next: int | None,
    ) -> tuple[list[Entry], list[Stamp], int]:
        """A decision of several events as records, the stamps of `events`, and their size."""
        encode, pack, claim_id = self.codec.encode, self._headers.pack, self.claim_id
        n = self._n_next
        n_last = n + len(beside) + len(events) - 1
        around = HEADER_SIZE + (len(key) if key else 0)
        size = BATCH_OVERHEAD
        entries: list[Entry] = []
        stamps: list[Stamp] = []
        for event in beside:
            value = encode(event)
            entries.append(Entry(None, value, pack(n, at_ms, self.command_next)))
            size += RECORD_OVERHEAD + len(value) + HEADER_SIZE
            n += 1
        for event in events:
            value = encode(event)
            told = command_next if command_next is not None and n == n_last else self.command_next
            entries.append(Entry(key, value, pack(n, at_ms, told)))
            size += RECORD_OVERHEAD + len(value) + around
            stamps.append(Stamp(at_ms, claim_id, n, len(value) + around, self.facts.unclean_total))
            n += 1
        return entries, stamps, size

    def _noted(
        self,
        orders: list[tuple[int, Any]],
        at_ms: int,
        then: Callable[[], None] | None,
        offset: int,
    ) -> None:
        """A decision of the partition is durable: its first record stands at `offset`."""
        self._note_orders(orders, offset, at_ms)
        if then is not None:
            then()

    def _acked(self, queued: "_Queued", offset: int) -> None:
        """A decision of a run is durable: its first record stands at `offset`."""
        run_id, unacked, state, events, stamps, waiting, orders, behind_first = queued
        if orders:
            self._note_orders(orders, offset, stamps[0].at_ms)
        if state is not None:
            mark = (offset + behind_first, self.claim_id, stamps[-1].n)
            self.marks[run_id] = _tuple(Mark, mark)
            self.dirty[run_id] = None
        if unacked.count == 1:
            del self._unacked[run_id]
        else:
            unacked.count -= 1
            if not unacked.told:
                unacked.durable = state
            else:
                for event, stamp in zip(events, stamps, strict=True):
                    unacked.durable = evolve(unacked.durable, run_id, event, stamp)
        for waits in waiting:
            try:
                waits()
            except Exception as error:
                self._failed(run_id, error)

    def _orders_of(self, events: Sequence[Any], at_ms: int) -> list[tuple[int, Any]]:
        """Those events of a decision that are about commands to be parked or sent, each with its
        place in the batch; what they park is parked tentatively."""
        found = [(at, event) for at, event in enumerate(events) if isinstance(event, ORDERS)]
        for _, event in found:
            if isinstance(event, CommandParked):
                self.orders.park(event, at_ms)
        return found

    def _note_orders(self, orders: list[tuple[int, Any]], offset: int, at_ms: int) -> None:
        for at, event in orders:
            self.orders_durable.apply(event, offset + at, at_ms)
        if self.orders_durable.outbox:
            self.on_outbox()

    def report(self, record: Record) -> str | None:
        """Fold an AttemptReported that stands in the log; returns the run_id if it is known."""
        if record.key is None or record.header is None:
            return None
        run_id = record.key.decode("utf-8", "replace")
        state = self.states.get(run_id)
        header = RecordHeader.unpack(record.header)
        try:
            event = self.codec.decode(record.value or b"")
        except UndecodableRecord:
            return None  # evidence that nobody can read settles nothing; history shows it
        except SchemaUnavailable as error:
            if error.mends:
                raise
            return None  # no registry is set, and this owner's own claim is written without one
        if state is None or not isinstance(event, AttemptReported):
            return None
        stamp = stamp_of(header, record, self.facts)
        after = evolve(state, run_id, event, stamp)
        unacked = self._unacked.get(run_id)
        if unacked is not None:
            unacked.durable = evolve(unacked.durable, run_id, event, stamp)
            unacked.told = True
        if after is not None:
            self.states[run_id] = after
            self.marks[run_id] = Mark(record.offset, header.claim_id, header.n)
            self.dirty[run_id] = None
            if after.red or after.stray:
                self._on_change(run_id)
        return run_id

    def durable(self, run_id: str) -> RunState | None:
        """The state of a run as the log has acknowledged it."""
        unacked = self._unacked.get(run_id)
        return self.states.get(run_id) if unacked is None else unacked.durable

    def is_durable(self, run_id: str) -> bool:
        """Whether everything decided for the run is acknowledged."""
        return run_id not in self._unacked

    def when_durable(self, run_id: str, then: Callable[[], None]) -> None:
        """Call `then` once all that is decided for the run by now is acknowledged; now if it is."""
        unacked = self._unacked.get(run_id)
        if unacked is None:
            then()
        else:
            unacked.waiting.append(then)

    def unpack(self, run_id: str) -> None:
        """Somebody works on the run: it is read often, and packed each read makes it anew."""
        if self.states.packed(run_id) is not None:
            self.states[run_id] = self.states[run_id]

    def pack_later(self, run_id: str) -> None:
        """The run is idle or over: its state may be packed when there is time."""
        self._to_pack[run_id] = None

    @property
    def packing(self) -> int:
        """How many states wait to be packed."""
        return len(self._to_pack)

    def next_to_pack(self, count: int) -> list[str]:
        """The `count` that have waited longest, taken out of those that wait: `pack` each."""
        taken = list(itertools.islice(self._to_pack, count))
        for run_id in taken:
            del self._to_pack[run_id]
        return taken

    def pack(self, run_id: str) -> None:
        """Pack the run's state, later if something of it is not acknowledged yet."""
        if run_id in self._unacked:
            self._to_pack[run_id] = None
        else:
            self.states.pack(run_id, self.marks[run_id])
