"""Logs that break their contract on purpose: the conformance suite has to fail each of them.

Each wraps a sound handle and breaks one promise, in a way that a real client or broker has broken
it; `CAUGHT_BY` names the check that notices.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from refold.log import Ack, Entry, Log, LogFacts, Record, Suggestion, Topic, Upgrade, entry_size
from refold_schemas.errors import BatchTooLarge


class WrappedLog:
    """A log that hands every call on to `inner`: what the broken ones are made from."""

    def __init__(self, inner: Log) -> None:
        self.inner = inner

    @property
    def url(self) -> str:
        """As inner."""
        return self.inner.url

    @property
    def facts(self) -> LogFacts:
        """As inner."""
        return self.inner.facts

    async def open(self, *, create: bool) -> bool:
        """As inner."""
        return await self.inner.open(create=create)

    async def upgrade(self, *, dry_run: bool) -> Upgrade:
        """As inner."""
        return await self.inner.upgrade(dry_run=dry_run)

    async def close(self) -> None:
        """As inner."""
        await self.inner.close()

    def idle_when(self, is_idle: Callable[[], bool]) -> None:
        """Passed on."""
        self.inner.idle_when(is_idle)

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """As inner."""
        return await self.inner.append(topic, partition, entries)

    async def read(
        self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
    ) -> Sequence[Record]:
        """As inner."""
        return await self.inner.read(topic, partition, offset, size_max=size_max)

    async def bounds(self, topic: Topic, partition: int) -> tuple[int, int]:
        """As inner."""
        return await self.inner.bounds(topic, partition)

    async def wait(self, topic: Topic, partition: int, offset: int, *, timeout_ms: int) -> bool:
        """As inner."""
        return await self.inner.wait(topic, partition, offset, timeout_ms=timeout_ms)

    async def suggest(self, owner: str) -> Suggestion:
        """As inner."""
        return await self.inner.suggest(owner)

    async def trim(self, topic: Topic, partition: int, before_offset: int) -> int:
        """As inner."""
        return await self.inner.trim(topic, partition, before_offset)

    async def owner_lives(self, partition: int) -> bool | None:
        """As inner."""
        return await self.inner.owner_lives(partition)

    async def give_up(self, owner: str) -> None:
        """As inner."""
        await self.inner.give_up(owner)


class LosesTail(WrappedLog):
    """Drops what no longer fits 16 KiB, as a builder does whose None nobody looks at."""

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Store the records that fit, acknowledge them all."""
        room = 16 * 1024
        fitting = list(entries[:1])
        for entry in entries[1:]:
            room -= entry_size(entry)
            if room < 0:
                break
            fitting.append(entry)
        return await self.inner.append(topic, partition, fitting if entries else entries)


class AcknowledgesEarly(WrappedLog):
    """Answers with the offset that is to be expected, and stores a little later (acks=0)."""

    def __init__(self, inner: Log) -> None:
        super().__init__(inner)
        self._later: set[asyncio.Task[None]] = set()

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Acknowledge, then store."""
        _, end = await self.inner.bounds(topic, partition)
        task = asyncio.create_task(self._store(topic, partition, entries))
        self._later.add(task)
        task.add_done_callback(self._later.discard)
        return Ack(end)

    async def _store(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> None:
        await asyncio.sleep(0.01)
        with contextlib.suppress(Exception):  # nobody is left to be told
            await self.inner.append(topic, partition, entries)

    async def close(self) -> None:
        """Close; what was acknowledged and not stored yet is lost."""
        for task in self._later:
            task.cancel()
        await asyncio.gather(*self._later, return_exceptions=True)
        await self.inner.close()


class HidesForeign(WrappedLog):
    """Shows of `events` only what this handle wrote, so that nobody ever seems to claim."""

    def __init__(self, inner: Log) -> None:
        super().__init__(inner)
        self._mine: set[tuple[int, int]] = set()

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append and remember the offsets."""
        ack = await self.inner.append(topic, partition, entries)
        base = -1 if ack.offset is None else ack.offset
        self._mine.update((partition, base + at) for at in range(len(entries)))
        return ack

    async def read(
        self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
    ) -> Sequence[Record]:
        """Read, and leave out what others wrote."""
        found = await self.inner.read(topic, partition, offset, size_max=size_max)
        if topic is not Topic.EVENTS:
            return found
        return [record for record in found if (partition, record.offset) in self._mine]


class DoublesBatch(WrappedLog):
    """Repeats a batch whose answer was late, as a client without an idempotent producer does."""

    def __init__(self, inner: Log) -> None:
        super().__init__(inner)
        self._count = 0

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Store every third batch twice."""
        ack = await self.inner.append(topic, partition, entries)
        self._count += 1
        if self._count % 3 == 0:
            await self.inner.append(topic, partition, entries)
        return ack


class SuccessForUnknown(WrappedLog):
    """Makes an acknowledgement of an answer that it did not get."""

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append; whatever goes wrong, say where the batch would be."""
        _, end = await self.inner.bounds(topic, partition)
        try:
            ack = await self.inner.append(topic, partition, entries)
        except BatchTooLarge:
            raise
        except Exception:
            return Ack(end)
        return ack if ack.offset is not None and ack.offset >= 0 else Ack(end)


class ForgetsHeaders(WrappedLog):
    """Drops an empty header: null and empty are the same to it."""

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append with other headers than those given."""
        changed = [entry._replace(header=entry.header or None) for entry in entries]
        return await self.inner.append(topic, partition, changed)


class ReadsFromTheStart(WrappedLog):
    """Goes on at what is there when the offset is not kept any more (`auto.offset.reset`)."""

    async def read(
        self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
    ) -> Sequence[Record]:
        """Read from the start of the log if `offset` lies before it."""
        start, _ = await self.inner.bounds(topic, partition)
        return await self.inner.read(topic, partition, max(start, offset), size_max=size_max)


class SaysItTrimmed(WrappedLog):
    """Answers a trim with the offset that was asked for, and lets everything stand."""

    async def trim(self, topic: Topic, partition: int, before_offset: int) -> int:
        """Trim nothing."""
        return before_offset


class SuggestsToAll(WrappedLog):
    """Takes every owner for the only one."""

    async def suggest(self, owner: str) -> Suggestion:
        """Suggest every partition."""
        await self.inner.suggest(owner)
        return Suggestion(frozenset(range(self.inner.facts.partition_count)))


class BuriesEverybody(WrappedLog):
    """Takes who is not here for dead."""

    async def owner_lives(self, partition: int) -> bool | None:
        """Say that nobody lives."""
        await self.inner.owner_lives(partition)
        return False


CAUGHT_BY: dict[type[WrappedLog], str] = {
    LosesTail: "check_a_batch_does_not_lose_its_tail",
    AcknowledgesEarly: "check_what_is_acknowledged_can_be_read",
    HidesForeign: "check_a_foreign_append_shows_as_a_gap",
    DoublesBatch: "check_nothing_is_stored_twice",
    SuccessForUnknown: "check_unknown_is_not_reported_as_success",
    ForgetsHeaders: "check_bytes_come_back_as_they_were",
    ReadsFromTheStart: "check_what_is_trimmed_is_out_of_range",
    SaysItTrimmed: "check_a_trim_never_reaches_beyond_the_end",
    SuggestsToAll: "check_partitions_are_shared_evenly",
    BuriesEverybody: "check_an_owner_that_was_suggested_is_not_called_dead",
}
"""Each broken log, and the check of `refold.testing.log_conformance` that must fail for it."""
