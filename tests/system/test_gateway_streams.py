"""A gateway on a real socket: events as they come, readers that are slow, and how it ends."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from refold.client import Client
from refold.client.following import FollowerTooSlow
from refold.client.history import HistoryRecord
from refold.gateway.roles import Role
from refold.gateway.serving import serve
from refold.gateway.settings import GatewaySettings
from refold.gateway.tokens import TokenFile
from refold.log import Topic
from refold.log.memory import MemoryLog
from refold.worker import Worker
from refold_schemas.codec import Codec
from refold_schemas.errors.cli import NothingToRetry
from refold_schemas.errors.gateway import AddressTaken
from refold_schemas.registry import FileRegistry
from refold_tools.archive import Archiving, Plan
from support.gateway_lab import app

WITHIN = timedelta(seconds=20)
URL = "memory://streams"
EVENTS = 42
"""Of a run of 40 pages: its start, a record each, its end."""


@dataclass
class Live:
    """A gateway that listens, and the worker beside it."""

    url: str
    client: Client
    http: httpx.AsyncClient
    tokens: TokenFile
    stopping: asyncio.Event
    served: "asyncio.Task[None]"
    workers: "list[tuple[Worker, asyncio.Task[None]]]"

    async def restart_worker(self) -> None:
        for worker, task in self.workers:
            worker.stop()
            await task
        log = MemoryLog(URL)
        await log.open(create=True)
        worker = Worker(app, log, watch=False)
        self.workers[:] = [(worker, asyncio.create_task(worker.run()))]

    async def has_streams(self, count: int) -> None:
        """Return when so many are open."""
        async with asyncio.timeout(20):
            while True:
                health = await self.http.get("/api/v1/health")
                if health.json()["streams"] == count:
                    return
                await asyncio.sleep(0.01)

    async def start(self, run: str, given: Any, run_id: str) -> None:
        await self.client.start(run, given, run_id=run_id, within=WITHIN)


@asynccontextmanager
async def living(folder: Path, **settings: Any) -> AsyncIterator[Live]:
    keeper = MemoryLog(URL)
    keeper.broker.recreate()
    await keeper.open(create=True)
    tokens = TokenFile(folder / "tokens.json")
    _, secret = tokens.create("ada", frozenset({Role.OPERATOR}), "streams", valid_s=None)
    wanted = GatewaySettings(
        log_url=URL, tokens_path=tokens.path, port=0, drain_s=5.0, rate_burst=10_000, **settings
    )
    stopping, ready = asyncio.Event(), asyncio.Event()
    said: list[tuple[str, Client]] = []

    def on_ready(url: str, client: Client) -> None:
        said.append((url, client))
        ready.set()

    served = asyncio.create_task(serve(wanted, stopping, on_ready))
    await asyncio.wait({served, asyncio.create_task(ready.wait())}, return_when="FIRST_COMPLETED")
    (url, client) = said[0]
    headers = {"Authorization": f"Bearer {secret}"}
    live = None
    try:
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20) as http:
            live = Live(url, client, http, tokens, stopping, served, [])
            await live.restart_worker()
            yield live
    finally:
        for worker, task in live.workers if live else ():
            worker.stop()
            await task
        stopping.set()
        await served
        await keeper.close()


def play(folder: Path, scene: Callable[[Live], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with living(folder, **settings) as live:
            await scene(live)

    asyncio.run(main())


async def events(
    live: Live, run_id: str, count: int, after: int | None = None
) -> list[tuple[str, Any]]:
    """So many events of a run's stream, `(id, data)`; a problem's id is empty."""
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    found: list[tuple[str, Any]] = []
    path = f"/api/v1/runs/{run_id}/events"
    async with (
        asyncio.timeout(20),
        live.http.stream("GET", path, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in answer.aiter_lines():
            field, _, value = line.partition(": ")
            if field == "id":
                name = value
            elif field == "data":
                found.append((name, json.loads(value)))
                name = ""
                if len(found) == count:
                    break
    return found


def test_a_stream_says_what_of_its_run_was_archived(tmp_path: Path) -> None:
    """A reader that comes back late must not take what is left for what there was."""

    async def scene(live: Live) -> None:
        await live.start("pages", [1, 2], "r1")
        await live.client.handle("r1").result(within=WITHIN)
        told = await events(live, "r1", 1)
        await live.restart_worker()  # a checkpoint is written
        log = MemoryLog(URL)
        await log.open(create=False)
        plan = Plan(tmp_path / "archive", 2**50, 2**50)
        await Archiving(log, Codec(FileRegistry()), plan).partition(0)
        start, _ = await log.bounds(Topic.EVENTS, 0)
        assert start > 2
        await log.close()
        files = list(await live.client.archived("r1"))
        assert files
        for after in (None, int(told[0][0])):
            assert await events(live, "r1", 1, after) == [("", {"archived": files})]
        (_, claim), *_ = await events(live, "r1", 1, start - 1)
        assert claim["event"] == "PartitionClaimed"

    play(tmp_path, scene)


def test_a_stream_has_what_is_stored_and_what_comes_and_goes_on_where_it_was(
    tmp_path: Path,
) -> None:
    async def scene(live: Live) -> None:
        await live.start("rest", 0.4, "r1")
        whole = asyncio.create_task(events(live, "r1", 4))
        first = await events(live, "r1", 2)
        assert [one["event"] for _, one in first] == ["RunStarted", "TimerScheduled"]
        rest = await events(live, "r1", 2, after=int(first[-1][0]))
        assert [one["event"] for _, one in rest] == ["TimerFired", "RunCompleted"]
        assert await whole == first + rest
        history = (await live.http.get("/api/v1/runs/r1/history")).json()["records"]
        assert [one for _, one in first + rest] == history
        assert [name for name, _ in first + rest] == [str(one["offset"]) for one in history]

    play(tmp_path, scene)


def test_many_readers_of_many_runs_miss_nothing_and_get_nothing_twice(tmp_path: Path) -> None:
    async def scene(live: Live) -> None:
        ids = [f"r{n}" for n in range(6)]
        for run_id in ids:
            await live.start("pages", [0, 1], run_id)

        async def follow(run_id: str) -> list[int]:
            """With a lost connection after every seventh event."""
            found: list[int] = []
            while len(found) < EVENTS:
                last = found[-1] if found else None
                got = await events(live, run_id, min(7, EVENTS - len(found)), after=last)
                found += [int(name) for name, _ in got]
            return found

        for run_id in ids:
            await live.start("pages", [40, 10], f"{run_id}-b")
        follows = [follow(f"{run_id}-b") for run_id in ids]
        found = await asyncio.gather(*follows)
        for run_id, offsets in zip(ids, found, strict=True):
            path = f"/api/v1/runs/{run_id}-b/history?claims=false"
            records = (await live.http.get(path)).json()["records"]
            assert [one["offset"] for one in records][:EVENTS] == offsets

    play(tmp_path, scene)


def test_a_new_owner_is_told_to_those_who_follow(tmp_path: Path) -> None:
    async def scene(live: Live) -> None:
        await live.start("rest", 3600, "r1")
        follow = asyncio.create_task(events(live, "r1", 3))
        await asyncio.sleep(0.2)
        await live.restart_worker()
        assert [one["event"] for _, one in await follow][2] == "PartitionClaimed"

    play(tmp_path, scene)


@pytest.mark.untraced
def test_a_reader_that_is_too_slow_is_cut_off_and_nobody_waits_for_it(tmp_path: Path) -> None:
    async def scene(live: Live) -> None:
        await live.start("rest", 0.2, "other")
        await live.start("pages", [4_000, 10], "big")
        await live.client.handle("big").result(within=WITHIN)
        host, port = live.url.removeprefix("http://").split(":")
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        deaf.connect((host, int(port)))
        token = live.http.headers["Authorization"]
        lines = ("GET /api/v1/runs/big/events HTTP/1.1", "Host: x", f"Authorization: {token}")
        deaf.sendall("\r\n".join((*lines, "", "")).encode())
        try:
            await live.has_streams(1)
            assert len(await events(live, "other", 2)) == 2  # nobody is held up meanwhile
            await live.has_streams(0)  # it takes nothing: gone after `stream_stall_s`
        finally:
            deaf.close()
        # It may go on where it was.
        (last,) = await events(live, "big", 1, after=100)
        assert int(last[0]) > 100

    play(tmp_path, scene, stream_stall_s=0.5)


async def taken(follower: AsyncGenerator[HistoryRecord, None]) -> int:
    """How many records a follower still gets until it is cut off."""
    count = 0
    try:
        async for _ in follower:
            count += 1
    except FollowerTooSlow:
        return count
    raise AssertionError("a stream does not end by itself")


def test_one_for_whom_too_much_waits_is_told_so(tmp_path: Path) -> None:
    async def scene(live: Live) -> None:
        await live.start("rest", 0.2, "r1")
        slow, quick = (live.client.follow("r1", count_max=count) for count in (1, 99))
        seen = [(await anext(quick)).offset, (await anext(slow)).offset]
        assert seen[0] == seen[1]
        await live.client.handle("r1").result(within=WITHIN)
        await live.restart_worker()
        assert await taken(slow) <= 2  # what was stored when it began; then it is cut off
        for _ in range(3):
            await anext(quick)
        await quick.aclose()
        assert live.client._feeds[0]._followers == {}

    play(tmp_path, scene)


def test_streams_have_a_number_and_a_revoked_token_ends_its_own(tmp_path: Path) -> None:
    async def scene(live: Live) -> None:
        await live.start("rest", 3600, "r1")
        follows = [asyncio.create_task(events(live, "r1", 99)) for _ in range(2)]
        await live.has_streams(2)
        answer = await live.http.get("/api/v1/runs/r1/events")
        assert answer.json()["code"] == "R710"
        assert answer.status_code == 503
        live.tokens.revoke("ada")
        for found in await asyncio.gather(*follows):
            assert found[-1][1]["code"] == "R701"
            assert "revoked" in found[-1][1]["detail"]

    play(tmp_path, scene, streams_of_caller_max=2, stream_beat_s=0.05)


def test_a_run_that_is_never_silent_keeps_no_revoked_token_in(tmp_path: Path) -> None:
    """Beats come between events alone; whoever follows a busy run is looked up all the same."""

    async def scene(live: Live) -> None:
        await live.start("rest", 3600, "r1")
        follows = asyncio.create_task(events(live, "r1", 10_000))
        await live.has_streams(1)
        live.tokens.revoke("ada")
        async with asyncio.timeout(10):
            while not follows.done():  # a claim is an event of every run's stream
                with suppress(NothingToRetry):
                    await live.client.retry("r1", within=WITHIN)
                await asyncio.sleep(0.02)
        found = await follows
        assert found[-1][1]["code"] == "R701"
        assert "revoked" in found[-1][1]["detail"]

    play(tmp_path, scene, stream_beat_s=1.0)


def test_an_id_that_is_none_is_refused(tmp_path: Path) -> None:
    async def scene(live: Live) -> None:
        await live.start("rest", 3600, "r1")
        for given in ("x", "-1", "1.5", "9" * 30, "0x10"):
            answer = await live.http.get("/api/v1/runs/r1/events", headers={"Last-Event-ID": given})
            assert (answer.status_code, answer.json()["code"]) == (422, "R703")

    play(tmp_path, scene)


def test_told_to_stop_it_ends_streams_and_lets_requests_end(tmp_path: Path) -> None:
    async def scene(live: Live) -> None:
        await live.start("rest", 1.0, "r1")
        await live.start("rest", 3600, "r2")
        stream = asyncio.create_task(events(live, "r2", 99))
        waiting = asyncio.create_task(live.http.get("/api/v1/runs/r1/result?within_s=10"))
        await live.has_streams(1)
        live.stopping.set()
        assert [one["event"] for _, one in await stream] == ["RunStarted", "TimerScheduled"]
        answer = await waiting
        assert answer.json()["status"] == "completed"
        await live.served
        with pytest.raises(httpx.ConnectError):
            await live.http.get("/api/v1/health/live")

    play(tmp_path, scene)


def test_an_address_that_is_taken(tmp_path: Path) -> None:
    async def scene(live: Live) -> None:
        port = int(live.url.rpartition(":")[2])
        again = GatewaySettings(log_url=URL, port=port, tokens_path=live.tokens.path)
        with pytest.raises(AddressTaken, match="in use"):
            await serve(again, asyncio.Event())

    play(tmp_path, scene)


# ---- the process


def command(folder: Path, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    environment = {k: v for k, v in os.environ.items() if not k.startswith("REFOLD_")} | variables
    return subprocess.Popen(
        [sys.executable, "-m", "refold_tools.cli", "gateway", *arguments, "--json"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, dict[str, Any]]:
    out, err = process.communicate(timeout=60)
    assert "Traceback" not in err, err
    return process.returncode, json.loads(out.splitlines()[-1])


def test_its_log_lines_are_json_on_stderr_and_show_no_secret(tmp_path: Path) -> None:
    log = f"sqlite:///{tmp_path}/log.db"
    made = [sys.executable, "-m", "refold_tools.cli", "namespace", "create", "--log", log]
    subprocess.run(made, check=True, capture_output=True)
    database = "postgresql://ann:the-pass-word@127.0.0.1:1/none"
    process = command(
        tmp_path,
        *("--log", log, "--port", "0", "--insecure", "--log-format", "json"),
        REFOLD_DATABASE_URL=database,
    )
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    process.send_signal(signal.SIGTERM)
    said, told = process.communicate(timeout=20)
    assert process.returncode == 0
    lines = [json.loads(line) for line in told.splitlines()]
    assert [one["event"] for one in lines if one["event"] != "library"] == ["serving", "stopped"]
    assert lines[0]["url"] == url
    assert {(one["service"], one["namespace"]) for one in lines} == {("gateway", "default")}
    assert "the-pass-word" not in said + told


def test_the_process_serves_until_a_signal_and_says_why_it_cannot(tmp_path: Path) -> None:
    log = f"sqlite:///{tmp_path}/log.db"
    refold = [sys.executable, "-m", "refold_tools.cli"]
    made = subprocess.run([*refold, "namespace", "create", "--log", log], check=False)
    assert made.returncode == 0
    code, said = ended(command(tmp_path, "--log", f"sqlite:///{tmp_path}/none.db"))
    assert (code, said["error"]["code"]) == (4, "R304")
    code, said = ended(command(tmp_path, "--log", "kafka://127.0.0.1:1/x", "--insecure"))
    assert (code, said["error"]["code"]) == (4, "R303")
    code, said = ended(command(tmp_path, "--log", log))
    assert (code, said["error"]["code"]) == (2, "R713")
    code, said = ended(command(tmp_path, "--log", log, REFOLD_GATEWAY_RATE_PER_S="many"))
    assert (code, said["error"]["code"]) == (2, "R520")
    assert "REFOLD_GATEWAY_RATE_PER_S" in said["error"]["message"]
    create = ("tokens", "create", "ada", "--role", "admin", "--namespace", "default")
    code, said = ended(command(tmp_path, *create))
    assert code == 0
    headers = {"Authorization": f"Bearer {said['token']}"}
    process = command(tmp_path, "--log", log, "--port", "0")
    assert process.stdout is not None
    try:
        url = json.loads(process.stdout.readline())["url"]
        answer = httpx.get(f"{url}/api/v1/partitions", headers=headers)
        assert answer.json()["namespace"] == "default"
        assert httpx.get(f"{url}/api/v1/partitions").status_code == 401
        process.send_signal(signal.SIGTERM)
        assert ended(process) == (0, {"stopped": True})
    finally:
        process.kill()
        process.wait()
