"""Claiming a partition: the claim is an event, and log order decides who owns.

Source: design, section 3.1, rule 1.
"""

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from refold.engine import checkpoints
from refold.engine.clock import Clock
from refold.engine.ending import ClaimFenced, ClaimRefused, ClaimUnknown, LogWasCut
from refold.engine.settings import WorkerSettings
from refold.log.port import Entry, Log, Topic
from refold_projections.fold import PartitionFold, Position
from refold_projections.fold.learning import learn_and_fold
from refold_schemas.codec import KIND_CLAIM, KIND_EVENT, Codec, RecordHeader
from refold_schemas.errors import OffsetOutOfRange, SchemaUnavailable
from refold_schemas.events import PartitionClaimed, PartitionReleased

READ_BYTES: Final = 4 << 20
IDS_THAT_COUNT: Final = 2
"""Commands and events: what the others hold can be made anew."""


@contextmanager
def collections_paused() -> Iterator[None]:
    """No garbage collection while a hundred thousand states are made that all stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Claim(NamedTuple):
    """A claim that counts, with everything before it folded.

    Moments of it on our boot clock (`sent`, `acked`) and on the log's clock (`append_ms`).
    """

    restored: checkpoints.Restored
    epoch: int
    sent_boot_ms: int
    acked_boot_ms: int
    append_ms: int


class Claiming:
    """One attempt to own a partition, as `claimed` says."""

    def __init__(
        self,
        log: Log,
        partition: int,
        codec: Codec,
        clock: Clock,
        settings: WorkerSettings,
        claimed: PartitionClaimed,
        entropy: Callable[[int], bytes],
    ) -> None:
        self.log, self.partition, self.codec = log, partition, codec
        self.clock, self.settings = clock, settings
        self.claimed, self.entropy = claimed, entropy

    async def claim(self) -> Claim:
        """Append a claim, unconditionally, and fold everything up to and including it.

        Raises ClaimRefused before anything is written if the log's facts are not those of the last
        claim, or afterwards if a clock is wrong; ClaimUnknown or ClaimFenced if this claim does
        not own the partition; LogWasCut if a checkpoint, or what was decided, stands behind the
        log's end; EventsGone if events are missing that nothing stands in for; SchemaUnavailable
        if a record's schema is not known and cannot be learnt now.
        """
        with collections_paused():
            restored = await self._restored()
        fold = restored.fold
        self._check_log(restored)
        self._check_facts(fold)
        await self._check_commands(fold)
        claim_id = self.entropy(16)
        epoch = fold.position.claim_epoch + 1
        asked_ms, sent_boot_ms = self.clock.wall_ms(), self.clock.boot_ms()
        header = RecordHeader(KIND_CLAIM, claim_id, epoch, 0, asked_ms, 0)
        entry = Entry(None, self.codec.encode(self.claimed), header.pack())
        offset = await self._append(entry)
        acked_boot_ms, acked_ms = self.clock.boot_ms(), self.clock.wall_ms()
        append_ms = await self._read_on(fold, offset + 1)
        if fold.position.last_offset != offset or fold.position.claim_id != claim_id:
            newer = fold.position.claim_id
            raise ClaimFenced(self.partition, claim_id, newer, fold.position.last_offset)
        skew_ms = max(asked_ms - append_ms, append_ms - acked_ms)
        if skew_ms > self.settings.clock_skew_max_ms:
            # At once: else each start with a wrong clock would count as an unclean end.
            with suppress(ClaimUnknown):  # then it counts as one; nothing worse follows
                await self.give_back("a clock is wrong", fold.position)
            raise ClaimRefused(
                f"partition {self.partition}: this machine's wall clock and the log's differ by "
                f"{skew_ms / 1000:.1f} s",
                kept="everything; the claim was written and given back",
                next="set the clock, then start the worker again",
            )
        return Claim(restored, epoch, sent_boot_ms, acked_boot_ms, append_ms)

    async def _restored(self) -> checkpoints.Restored:
        """The fold up to the log's end."""
        for left in range(checkpoints.TRIMMED_UNDER_US_MAX - 1, -1, -1):
            restored = await checkpoints.load(self.log, self.partition, self.codec)
            try:
                await self._read_on(restored.fold, None)
            except OffsetOutOfRange:  # trimmed under us: a newer checkpoint stands behind that
                if not left:
                    raise
            else:
                return restored
        raise AssertionError("the last try returns or raises")

    async def _check_commands(self, fold: PartitionFold) -> None:
        """Nothing was decided that the log does not hold: it would be lost without a word."""
        _, end = await self.log.bounds(Topic.COMMANDS, self.partition)
        if fold.position.command_next > end:
            raise LogWasCut(
                self.partition,
                f"its commands end at {end}, below {fold.position.command_next}, "
                "up to which they were decided",
            )

    async def give_back(self, why: str, at: Position) -> None:
        """Release what was claimed just now, before anything else is written under the claim.

        Raises ClaimUnknown.
        """
        released = self.codec.encode(PartitionReleased(why))
        now_ms = self.clock.wall_ms()
        header = RecordHeader(
            KIND_EVENT, at.claim_id, at.claim_epoch, at.n_next, now_ms, at.command_next
        )
        await self._append(Entry(None, released, header.pack()))

    async def _append(self, entry: Entry) -> int:
        try:
            async with asyncio.timeout(self.settings.append_timeout_ms / 1000):
                ack = await self.log.append(Topic.EVENTS, self.partition, [entry])
        except Exception as error:  # whatever it was: the claim may be stored, now or later
            raise ClaimUnknown(self.partition, f"{type(error).__name__}: {error}") from error
        if ack.stored_at is None:
            raise ClaimUnknown(self.partition, f"the claim was acknowledged at {ack.offset}")
        return ack.stored_at

    async def _read_on(self, fold: PartitionFold, until: int | None) -> int:
        """Fold from the fold's position to the log's end, or up to `until`.

        Returns the append time of the last record.
        """
        append_ms = 0
        _, end = await self.log.bounds(Topic.EVENTS, self.partition)
        if fold.position.offset_next > end:
            raise LogWasCut(
                self.partition,
                f"it ends at {end}, below {fold.position.offset_next} where a checkpoint stands",
            )
        stop = end if until is None else until
        while fold.position.offset_next < stop:
            records = await self.log.read(
                Topic.EVENTS, self.partition, fold.position.offset_next, size_max=READ_BYTES
            )
            for record in records:
                if record.offset >= stop:
                    return append_ms
                try:
                    fold.apply(record)
                except SchemaUnavailable as unknown:
                    await learn_and_fold(fold, record, unknown)
                append_ms = record.append_ms
            if not records:
                if until is None:
                    return append_ms  # holes at the end
                raise ClaimUnknown(
                    self.partition, "the claim is not found where it was acknowledged"
                )
            await asyncio.sleep(0)
        return append_ms

    def _check_log(self, restored: checkpoints.Restored) -> None:
        """No claim stands, but a checkpoint of another log does: its events are lost.

        To begin anew would be to decide every command again, and to do everything twice.
        """
        if restored.fold.facts.app or not restored.topic_ids:
            return
        before, ids = restored.topic_ids[:IDS_THAT_COUNT], self.log.facts.topic_ids[:IDS_THAT_COUNT]
        if before == ids:
            return
        raise ClaimRefused(
            f"partition {self.partition} of {self.log.facts.namespace!r} has lost its events: "
            "no claim stands in them, and its snapshots are of a log that was there before",
            kept="everything; nothing was written, no command was decided again",
            next="restore the events from their copy; to begin anew all the same see "
            "docs/errors/R015.md",
        )

    def _check_facts(self, fold: PartitionFold) -> None:
        before, facts = fold.facts, self.log.facts
        routed = self.claimed.partition_count
        if not before.app:
            return
        level = self.settings.format_level
        if before.app != self.claimed.app:
            what = f"belongs to app {before.app!r}, not {self.claimed.app!r}"
            then = f"give this app a namespace of its own: {namespace_place(self.log.url)}"
        elif before.partition_count != routed:
            what = f"has runs routed over {before.partition_count} partitions, not over {routed}"
            then = (
                "find out which partition's first claim says another count: `refold namespace show`"
            )
        elif before.topic_ids[:IDS_THAT_COUNT] != facts.topic_ids[:IDS_THAT_COUNT]:
            what = "is not the log that was claimed before: its topics were made anew"
            then = "find out who deleted or restored it before a worker serves it"
        elif before.format_level > level:
            what = f"is written in format level {before.format_level}, this version knows {level}"
            then = "start a version of refold that knows it"
        else:
            return
        raise ClaimRefused(
            f"partition {self.partition} of {self.log.facts.namespace!r} {what}",
            kept="everything; nothing was written",
            next=then,
        )


def namespace_place(url: str) -> str:
    """Where a log's URL names its namespace.

    >>> namespace_place("kafka://b1:9092/refunds")
    'another name behind the brokers in its --log URL (kafka://HOST:PORT/NAME)'
    """
    scheme = url.partition("://")[0]
    if scheme == "kafka":
        return "another name behind the brokers in its --log URL (kafka://HOST:PORT/NAME)"
    if scheme == "memory":
        return "another name in its --log URL (memory://NAME)"
    return "another name behind ?ns= in its --log URL"
