"""A gateway with its page, a worker and the tables, on one loop beside the test: all of it real."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from refold.app import App
from refold.client import Client
from refold.gateway.app import create_app
from refold.gateway.roles import Role
from refold.gateway.settings import GatewaySettings
from refold.gateway.tokens import TokenFile
from refold.live.embedded import EmbeddedFigures
from refold.log import Topic, open_log
from refold.projector import Projector
from refold.worker import Worker, WorkerSettings
from refold_projections.figures import MINUTE
from refold_projections.fold import Finding
from refold_schemas.errors.cli import CommandUndecided
from refold_schemas.events import CommandRejected, Event
from refold_tools.devstack.layout import free_ports
from support import page_app

T = TypeVar("T")
WITHIN_S = 30.0
SOON = timedelta(seconds=10)


class PageStage:
    """`url` is where the page is; `client` asks the log itself what became of a click."""

    def __init__(self, folder: Path, database_url: str | None, *, insecure: bool = False) -> None:
        self.folder, self.database_url = folder, database_url
        self.log_url = f"sqlite:///{folder}/log.db"
        self.tokens = TokenFile(folder / "tokens.json")
        self._insecure = insecure
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="page stage")
        self._worker: tuple[Worker, asyncio.Task[None]] | None = None
        self._projector: tuple[Projector, asyncio.Task[None]] | None = None
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"

    def begin(self) -> None:
        self._thread.start()
        self.do(self._begin())

    def end(self) -> None:
        try:
            self.do(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(WITHIN_S)
            self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives, done on the stage's loop."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(WITHIN_S)

    async def _begin(self) -> None:
        self._log = open_log(self.log_url)
        await self._log.open(create=True)
        self.client = await Client(self._log, by="test").__aenter__()
        if self.database_url is not None:
            await self._begin_projector()
        self._figures = EmbeddedFigures(self._log)
        self._counting = asyncio.create_task(self._figures.run())
        settings = GatewaySettings(
            log_url=self.log_url,
            database_url=self.database_url,
            port=self.port,
            insecure=self._insecure,
            tokens_path=self.tokens.path,
            rate_per_s=1_000.0,
            rate_burst=1_000,
            trusted_hosts=("127.0.0.1",),
        )
        config = uvicorn.Config(
            create_app(settings, figures=self._minutes),
            port=self.port,
            log_level="warning",
            lifespan="on",
        )
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:
            assert not self._serving.done(), self._serving
            await asyncio.sleep(0.02)

    async def _minutes(self, since_ms: int) -> Mapping[str, Any]:
        return self._figures.figures.windows(MINUTE, since_ms=since_ms)

    async def _end(self) -> None:
        self._server.should_exit = True
        await self._serving
        self._counting.cancel()
        await asyncio.wait({self._counting})
        await self._stop_worker()
        await self._stop_projector()
        await self.client.close()
        await self._log.close()

    # ---- tables

    def stop_projector(self) -> None:
        """Let the tables stand still where they are."""
        self.do(self._stop_projector())

    def begin_projector(self) -> None:
        self.do(self._begin_projector())

    async def _begin_projector(self) -> None:
        assert self.database_url is not None
        one = Projector(self._log, self.database_url)
        self._projector = one, asyncio.create_task(one.run())

    async def _stop_projector(self) -> None:
        if self._projector is not None:
            one, task = self._projector
            self._projector = None
            one.stop()
            await task

    def caught_up(self) -> None:
        """Wait until the tables are at the log's end."""

        async def wait() -> None:
            async with asyncio.timeout(WITHIN_S - 5):
                while True:
                    _, end = await self._log.bounds(Topic.EVENTS, 0)
                    one = self._projector[0].progress.get(0) if self._projector else None
                    if one is not None and one.offset_next >= end:
                        return
                    await asyncio.sleep(0.02)

        self.do(wait())

    def find(self, run_id: str, slot: str, kind: str, detail: str, command: str) -> None:
        """What a reconciliation puts on record; shown once this returns."""

        async def record() -> None:
            async with Client(self.log_url, by="reconciliation") as client:
                asked = (await client.state(run_id)).slots[slot]
                finding = Finding(
                    f"{asked.effect_key}/{kind}",
                    *(kind, slot, asked.step, asked.effect_key, detail, command, "open", 0),
                )
                await client.record_finding(run_id, finding)

        self.do(record())
        self.caught_up()

    # ---- workers

    def dying_worker(self) -> subprocess.CompletedProcess[bytes]:
        """A worker of its own process, which takes what there is until an order kills it."""
        return subprocess.run(
            [sys.executable, page_app.__file__, self.log_url, str(self.folder)],
            timeout=WITHIN_S,
            check=False,
        )

    def work_with(self, app: App) -> None:
        """Let a worker with this code own the log; the one before it hands over."""
        self.do(self._work_with(app))

    def stop_worker(self) -> None:
        self.do(self._stop_worker())

    async def _work_with(self, app: App) -> None:
        await self._stop_worker()
        log = open_log(self.log_url)
        await log.open(create=False)
        worker = Worker(app, log, settings=WorkerSettings(), watch=False)
        self._worker = worker, asyncio.create_task(self._serve(worker))

    @staticmethod
    async def _serve(worker: Worker) -> None:
        try:
            await worker.run()
        finally:
            await worker.log.close()

    async def _stop_worker(self) -> None:
        if self._worker is not None:
            worker, task = self._worker
            self._worker = None
            worker.stop()
            await task

    # ---- what is asked and seen

    def start(self, name: str, order: page_app.Order, run_id: str, *until: str) -> None:
        """Start a run, and wait until it stands so."""
        self.do(self.client.start(name, order, run_id=run_id, within=SOON))
        if until:
            self.until(run_id, *until)

    def start_all(self, name: str, run_ids: Sequence[str]) -> None:
        """Start many at once, and wait until they have completed."""

        async def ask() -> None:
            starts = (
                self.client.start(name, page_app.Order(id=one), run_id=one, within=SOON)
                for one in run_ids
            )
            for handle in await asyncio.gather(*starts):
                await handle.result()

        self.do(ask())

    def send(self, name: str, order: page_app.Order, run_id: str) -> None:
        """Ask for a run while nobody works: the command waits in the log."""

        async def ask() -> None:
            with suppress(CommandUndecided):
                await self.client.start(name, order, run_id=run_id, within=timedelta(0))

        self.do(ask())

    def status(self, run_id: str) -> str:
        return self.do(self.client.boundary(run_id)).status

    def until(self, run_id: str, *statuses: str) -> None:
        """Wait until the run stands so."""

        async def wait() -> None:
            seen = ""
            try:
                async with asyncio.timeout(WITHIN_S - 5):
                    while seen not in statuses:
                        seen = (await self.client.boundary(run_id)).status
                        await asyncio.sleep(0.02)
            except TimeoutError:
                raise AssertionError(f"{run_id} is {seen}, not {statuses}") from None

        self.do(wait())

    def events(self, run_id: str, kind: type[Event] | None = None) -> list[Any]:
        """The events of the run that count, in log order."""

        async def read() -> list[Any]:
            found = [one async for one in self.client.history(run_id)]
            events = [one.event for one in found if one.counted]
            return [one for one in events if kind is None or isinstance(one, kind)]

        return self.do(read())

    def until_rejected(self, run_id: str, count: int) -> None:
        """Wait until so many commands for the run were rejected."""

        async def wait() -> None:
            async with asyncio.timeout(WITHIN_S - 5):
                while True:
                    orders = [one async for one in self.client.orders(0)]
                    found = [o for o in orders if isinstance(o.event, CommandRejected)]
                    if sum(one.run_id == run_id for one in found) >= count:
                        return
                    await asyncio.sleep(0.02)

        self.do(wait())

    def token(self, name: str, *roles: Role) -> str:
        """The text of a new token."""
        return self.tokens.create(name, frozenset(roles), "default", valid_s=None)[1]
