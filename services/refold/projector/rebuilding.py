"""Blue/green: fills the other set from the log, verifies it, and makes it the live one.

What was stopped, or killed, is taken up where its positions are; readers see the old set until the
swap, whole, and the new one from then on.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from refold.log import Log, Topic
from refold.projector.partition import PartitionProjector
from refold.projector.settings import ProjectorSettings
from refold.projector.verifying import Verified, verify
from refold_projections.tables import database, sets
from refold_projections.tables.database import Connection, Pool
from refold_projections.tables.migrating import check
from refold_projections.tables.names import names_in
from refold_projections.tables.store import Store, Superseded, take
from refold_schemas.codec import Codec
from refold_schemas.errors.tables import (
    DatabaseUnavailable,
    LogShorterThanTables,
    TablesBehindLog,
    TablesNotTrue,
)

AT_ONCE = 3
"""Partitions that are filled side by side."""
LOOK_S = 0.1


class Step(NamedTuple):
    """How far a rebuild is. `phase`: filling, verifying, swapping; counts are of records."""

    phase: str
    done: int
    total: int


class Rebuilt(NamedTuple):
    """How it ended. `set_name` is live now; None: it was stopped before."""

    set_name: str | None
    generation: int
    resumed: bool
    partitions: tuple[Verified, ...]


OnStep = Callable[[Step], None]


class Rebuild:
    """One rebuild of the tables of a log that is open."""

    def __init__(
        self,
        log: Log,
        url: str,
        codec: Codec,
        settings: ProjectorSettings,
        on_step: OnStep = lambda _: None,
    ) -> None:
        self._log, self._url, self._codec, self._settings = log, url, codec, settings
        self._names = names_in(settings.schema)
        self._pool = Pool(url, size=AT_ONCE + 1, name="refold rebuild")
        self._on_step = on_step
        self._stopping = asyncio.Event()
        self._writer = secrets.token_bytes(16)

    def stop(self) -> None:
        """Ask for the end: what is filled stays, the next rebuild takes it up."""
        self._stopping.set()

    async def run(self) -> Rebuilt:
        """Fill, verify, swap. Raises RebuildUnderWay, TablesMissing, TablesNotTrue, and what log
        and database raise: then readers see what they saw before, unless the error says otherwise.
        """
        with database.translated(self._url):
            return await self._run()

    async def _run(self) -> Rebuilt:
        held = await database.connect(self._url, name="refold rebuild", statement_timeout_ms=0)
        try:
            await check(held, self._names)
            facts = self._log.facts
            await take(held, self._names, facts.namespace, facts.topic_ids)
            beside = await sets.reserve(held, self._names)
            if not beside.begun:
                await sets.empty(self._pool, self._names, beside.name)
            store = Store(self._names, beside.name, self._codec)
            try:
                projectors = await self._fill(store)
            except (LogShorterThanTables, TablesBehindLog):
                if not beside.begun:
                    raise
                # What was filled before the stop is of a log that is no more: it is begun anew.
                await sets.empty(self._pool, self._names, beside.name)
                beside = beside._replace(begun=False)
                projectors = await self._fill(store)
            verified: list[Verified] = []
            if not self._stopping.is_set():
                verified = await self._verify(held, store)
            if self._stopping.is_set():
                return Rebuilt(None, 0, beside.begun, tuple(verified))
            generation = await self._swap(held, store, projectors)
            return Rebuilt(beside.name, generation, beside.begun, tuple(verified))
        finally:
            await self._pool.close()
            await database.close(held)

    async def _fill(self, store: Store) -> list[PartitionProjector]:
        projectors = [
            PartitionProjector(
                self._log,
                partition,
                store,
                self._pool,
                self._writer,
                self._settings,
                share=lambda: AT_ONCE,
            )
            for partition in range(self._log.facts.partition_count)
        ]
        bounds = await self._bounds()
        total = sum(end - start for start, end in bounds)
        room = asyncio.Semaphore(AT_ONCE)

        async def fill(one: PartitionProjector, end: int) -> None:
            # To where the log ended at first: whoever writes may be faster than this for ever.
            async with room:
                if not self._stopping.is_set():
                    await self._follow(one, self._stopping, end, load=True)

        def say() -> None:
            done = sum(
                max(0, min(one.progress.offset_next, end) - start)
                for one, (start, end) in zip(projectors, bounds, strict=True)
            )
            self._on_step(Step("filling", done, total))

        filling = zip(projectors, bounds, strict=True)
        await self._telling((fill(one, end) for one, (_, end) in filling), say)
        return projectors

    async def _bounds(self) -> list[tuple[int, int]]:
        count = self._log.facts.partition_count
        return [await self._log.bounds(Topic.EVENTS, partition) for partition in range(count)]

    async def _verify(self, held: Connection, store: Store) -> list[Verified]:
        verified: list[Verified] = []
        count = self._log.facts.partition_count
        for partition in range(count):
            if self._stopping.is_set():
                break

            def say(done: int, total: int, partition: int = partition) -> None:
                self._on_step(Step("verifying", partition * total + done, count * max(total, 1)))

            one = await verify(held, store, self._log, partition, on_progress=say)
            if one.difference is not None:
                await sets.mark(held, self._names, store.set_name, "empty")  # the next begins anew
                raise TablesNotTrue(str(one.difference))
            verified.append(one)
        return verified

    async def _swap(
        self, held: Connection, store: Store, projectors: list[PartitionProjector]
    ) -> int:
        """Bring the new set to where the old one is, while that one waits; then swap."""
        old = self._names.of_set(self._names.other(store.set_name))
        self._on_step(Step("swapping", 0, 1))
        ends = [end for _, end in await self._bounds()]
        await self._telling(
            (self._up_to(one, end) for one, end in zip(projectors, ends, strict=True)), lambda: None
        )  # the tail that came meanwhile, with nobody waiting
        swapped: int | None = None
        try:
            async with held.transaction():
                rows = await held.fetch(
                    f"select partition, offset_next from {old}.positions order by partition "
                    "for update"
                )
                reached = {row["partition"]: row["offset_next"] for row in rows}
                await self._telling(
                    (
                        self._up_to(one, reached.get(partition, 0))
                        for partition, one in enumerate(projectors)
                    ),
                    lambda: None,
                )
                swapped = await sets.swap(held, self._names, store.set_name)
        except Exception as error:
            said = database.in_our_words(error, self._url)
            if swapped is None or not isinstance(said, DatabaseUnavailable):
                raise
            await self._look_whether_swapped(store.set_name, swapped, said)
        self._on_step(Step("swapping", 1, 1))
        return swapped

    async def _look_whether_swapped(
        self, of_set: str, generation: int, lost: DatabaseUnavailable
    ) -> None:
        """Return where the set is live, though the answer to the swap's commit was lost.

        Raises DatabaseUnavailable where it is not, and where that stays unknown.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.retry_max_s
        while True:
            try:
                with database.translated(self._url):
                    connection = await database.connect(self._url, name="refold rebuild")
                    try:
                        live = await sets.live_once_decided(connection, self._names)
                    finally:
                        await database.close(connection)
            except DatabaseUnavailable:
                if loop.time() >= deadline:
                    raise DatabaseUnavailable(
                        lost.url,
                        lost.reason,
                        kept="the log, and both sets, whole; which one readers see is not known: "
                        f"set {of_set} was to become the live one, and no answer came",
                        next="once it is back, `refold projections verify` names the live set; if "
                        f"it is not {of_set}, rebuild again",
                    ) from lost
                await asyncio.sleep(LOOK_S)
                continue
            if live.generation >= generation:  # ours, or one that came after it
                return
            raise DatabaseUnavailable(
                lost.url,
                lost.reason,
                kept=f"set {live.name}, which is live as before; the swap was not done",
                next="`refold projections rebuild` takes it up again",
            ) from lost

    async def _up_to(self, one: PartitionProjector, offset: int) -> None:
        await self._follow(one, asyncio.Event(), offset)

    @staticmethod
    async def _follow(
        one: PartitionProjector,
        stopping: asyncio.Event,
        until: int,
        *,
        load: bool = False,
    ) -> None:
        """Follow to `until`; from the rows again where somebody else wrote them.

        Raises LogShorterThanTables where the rows are of more than the log has.

        That may be a projector which has slept since this set was the live one, for half a second.
        """
        while True:
            try:
                if load:
                    await one.load()
                    await one.look_at_end()
                await one.follow(stopping, until=until, wait=False)
                return
            except Superseded:
                load = True
                await asyncio.sleep(LOOK_S)

    @staticmethod
    async def _telling(works: Iterable[Coroutine[Any, Any, None]], say: Callable[[], None]) -> None:
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            while tasks:
                ended, pending = await asyncio.wait(
                    tasks, timeout=LOOK_S, return_when=asyncio.FIRST_EXCEPTION
                )
                say()
                for one in ended:
                    one.result()
                tasks = list(pending)
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
