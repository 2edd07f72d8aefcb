"""The tail of an owned partition: group commit, and the acknowledgement as the compare-and-set.

Source: design, section 3.1, rules 3 to 5 and section 3.2. One batch is in flight; what is decided
meanwhile gathers. An event's n is given when it is decided, so batches leave in that order.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from refold.engine.append_stats import AppendStats
from refold.engine.clock import Clock
from refold.engine.ending import ClaimEnded, ClaimFenced, ClaimUnknown, LogWasCut
from refold.engine.log_clock import LogClock
from refold.log.port import Entry, Log, Record, Topic
from refold_projections.fold import NO_CLAIM, Position, Verdict, judge
from refold_schemas.codec import RecordHeader
from refold_schemas.errors import BatchTooLarge, HeaderUnreadable, RefoldError, SchemaUnavailable
from refold_schemas.values import line_of


class Decision(NamedTuple):
    """The events of one decision: never cut. `acked(offset_first)` is called when durable."""

    entries: Sequence[Entry]
    size: int
    n_last: int
    at_ms: int
    command_next: int
    acked: Callable[[int], None]


class Tail:
    """Appends decisions under one claim, and says when it is over (`ended`)."""

    def __init__(
        self,
        log: Log,
        partition: int,
        claim_id: bytes,
        position: Position,
        *,
        batch_bytes: int,
        timeout_ms: int,
        on_report: Callable[[Record], None],
        on_end: Callable[[ClaimEnded], None],
        clock: Clock,
        log_clock: LogClock,
    ) -> None:
        self.log, self.partition, self.claim_id = log, partition, claim_id
        self.position = position
        """The durable position: everything before it was read or acknowledged under rule 4."""
        self.batch_bytes, self.timeout_ms = batch_bytes, timeout_ms
        self.queued_bytes = 0
        self.appends = 0
        self.stats = AppendStats()
        self.ended: ClaimEnded | None = None
        self._on_report, self._on_end = on_report, on_end
        self._clock, self._log_clock = clock, log_clock
        self._queue: deque[Decision] = deque()
        self._sent: Sequence[Entry] = ()
        """The batch in flight: of this claim nothing else can come to count."""
        self._copied_at = -1
        """Where a stored copy of it begins that stands before it, and counts instead of it."""
        self._flight: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def put(self, decision: Decision) -> None:
        """Queue a decision; it leaves with the next batch. Ignored once the claim has ended."""
        if self.ended is not None:
            return
        self._queue.append(decision)
        self.queued_bytes += decision.size
        if self._flight is None:
            self._idle.clear()
            self._flight = asyncio.get_running_loop().create_task(self._fly())

    @property
    def quiet(self) -> bool:
        """Whether everything decided is durable."""
        return self._flight is None

    @property
    def keeps_up(self) -> bool:
        """Whether no more is queued than the batch in flight and the one that gathers."""
        return self.queued_bytes < 2 * self.batch_bytes

    async def drained(self) -> None:
        """Wait until everything decided is durable, or the claim has ended."""
        await self._idle.wait()

    def end(self, why: ClaimEnded) -> None:
        """The claim is over: nothing more is sent, nothing in flight counts as acknowledged."""
        if self.ended is None:
            self.ended = why
            self._queue.clear()
            self._idle.set()
            self._on_end(why)

    async def _fly(self) -> None:
        # The task's first turn comes after this one of the loop: what is decided in it is together.
        try:
            while self._queue and self.ended is None:
                batch = self._next_batch()
                await self._append(batch)
        except ClaimEnded as why:
            self.end(why)
        except RefoldError as error:  # the gap cannot be read: nobody knows who owns
            told = f"what stands before the acknowledged batch cannot be read: {error.message}"
            self.end(ClaimUnknown(self.partition, told))
        except Exception as fault:  # a defect must not stop the tail without a word
            broken = ClaimEnded(
                f"partition {self.partition}: the engine failed: {line_of(fault)}",
                kept="every acknowledged event",
                next="the worker claims again; report this with the traceback if it repeats",
            )
            broken.__cause__ = fault
            self.end(broken)
        finally:
            self._flight = None
            if not self._queue:
                self._idle.set()

    def _next_batch(self) -> list[Decision]:
        if self.queued_bytes <= self.batch_bytes:  # nothing is in flight now: all of it is queued
            batch = list(self._queue)
            self._queue.clear()
            return batch
        size = 0
        batch = []
        while self._queue and (not batch or size + self._queue[0].size <= self.batch_bytes):
            decision = self._queue.popleft()
            batch.append(decision)
            size += decision.size
        return batch

    async def _append(self, batch: list[Decision]) -> None:
        entries = self._sent = [entry for decision in batch for entry in decision.entries]
        offset = await self._send(entries)
        if self.ended is not None:
            raise self.ended
        before = self.position
        if offset < before.offset_next:
            raise LogWasCut(
                self.partition,
                f"an append was acknowledged at offset {offset}, below {before.offset_next} "
                "which was read before",
            )
        if offset > before.offset_next:
            await self._read_gap(offset)
            before = self.position
        self._sent, copied_at = (), self._copied_at
        self._copied_at = -1
        last = batch[-1]
        if before.n_next <= last.n_last:
            self.position = Position(
                offset + len(entries),
                before.claim_epoch,
                before.claim_id,
                last.n_last + 1,
                False,
                last.command_next,
                max(before.time_last_ms, last.at_ms),
                offset + len(entries) - 1,
                self.claim_id,
                last.n_last,
            )
        else:  # a stored copy in the gap counted already; this one is the duplicate
            self.position = before._replace(
                offset_next=offset + len(entries),
                last_offset=offset + len(entries) - 1,
                last_claim_id=self.claim_id,
                last_n=last.n_last,
            )
            offset = copied_at if copied_at >= 0 else offset  # where every reader sees its events
        for decision in batch:
            self.queued_bytes -= decision.size
            decision.acked(offset)
            offset += len(decision.entries)

    async def _send(self, entries: Sequence[Entry]) -> int:
        """The offset of the acknowledged batch. Anything but an offset is unknown (rule 5)."""
        self.appends += 1
        sent_boot_ms, sent_s = self._clock.boot_ms(), time.perf_counter()
        # What asyncio.timeout does, at a third of its price: it is paid at every durable step.
        flight, late = self._flight, False

        def give_up() -> None:
            nonlocal late
            late = True
            if flight is not None:
                flight.cancel()

        timer = asyncio.get_running_loop().call_later(self.timeout_ms / 1000, give_up)
        try:
            ack = await self.log.append(Topic.EVENTS, self.partition, entries)
        except asyncio.CancelledError:
            if not late:
                raise
            told = f"no acknowledgement within {self.timeout_ms / 1000:g} s"
            raise ClaimUnknown(self.partition, told) from None
        except BatchTooLarge as refused:
            raise ClaimEnded(
                f"partition {self.partition}: the log takes less than it said: {refused.message}",
                kept="every acknowledged event; nothing of that batch was stored",
                next="nothing: the worker claims again and goes by this limit, and what is over it "
                "is refused by itself (R310 says how to raise it)",
            ) from refused
        except Exception as error:  # whatever it was: the batch may be stored, now or later
            raise ClaimUnknown(self.partition, f"{type(error).__name__}: {error}") from error
        finally:
            timer.cancel()
        if ack.stored_at is None:
            raise ClaimUnknown(self.partition, f"the log acknowledged with offset {ack.offset}")
        self._log_clock.note(ack.append_ms, sent_boot_ms)
        self.stats.add(len(entries), time.perf_counter() - sent_s)
        return ack.stored_at

    async def _read_gap(self, end: int) -> None:
        """Read what stands between our position and our acknowledged batch (rule 4)."""
        while self.position.offset_next < end:
            await self._read_some(end)

    async def look(self) -> None:
        """Read what others appended while nothing of ours is in flight: reports, claims, a cut."""
        if self._flight is not None or self.ended is not None:
            return
        start = self.position.offset_next
        try:
            _, end = await self.log.bounds(Topic.EVENTS, self.partition)
            if self._flight is not None or self.ended is not None:
                return
            if self.position.offset_next != start:
                return  # an append was faster than the answer, which is older than what is known
            if end < self.position.offset_next:
                raise LogWasCut(
                    self.partition,
                    f"the log ends at {end}, below {self.position.offset_next}, which was read",
                )
            while self.position.offset_next < end and self._flight is None:
                await self._read_some(end)
        except ClaimEnded as why:
            self.end(why)
        except RefoldError:
            return  # not reachable for a moment: the next append or look will tell

    async def _read_some(self, end: int) -> None:
        start = self.position.offset_next
        # One record back, to see that it is still the one that was read.
        anchor = self.position.last_offset
        records = await self.log.read(
            Topic.EVENTS, self.partition, anchor if anchor >= 0 else start
        )
        if self.position.offset_next != start:
            return
        if records and records[0].offset == anchor:
            self._check_anchor(records[0])
            # A read may return no more than its first record: that says nothing of what follows.
            records = records[1:] or await self.log.read(Topic.EVENTS, self.partition, start)
            if self.position.offset_next != start:
                return
        progress = False
        for record in records:
            if record.offset < start:
                continue
            if record.offset >= end:
                break
            header = _header(record)
            self.position, verdict = judge(self.position, record.offset, header)
            progress = True
            if verdict is Verdict.CLAIM and header is not None:
                raise ClaimFenced(self.partition, self.claim_id, header.claim_id, record.offset)
            if self.position.claim_broken or (
                verdict is Verdict.COUNTS and not self._is_ours(record)
            ):
                told = "a record of this claim stands in the log that its owner did not write"
                raise ClaimUnknown(self.partition, told)
            if verdict is Verdict.COUNTS and self._copied_at < 0:
                self._copied_at = record.offset
            if verdict is Verdict.REPORT:
                try:
                    self._on_report(record)
                except SchemaUnavailable as unknown:
                    # A newer worker's words. What a fold does not know it asks for: claim anew.
                    told = f"a report at offset {record.offset} cannot be read yet"
                    raise ClaimUnknown(self.partition, told) from unknown
        if not progress:  # only holes are left
            self.position = self.position._replace(offset_next=end)

    def _is_ours(self, record: Record) -> bool:
        """Whether a record that counts is a stored copy of what is in flight.

        Anything else stands where one of ours will be skipped: our state is not the log's then.
        """
        written = (record.key, record.value, record.header)
        return any(written == tuple(entry) for entry in self._sent)

    def _check_anchor(self, record: Record) -> None:
        header = _header(record)
        position = self.position
        found = (NO_CLAIM, -1) if header is None else (header.claim_id, header.n)
        if found != (position.last_claim_id, position.last_n):
            raise LogWasCut(
                self.partition,
                f"the record at offset {record.offset} is not the one that was read there before",
            )


def _header(record: Record) -> RecordHeader | None:
    if record.header is None:
        return None
    try:
        return RecordHeader.unpack(record.header)
    except HeaderUnreadable:
        return None
