"""What a worker is like, as samples: read from fields that the engine keeps, when somebody asks.

Nothing is counted for it while runs go on, but two additions for each batch. It is called in the
thread of whoever scrapes, so a loop that is held up is seen to be.
"""

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future

from refold.engine.append_stats import EVENTS, SECONDS, AppendStats
from refold.log.port import Topic
from refold.telemetry import Buckets, Sample
from refold.worker.worker import Worker
from refold_schemas.errors import RefoldError

REASONS = {"R011": "fenced", "R012": "unknown", "R013": "cut", "R014": "released"}
"""Why a claim ended, by its error's code; anything else is a defect: failed."""
ENDS_WITHIN_S = 2.0
"""How long the log may take to say where its commands end; else the lag is left out."""


class WorkerMetrics:
    """Samples of one worker. Call it from any thread but its loop's."""

    def __init__(self, worker: Worker, loop: asyncio.AbstractEventLoop) -> None:
        self._worker, self._loop = worker, loop

    def __call__(self) -> Iterable[Sample]:
        """Everything that the catalogue has of a worker."""
        from refold import __version__

        worker = self._worker
        name = ("worker", __version__, worker.log.facts.namespace)
        yield Sample("refold_service_info", name, 1)
        stats = worker.stats()
        yield Sample("refold_worker_partitions", (), stats["partitions"])
        for field in ("claims", "appends", "events", "commands"):
            yield Sample(f"refold_worker_{field}_total", (), stats[field])
        ends = dict.fromkeys((*REASONS.values(), "failed"), 0)
        for code, count in list(worker.ends.items()):
            ends[REASONS.get(code, "failed")] += count
        for reason, count in ends.items():
            yield Sample("refold_worker_claims_ended_total", (reason,), count)
        stalls, silent_s = worker.stalls
        yield Sample("refold_worker_loop_stalls_total", (), stalls)
        yield Sample("refold_worker_loop_silent_seconds", (), silent_s)
        owners = list(worker.owners.items())
        appends = AppendStats()
        for one in (worker.append_stats, *(owner.tail.stats for _, owner in owners)):
            appends.merge(one)
        seconds = Buckets(SECONDS, tuple(appends.seconds), appends.seconds_sum)
        yield Sample("refold_worker_append_seconds", (), seconds)
        events = Buckets(EVENTS, tuple(appends.events), appends.events_sum)
        yield Sample("refold_worker_batch_events", (), events)
        for partition, owner in owners:
            at = (str(partition),)
            yield Sample("refold_worker_queue_bytes", at, owner.tail.queued_bytes)
            orders = owner.books.orders_durable
            yield Sample("refold_worker_commands_parked", at, len(orders.parked))
            yield Sample("refold_worker_outbox", at, len(orders.outbox))
            # Those that a record in the log is known of: a state may be of a decision on its way.
            yield Sample("refold_worker_runs", at, len(owner.books.marks))
            yield Sample("refold_worker_actors", at, len(owner.driver.actors))
            yield Sample("refold_worker_calls", at, len(owner.attempts.calls))
            overdue_s = owner.timers.overdue_ms / 1000
            yield Sample("refold_worker_timer_overdue_seconds", at, overdue_s)
        for partition, lag in self._lag().items():
            yield Sample("refold_worker_commands_lag_records", (str(partition),), lag)

    def _lag(self) -> dict[int, int]:
        """Of each partition the commands that are not decided; empty if the log does not say."""
        asked: Future[dict[int, int]]
        try:
            asked = asyncio.run_coroutine_threadsafe(self._ask(), self._loop)
        except RuntimeError:  # the loop is closed: the worker has ended
            return {}
        try:
            return asked.result(ENDS_WITHIN_S)
        except (TimeoutError, RefoldError):
            asked.cancel()
            return {}

    async def _ask(self) -> dict[int, int]:
        found = {}
        for partition, owner in list(self._worker.owners.items()):
            _, end = await self._worker.log.bounds(Topic.COMMANDS, partition)
            # The durable position: one that is only decided is not seen by anybody else yet.
            found[partition] = max(end - owner.tail.position.command_next, 0)
        return found
