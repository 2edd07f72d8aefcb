"""Load on any log without a worker: an owner that claims, and writes runs in many states."""

import itertools

from refold.log import Entry, Log, Topic
from refold_schemas.codec import KIND_CLAIM, KIND_EVENT, RecordHeader
from refold_schemas.events import (
    CommandRejected,
    Event,
    PartitionClaimed,
    RunCompleted,
    StepInDoubt,
    StepResolved,
    TimerFired,
    TimerScheduled,
)
from refold_schemas.values import encode_value
from support.written_log import CODEC, acted, done, intended, started

AT_MS = 1_785_585_600_000
BUNDLE = 40


class Load:
    """Writes one partition; `claim` begins a new owner, whose predecessor may go on for a while."""

    def __init__(self, log: Log, partition: int) -> None:
        self.log, self.partition = log, partition
        self._epoch = 0
        self._claim_id, self._n = b"", 0
        self._runs = itertools.count()
        self._at_ms = AT_MS
        self.count = 0

    def _entry(self, run_id: str | None, event: Event, kind: int = KIND_EVENT) -> Entry:
        self._at_ms += 7
        n = 0 if kind == KIND_CLAIM else self._n
        header = RecordHeader(kind, self._claim_id, self._epoch, n, self._at_ms, 0)
        if kind == KIND_EVENT:
            self._n += 1
        self.count += 1
        return Entry(
            None if run_id is None else run_id.encode(), CODEC.encode(event), header.pack()
        )

    async def claim(self) -> None:
        self._epoch += 1
        self._claim_id = (self._epoch * 1_000 + self.partition).to_bytes(16, "big")
        self._n = 0
        event = PartitionClaimed(
            f"worker-{self._epoch}", f"p{self._epoch}", "shop", "0", ("shop@1",), ("t",), 1, 1
        )
        await self.log.append(Topic.EVENTS, self.partition, [self._entry(None, event, KIND_CLAIM)])

    async def runs(self, count: int) -> None:
        """So many runs side by side: ended, waiting, under way, in doubt, settled, refused."""
        names = [f"run-{self.partition}-{next(self._runs)}" for _ in range(count)]
        entries: list[Entry] = []
        for at, run_id in enumerate(names):
            entries += (self._entry(run_id, one) for one in started("a", "b", "c"))
            entries.append(self._entry(run_id, done("a#1", {"pence": at})))
            entries.append(self._entry(run_id, intended("b#1", policy="keyed")))
        for at, run_id in enumerate(names):
            more: list[Event] = []
            if at % 6 == 0:
                more = [acted("b#1"), RunCompleted(encode_value(at))]
            elif at % 6 == 1:
                more = [StepInDoubt("b#1", 1, "no answer", True)]
            elif at % 6 == 2:
                more = [StepInDoubt("b#1", 1, "no answer", False)]
                more.append(
                    StepResolved("b#1", 1, "absent", "lookup", None, None, False, None, None, None)
                )
                more.append(intended("b#1", attempt=2, policy="keyed"))
            elif at % 6 == 3:
                more = [acted("b#1"), TimerScheduled("sleep:s#1", 1, "sleep", "s#1", AT_MS)]
                if at % 12 == 3:
                    more.append(TimerFired("sleep:s#1", 1))
            elif at % 6 == 4:
                more = [CommandRejected(f"c{at}", "CancelRun", at, "duplicate", "again", None)]
            entries += (self._entry(run_id, one) for one in more)
        for first in range(0, len(entries), BUNDLE):
            await self.log.append(Topic.EVENTS, self.partition, entries[first : first + BUNDLE])
