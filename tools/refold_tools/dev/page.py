"""The projector and the gateway with its page, on a loop of their own beside the main thread."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from refold_schemas.errors.base import RefoldError
from refold_tools.dev.errors import DevExtraMissing, DevPageEnded, DevPortTaken
from refold_tools.dev.metrics import Listening, joining
from refold_tools.devstack.layout import HOST

if TYPE_CHECKING:
    from refold.gateway.metrics import GatewayMetrics
    from refold.log import Log
    from refold.telemetry.exposition import Sampler
    from refold.telemetry.serving import Server

PORT_DEFAULT = 8470
PORTS_TRIED = 20
NEEDED = ("asyncpg", "fastapi", "uvicorn", "jinja2")
READY_WITHIN_S = 60.0
END_WITHIN_S = 15.0
DRAIN_S = 2.0
AGAIN_S = 2.0
"""How soon a projector that has ended is started again."""


def check_installed() -> None:
    """Raise DevExtraMissing where a package of the page is not installed."""
    for name in NEEDED:
        if find_spec(name) is None:
            raise DevExtraMissing(name)


def choose_port(wanted: int | None) -> int:
    """The port for the page: as asked, else the first free one from PORT_DEFAULT on.

    Raises DevPortTaken.
    """
    candidates = range(PORT_DEFAULT, PORT_DEFAULT + PORTS_TRIED) if wanted is None else (wanted,)
    for port in candidates:
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind((HOST, port))
            except OSError:
                continue
            return port
    raise DevPortTaken(candidates[0])


class Page:
    """A thread with a loop: the gateway on `port`, and the projector that fills its tables."""

    def __init__(
        self,
        log_url: str,
        database_url: str,
        port: int,
        time_zone: str,
        who: str,
        tell: Callable[[str], None],
        listening: Listening | None = None,
    ) -> None:
        """`listening`: where Prometheus is answered for all parts."""
        self.listening = listening
        self.metrics_url: str | None = None
        """Once it is ready."""
        self.log_url, self.database_url, self.port = log_url, database_url, port
        self.time_zone, self.who, self.tell = time_zone, who, tell
        self.url = f"http://{HOST}:{port}/"
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="page")

    def start(self) -> None:
        """Start both; `wait_ready` says when they are."""
        self._thread.start()

    def wait_ready(self, stopping: threading.Event) -> None:
        """Return once the page answers, or when `stopping` is set. Raises what kept it."""
        waited = 0.0
        while not self._ready.wait(0.05) and not stopping.is_set():
            waited += 0.05
            if self._failure is not None:
                raise self._failure
            if waited > READY_WITHIN_S:
                raise DevPageEnded(f"it did not answer within {READY_WITHIN_S:.0f} s")

    @property
    def lives(self) -> bool:
        """Whether it was started and has not ended."""
        return self._thread.is_alive()

    def end(self) -> None:
        """Stop both and wait for their end, also where they have not begun yet."""
        self._ending = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(stop.set)
        self._thread.join(END_WITHIN_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except RefoldError as error:
            self._failed(error)
        except BaseException as error:
            self._failed(DevPageEnded(f"{type(error).__name__}: {error}"))

    def _failed(self, error: BaseException) -> None:
        self._failure = error
        if self._ready.is_set():
            self.tell(f"the page has ended, the worker goes on: {error}")

    async def _serve(self) -> None:
        from refold.log import open_log

        log = open_log(self.log_url)
        await log.open(create=False)
        try:
            await self._serve_on(log)
        finally:
            await log.close()

    async def _serve_on(self, log: "Log") -> None:
        """`log` is the projector's and the figures'; the gateway has one of its own."""
        from refold import __version__
        from refold.gateway.serving import serve
        from refold.gateway.settings import GatewaySettings
        from refold.live.answers import sampled
        from refold.live.embedded import EmbeddedFigures
        from refold.projector import Projector, ProjectorSettings
        from refold.projector.metrics import ProjectorMetrics
        from refold.telemetry import Sample, tracing
        from refold_projections.figures import MINUTE

        self._loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._stop = stop
        if self._ending:  # before there was a loop to be told on
            return
        settings = GatewaySettings(
            log_url=self.log_url,
            database_url=self.database_url,
            host=HOST,
            port=self.port,
            insecure=True,
            insecure_who=self.who,
            time_zone=self.time_zone,
            drain_s=DRAIN_S,
        )
        spans = None
        if tracing.wanted():
            spans = tracing.SpanSender(version=__version__, namespace=log.facts.namespace)
        figures = EmbeddedFigures(log, spans=spans)
        tables = ProjectorSettings(time_zone=self.time_zone)
        projectors: list[Projector] = []

        async def minutes(since_ms: int) -> Mapping[str, Any]:
            return figures.figures.windows(MINUTE, since_ms=since_ms)

        async def project() -> None:
            one = Projector(log, self.database_url, settings=tables)
            projectors[:] = [one]
            if not stop.is_set():
                await one.run()

        opened: list[Server] = []

        def of_projector() -> Iterable[Sample]:
            return ProjectorMetrics(projectors[0])() if projectors else ()

        def open_metrics(gateway: "GatewayMetrics") -> None:
            if self.listening is not None:
                samplers: list[Sampler] = [
                    gateway,
                    of_projector,
                    sampled(figures.samples, self._own_loop()),
                ]
                opened.append(self._answer(self.listening, samplers))

        projecting = asyncio.create_task(self._again("the projector", project), name="projector")
        counting = asyncio.create_task(self._again("the figures", figures.run), name="figures")
        try:
            await serve(settings, stop, lambda *_: self._ready.set(), minutes, open_metrics)
        finally:
            for server in opened:
                await asyncio.to_thread(server.close)
            counting.cancel()
            stop.set()
            for one in projectors:
                one.stop()
            await asyncio.wait({projecting, counting}, timeout=END_WITHIN_S / 2)
            projecting.cancel()
            await asyncio.wait({projecting, counting})
            if spans is not None:
                await spans.close()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    def _answer(self, listening: Listening, samplers: "Iterable[Sampler]") -> "Server":
        """Answer Prometheus from now on. Raises PortRefused, OptionalPartMissing."""
        from refold.telemetry.exposition import exposition
        from refold.telemetry.serving import Server, metrics_route

        text = joining(exposition(samplers), listening)
        server = Server(listening.host, listening.port, {"/metrics": metrics_route(text)})
        self.metrics_url = f"http://{server.host}:{server.port}/metrics"
        return server

    async def _again(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do it until the end; what ends it before is said, and it begins again."""
        said = ""
        while self._stop is not None and not self._stop.is_set():
            try:
                await work()
            except Exception as error:
                if str(error) != said:  # once for each cause
                    said = str(error)
                    self.tell(f"{name} stopped, and will begin again: {error}")
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._stop.wait()
