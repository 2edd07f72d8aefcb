"""The projector: shares out the partitions of a log, and keeps each one's rows up with it."""

import asyncio
import contextlib
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping

from refold.log import Log, Shared
from refold.projector.partition import Observe, PartitionProjector, Progress
from refold.projector.settings import ProjectorSettings, Tell, event
from refold.projector.stats import DATABASE, LOG, REGISTRY, ProjectorStats
from refold.settings import time_zone
from refold.settings.registry import open_registry
from refold_projections.tables import database
from refold_projections.tables.database import Pool
from refold_projections.tables.migrating import migrate, restore
from refold_projections.tables.names import names_in
from refold_projections.tables.sets import Building, building
from refold_projections.tables.store import Live, Store, Superseded, live_of, take
from refold_schemas.codec import Codec
from refold_schemas.errors import LogUnavailable, PartitionsRaised, RefoldError, SchemaUnavailable
from refold_schemas.errors.tables import DatabaseUnavailable, TablesMissing

CONNECTION_WAIT_S = 120.0
"""How long a partition waits for one of our connections, which our other partitions have."""
READERS = "projectors"
"""The group of the projectors, behind the namespace and a dot."""


class Projector:
    """Follows a log into the tables of a database until it is stopped.

    `Projector(log, database).run()` is a service's main, or a task among others. The log is open
    already, and stays open. Several may run at once: on Kafka they share the partitions, else each
    tries all of them, and what one has written the others do not write again.
    """

    def __init__(
        self,
        log: Log,
        database: str,
        *,
        settings: ProjectorSettings | None = None,
        registry_url: str | None = None,
        codec: Codec | None = None,
        on_event: Tell | None = None,
        observe: Observe | None = None,
    ) -> None:
        """`database` is a URL; `registry_url` is instead of `REFOLD_REGISTRY_URL`.

        `observe` is told of each batch once it is in the tables.
        """
        self.log, self.database = log, database
        self.settings = settings or ProjectorSettings()
        self.names = names_in(self.settings.schema)
        self.codec = codec or Codec(open_registry(log.url, registry_url))
        self.member = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._tell: Tell = on_event or (lambda _: None)
        self._observe = observe
        self._writer = secrets.token_bytes(16)
        self._pool = Pool(
            database,
            size=self.settings.connections_max,
            name="refold projector",
            wait_s=CONNECTION_WAIT_S,
        )
        self._stopping = asyncio.Event()
        self._live: Live | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stops: dict[int, asyncio.Event] = {}
        self._projectors: dict[int, PartitionProjector] = {}
        self._away: dict[int, str] = {}
        """Of each partition that waits (-1: all of them) for what."""
        self.stats = ProjectorStats()
        self.rebuild: Building | None = None
        """How far a rebuild of the other set is, as it was looked at last."""

    # ---- for whoever runs it

    def stop(self) -> None:
        """Ask for the end: what was begun is written, the partitions are given back."""
        self._stopping.set()

    @property
    def progress(self) -> Mapping[int, Progress]:
        """How far each partition is that this process has."""
        return {partition: one.progress for partition, one in list(self._projectors.items())}

    @property
    def away(self) -> frozenset[str]:
        """What is waited for: database, log, registry."""
        return frozenset(list(self._away.values()))

    @property
    def generation(self) -> int:
        """That of the live set, 0 before it was looked at."""
        return 0 if self._live is None else self._live.generation

    async def run(self) -> None:
        """Create or migrate the tables, then follow until `stop`.

        Waits, with back-off, for a database or a log that is away, and says so. Raises what waiting
        does not mend: TablesOfAnother, TablesDiffer, TablesMissing (somebody has dropped them while
        we wrote), DatabaseRefused,
        LogShorterThanTables, TablesBehindLog, EventsGone, RowRefused, PartitionsRaised.
        """
        try:
            await self._again_until_it_works(self._prepare)
            while not self._stopping.is_set():
                await self._again_until_it_works(self._look)
                await self._pause(self.settings.look_every_s)
            for failed in await self._stop_all():
                raise failed
        finally:
            await self._end()

    # ---- the tables

    async def prepare(self) -> Live:
        """Create or migrate the tables and take them for this namespace. Raises as `run`."""
        connection = await database.connect(self.database, name="refold projector")
        try:
            numbers = await migrate(connection, self.names)
            if numbers:
                listed = ", ".join(map(str, numbers))
                where = self.names.schema
                self._tell(event("migrated", -1, f"migration {listed} applied in schema {where}"))
            views = await restore(connection, self.names)
            if views:
                listed = ", ".join(views)
                said = f"{listed} made again in schema {self.names.schema}: somebody has dropped it"
                self._tell(event("migrated", -1, said))
            facts = self.log.facts
            zone = time_zone(self.settings.time_zone)
            live = await take(connection, self.names, facts.namespace, facts.topic_ids)
            await connection.execute(
                f"update {self.names.schema}.refold_live set time_zone = $1 where time_zone <> $1",
                zone,
            )
            return live
        finally:
            await database.close(connection)

    async def _prepare(self) -> None:
        self._live = await self.prepare()
        where = database.shown(self.database)
        text = f"following {self.log.facts.namespace} into {where}, schema {self.names.schema}"
        self._tell(event("started", -1, text))

    # ---- the partitions

    async def _look(self) -> None:
        """Once in a while: whose are the partitions, which set is live, how far is the log."""
        for partition, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[partition]
                self._stops.pop(partition, None)
                self._projectors.pop(partition, None)
                task.result()  # what cannot be mended by waiting ends the projector
        async with self._pool.connection() as connection:
            live = await live_of(connection, self.names)
        if self._live is not None and live.generation != self._live.generation:
            self._tell(event("swapped", -1, f"set {live.name} is live now; following into it"))
            await self._stop_all()  # they need connections to write what they have begun
        self._live = live
        store = Store(self.names, live.name, self.codec)
        ends = {p: one.progress.log_end for p, one in self._projectors.items()}
        async with self._pool.connection() as connection:
            await store.looked(connection, ends)
            self.rebuild = await building(connection, self.names, live.name)
        owned = await self._owned()
        for partition in set(self._tasks) - owned:
            self._stops[partition].set()
        for partition in owned - self._tasks.keys():
            self._start(partition, store)
        if isinstance(self.log, Shared):
            offsets = {p: one.progress.offset_next for p, one in self._projectors.items()}
            await self.log.note_read(READERS, self.member, offsets)

    async def _owned(self) -> set[int]:
        if isinstance(self.log, Shared):
            return set(await self.log.share(READERS, self.member))
        return set(range(self.log.facts.partition_count))

    def _start(self, partition: int, store: Store) -> None:
        stop = self._stops[partition] = asyncio.Event()
        one = self._projectors[partition] = PartitionProjector(
            self.log,
            partition,
            store,
            self._pool,
            self._writer,
            self.settings,
            share=lambda: len(self._tasks),
            tell=self._tell,
            observe=self._observe,
            stats=self.stats,
        )
        self._tasks[partition] = asyncio.create_task(self._keep_up(one, partition, stop))

    async def _keep_up(self, one: PartitionProjector, partition: int, stop: asyncio.Event) -> None:
        """Follow a partition, from its rows again whenever something came between."""

        async def whole() -> None:
            await one.load()
            self._is_back(partition)
            await one.follow(stop)

        await self._again_until_it_works(whole, partition, stop)

    # ---- what comes between

    async def _again_until_it_works(
        self,
        work: Callable[[], Awaitable[None]],
        partition: int = -1,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Do it, and once more after a while as long as what it needs is away."""
        pause_s = self.settings.retry_s
        stopping = stop or self._stopping
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await work()
                self._is_back(partition)
                return
            except Superseded:
                self.stats.refused += 1
                self._tell(event("superseded", partition, "another projector writes it, too"))
            except Exception as error:
                if database.is_missing(error):
                    raise TablesMissing(self.names.schema, (1,)) from error
                if isinstance(error, PartitionsRaised):
                    raise  # this handle on the log does not know the new ones: a new process does
                if not self._is_away(error):
                    if (ours := database.in_our_words(error, self.database)) is error:
                        raise
                    raise ours from error
                reason = error.message if isinstance(error, RefoldError) else database.told(error)
                if partition not in self._away:
                    self._tell(event("waiting", partition, f"{reason}; tried again until it works"))
                service = self._service(error)
                if service not in self.away:  # one outage, whichever partitions notice it
                    self.stats.outages[service] += 1
                self._away[partition] = service
            if stopping.is_set() or self._stopping.is_set():
                return
            if asyncio.get_running_loop().time() - began > 2 * self.settings.retry_max_s:
                pause_s = self.settings.retry_s  # it worked for a while
            await self._pause(pause_s * random.uniform(0.5, 1.5), stopping)
            pause_s = min(pause_s * 2, self.settings.retry_max_s)

    def _is_back(self, partition: int) -> None:
        if self._away.pop(partition, None) is not None:
            self._tell(event("going_on", partition, "what was away answers again"))

    @staticmethod
    def _is_away(error: Exception) -> bool:
        if isinstance(error, SchemaUnavailable):
            return True  # the log goes on once the registry answers, as an owner does
        if isinstance(error, LogUnavailable | DatabaseUnavailable):
            return True
        return not isinstance(error, RefoldError) and database.is_away(error)

    @staticmethod
    def _service(error: Exception) -> str:
        if isinstance(error, SchemaUnavailable):
            return REGISTRY
        return LOG if isinstance(error, LogUnavailable) else DATABASE

    async def _pause(self, seconds: float, stopping: asyncio.Event | None = None) -> None:
        waits = [asyncio.ensure_future(self._stopping.wait())]
        if stopping is not None:
            waits.append(asyncio.ensure_future(stopping.wait()))
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def _stop_all(self) -> list[BaseException]:
        """Let every partition write what it has begun; what went wrong with them."""
        for stop in self._stops.values():
            stop.set()
        ends = await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        self._stops.clear()
        self._projectors.clear()
        return [one for one in ends if one is not None]

    async def _end(self) -> None:
        """Write what was begun, give the partitions and the connections back."""
        await self._stop_all()
        if isinstance(self.log, Shared):
            with contextlib.suppress(RefoldError):
                await self.log.leave_share(READERS, self.member)
        await self._pool.close()
        self._tell(event("stopped", -1, "stopped; what was begun is written"))
