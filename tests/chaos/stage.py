"""Where a scenario plays: brokers, the world of vendors, registers and sets, workers by process."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from chaos import objects
from chaos.proxy import Proxy
from chaos.traps import Traps
from refold_tools.devstack import KAFKA, Ports, Stack
from refold_tools.devstack.layout import free_ports
from refold_tools.processes import ends_with_parent
from world.client import WorldClient

ROOT = Path(__file__).parents[2]
WITHIN_S = 120.0
STOP_S = 40.0


async def until(
    check: Callable[[], bool], what: str, within_s: float = WITHIN_S, every_s: float = 0.05
) -> None:
    """Wait for a condition; no test asks how long it took."""
    end = time.monotonic() + within_s
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {within_s:g} s: {what}")
        await asyncio.sleep(every_s)


class Cluster:
    """One broker with a second door that a proxy stands before, or three."""

    def __init__(self, folder: Path, brokers: int = 1) -> None:
        ports = Ports.free(brokers)
        settings = {"group.min.session.timeout.ms": "500"}
        self.proxy: Proxy | None = None
        if brokers == 1:
            behind, before = free_ports(2)
            host = "127.0.0.1"
            settings |= {
                "listeners": f"PLAINTEXT://{host}:{ports.kafka[0]},PROXIED://{host}:{behind},"
                f"CONTROLLER://{host}:{ports.controller[0]}",
                "advertised.listeners": f"PLAINTEXT://{host}:{ports.kafka[0]},"
                f"PROXIED://{host}:{before}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,"
                "CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "PLAINTEXT",
            }
            self.proxy = Proxy(before, behind)
        # Of a broker that ends with us Linux makes one that ends with the thread that started it.
        self._thread = ThreadPoolExecutor(1)
        self.stack = self._thread.submit(
            Stack.up,
            folder,
            brokers=brokers,
            ports=ports,
            services=frozenset({KAFKA}),
            broker_settings=settings,
            tied=True,
        ).result()

    @property
    def servers(self) -> str:
        return self.stack.bootstrap

    async def kill_broker(self, number: int = 1) -> None:
        """SIGKILL."""
        await self._there(self.stack.kill_broker, number)

    async def start_broker(self, number: int = 1, *, wait: bool = True) -> None:
        """Start it again; with `wait` until it is ready."""
        await self._there(partial(self.stack.start_broker, wait=wait), number)

    async def _there(self, work: Callable[[int], None], number: int) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work, number)

    def down(self) -> None:
        """The brokers end."""
        self.stack.down()
        self._thread.shutdown()

    async def open(self) -> None:
        """Let the proxy listen, on the loop of now."""
        if self.proxy is not None:
            await self.proxy.start()

    async def shut(self) -> None:
        """The proxy ends, before its loop does."""
        if self.proxy is not None:
            await self.proxy.stop()


class Worker:
    """One `refold worker` process, and what it says line by line."""

    def __init__(self, process: asyncio.subprocess.Process, said: Path) -> None:
        self.process, self.path = process, said

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def lives(self) -> bool:
        return self.process.returncode is None

    def send(self, number: signal.Signals) -> None:
        if self.lives:
            self.process.send_signal(number)

    def says(self) -> list[dict[str, Any]]:
        lines = self.path.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.says() if line.get("event") == kind]

    def owns(self) -> set[int]:
        """The partitions that it owns, by its own words."""
        last: dict[int, str] = {}
        for line in self.says():
            if line.get("event") in ("claimed", "ended_claim", "released"):
                last[line["partition"]] = line["event"]
        return {partition for partition, event in last.items() if event == "claimed"}

    def rss_bytes(self, field: str = "VmRSS") -> int:
        """What it has in memory now; with `VmHWM` the most that it ever had."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
        return 0

    def frozen(self) -> bool:
        """Whether all its threads stand."""
        states = set()
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        return states == {"T"}


class Stage:
    """One namespace on a cluster, with far systems and workers of its own."""

    def __init__(self, cluster: Cluster, folder: Path, name: str, settings: dict[str, Any]) -> None:
        self.cluster, self.folder, self.name, self.settings = cluster, folder, name, settings
        folder.mkdir(parents=True, exist_ok=True)
        self.url = f"kafka://{cluster.servers}/{name}"
        self.workers: list[Worker] = []
        self.traps = Traps(folder)
        self.objects = objects.Objects(1)
        self.world_url = self.objects_url = ""
        self._world: asyncio.subprocess.Process | None = None

    @property
    def world(self) -> WorldClient:
        return WorldClient(self.world_url, timeout_s=30)

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.lives]

    def environment(self) -> dict[str, str]:
        paths = [str(ROOT / "tests"), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "CHAOS_FOLDER": str(self.folder),
            "CHAOS_SETTINGS": json.dumps(self.settings),
            "CHAOS_OBJECTS": self.objects_url,
            "WORLD_URL": self.world_url,
        }

    async def worker(self, *, servers: str | None = None) -> Worker:
        """Start one; `servers` are the brokers that it is told of, if others than usual."""
        url = self.url if servers is None else f"kafka://{servers}/{self.name}"
        path = self.folder / f"worker-{len(self.workers)}.jsonl"
        with path.open("wb") as said:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "refold_tools.cli"),
                *("worker", "chaos.app:app", "--log", url, "--json"),
                cwd=self.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=asyncio.subprocess.STDOUT,
                env=self.environment(),
                # Of its own, or the end of a shell continues what stands in its process group.
                start_new_session=True,
                preexec_fn=ends_with_parent(signal.SIGKILL),
            )
        made = Worker(process, path)
        self.workers.append(made)
        return made

    async def many(self, count: int) -> list[Worker]:
        return [await self.worker() for _ in range(count)]

    async def refold(self, *arguments: str, timeout_s: float = WITHIN_S) -> tuple[int, Any]:
        """A command's exit code and its JSON."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "refold_tools.cli", *arguments, "--json"),
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.environment(),
        )
        async with asyncio.timeout(timeout_s):
            out, err = await process.communicate()
        lines = out.decode().splitlines()
        assert lines, err.decode()
        assert process.returncode is not None
        return process.returncode, json.loads(lines[-1])

    async def end_worker(self, worker: Worker) -> None:
        """SIGTERM, and wait: it hands over."""
        worker.send(signal.SIGCONT)
        worker.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await worker.process.wait()
        except TimeoutError:
            worker.send(signal.SIGKILL)
            await worker.process.wait()

    async def serving(self, partitions: int) -> None:
        """Wait until each partition has been claimed by a worker that lives."""

        def claimed() -> set[int]:
            said = (event for worker in self.living for event in worker.events("claimed"))
            return {event["partition"] for event in said}

        await until(lambda: claimed() == set(range(partitions)), "every partition is claimed")

    async def _start_world(self) -> None:
        self._world = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "world", "--ledger", str(self.folder / "world.db")),
            *("--seed", "1"),
            env={**os.environ, "PYTHONPATH": str(ROOT / "examples")},
            stdout=asyncio.subprocess.PIPE,
            preexec_fn=ends_with_parent(signal.SIGKILL),
        )
        assert self._world.stdout is not None
        ready, _, url = (await self._world.stdout.readline()).decode().strip().partition(" ")
        assert ready == "READY", "the world of vendors did not start"
        self.world_url = url

    async def _end(self) -> None:
        await asyncio.gather(*(self.end_worker(worker) for worker in self.living))
        if self._world is not None:
            self._world.kill()
            await self._world.communicate()


@asynccontextmanager
async def stage(
    cluster: Cluster,
    folder: Path,
    name: str,
    *,
    partitions: int,
    settings: dict[str, Any] | None = None,
) -> AsyncIterator[Stage]:
    """A stage with its namespace made, and nobody on it yet; all of it ends with the block."""
    made = Stage(cluster, folder, name, dict(settings or {}))
    async with objects.serve(made.objects) as url:
        made.objects_url = url
        try:
            await made._start_world()
            created = f"{made.url}?partitions={partitions}"
            code, told = await made.refold("namespace", "create", "--log", created)
            assert code == 0, told
            yield made
        finally:
            await made._end()
