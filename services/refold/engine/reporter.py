"""Sends what a process learns too late as AttemptReported: evidence, outside the claim rule."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from refold.log.partitions import partition_for
from refold.log.port import Entry, Log, Topic
from refold.log.sizes import batch_size
from refold_schemas.codec import KIND_REPORT, Codec, RecordHeader
from refold_schemas.events import AttemptReported
from refold_schemas.values import ErrorInfo, Value

if TYPE_CHECKING:
    from refold.engine.calls import Call
    from refold.engine.clock import Clock


class Reporter:
    """One per worker: it outlives the claims whose calls it reports.

    Reports are a set, so one whose append ended as unknown is simply sent again, `tries` times.
    """

    def __init__(
        self,
        log: Log,
        codec: Codec,
        clock: "Clock",
        name: str,
        *,
        routed: int,
        tries: int,
        on_lost: Callable[[str, str], None],
        wait_s: float = 0.2,
        timeout_s: float = 10.0,
    ) -> None:
        """`on_lost(run_id, text)` is told of a report that could not be stored.

        `routed` is over how many partitions runs are routed.
        """
        self._routed = routed
        self._log, self._codec, self._clock, self._name = log, codec, clock, name
        self._tries, self._wait_s, self._timeout_s = tries, wait_s, timeout_s
        self._on_lost = on_lost
        self._tasks: set[asyncio.Task[None]] = set()
        self.sent = 0
        self.lost = 0

    def report(
        self,
        call: "Call",
        outcome: str,
        result: Value | None,
        error: ErrorInfo | None,
    ) -> None:
        """Report an attempt by its intent's `(claim_id, n)`; returns at once."""
        event = AttemptReported(
            call.slot, call.attempt, call.effect_key, outcome, result, error, self._name
        )
        header = RecordHeader(KIND_REPORT, call.claim_id, 0, call.n, self._clock.wall_ms(), 0)
        entry = Entry(call.run_id.encode(), self._codec.encode(event), header.pack())
        # That it happened is what counts, where what it returned is too large to be said.
        bare = entry._replace(value=self._codec.encode(replace(event, result=None, error=None)))
        task = asyncio.get_running_loop().create_task(self._send(call, outcome, entry, bare))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send(self, call: "Call", outcome: str, entry: Entry, bare: Entry) -> None:
        partition = partition_for(call.run_id, self._routed)
        for attempt in range(self._tries):
            fits = batch_size([entry]) <= self._log.facts.batch_size_max  # which may have fallen
            try:
                async with asyncio.timeout(self._timeout_s):
                    ack = await self._log.append(Topic.EVENTS, partition, [entry if fits else bare])
            except Exception:  # whatever it was, silence too: it may be stored or not
                ack = None
            if ack is not None and ack.offset is not None and ack.offset >= 0:
                self.sent += 1
                return
            await asyncio.sleep(self._wait_s * 2 ** min(attempt, 6))
        self.lost += 1
        told = f"a late report of {call.slot}, attempt {call.attempt} ({outcome}) was not stored"
        self._on_lost(call.run_id, f"{told}: its slot stays in doubt (R022)")

    async def drained(self, timeout_s: float) -> None:
        """Wait for what is being sent, at most `timeout_s`."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
