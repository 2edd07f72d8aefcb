"""Field reports on sizes: what is too large is refused with its size, and ends nothing else.

F25: a record over the broker's limit was sent again for ever, and a too large argument made a run
without a history. F26: a run at its limit could not even be ended.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from refold import App, Effect, Policy, ResultUnrecordable, RunContext
from refold.client import Client
from refold.log.memory import MemoryLog
from refold.log.port import Entry, Topic
from refold.testing.sim_loop import SimProcess
from refold.worker import WorkerSettings
from refold_schemas.commands import StartRun
from refold_schemas.errors import RefoldError
from refold_schemas.events import CommandRejected, RunBlocked, StepCompleted, StepIntended
from refold_schemas.values import decode_value, encode_value
from refold_tools.export import Exporting, Plan, Report
from support.lab import Lab
from support.vendor import Vendor

LIMIT = 1_000_000
"""Bytes of a stored value; a text has two more than its characters."""


def ask(lab: Lab, question: Any) -> Any:
    """The answer of `await question(client)`, in a process of its own."""
    told: list[Any] = []

    async def main() -> None:
        log = MemoryLog("memory://lab", broker=lab.broker, name="asking")
        await log.open(create=False)
        async with Client(log) as client:
            try:
                told.append(await question(client))
            except RefoldError as error:
                told.append(error)

    process = SimProcess(lab.universe, "asking")
    process.start(main())
    assert lab.run(60, until=lambda: bool(told))
    lab.run(0.1)
    process.kill()
    return told[0]


def reports(vendor: Vendor) -> App:
    app = App("reports")

    @app.step(policy=Policy.KEYED, key_ttl=None)
    async def export(fx: Effect, size: int) -> str:
        await vendor.act(fx)
        return "x" * size

    @app.run("report")
    async def report(ctx: RunContext, size: int) -> str:
        try:
            return f"got {len(await ctx.step(export, size))}"
        except ResultUnrecordable as error:
            await ctx.step(export, 10)
            return f"goes on without: {error}"

    @app.run("echo")
    async def echo(ctx: RunContext, text: str) -> int:
        return len(text)

    return app


@pytest.mark.parametrize("size", [LIMIT - 3, LIMIT - 2, LIMIT - 1, 2_000_000, 5_000_000])
def test_a_result_over_the_limit_ends_its_step_and_is_never_fetched_again_f25(size: int) -> None:
    lab, vendor = Lab(), Vendor()
    app = reports(vendor)
    lab.start("report", size)
    lab.start("report", 5, run_id="neighbour")
    first = lab.worker(app)
    assert lab.run(30, until=lambda: lab.ended() and lab.ended("neighbour"))
    first.kill()
    lab.worker(app)
    lab.run(30)
    fits = size + 2 <= LIMIT
    assert len(vendor.calls) == (2 if fits else 3)
    assert set(vendor.per_key.values()) == {1}
    ended = lab.state().ended
    assert ended is not None
    assert ended.result is not None
    said = decode_value(ended.result)
    done = [event for event in lab.events(StepCompleted) if isinstance(event, StepCompleted)]
    if fits:
        assert said == f"got {size}"
        assert [event.unrecordable for event in done] == [None]
    else:
        assert isinstance(said, str)
        assert said.startswith("goes on without: ")
        lost = done[0].unrecordable
        assert lost is not None
        assert (lost.type, lost.path, lost.size) == ("builtins.str", "result", size + 2)
        assert f"{size + 2:,} bytes, {LIMIT:,} are allowed" in lost.reason
        assert len(lost.repr) <= 1_000
    assert lab.status("neighbour") == "completed"


@pytest.mark.parametrize("size", [LIMIT - 3, LIMIT - 2, LIMIT - 1, 3_000_000])
def test_an_input_over_the_limit_makes_no_run_f25(size: int) -> None:
    lab, vendor = Lab(), Vendor()
    lab.worker(reports(vendor))
    command = StartRun("large", "run-1", "echo", encode_value("x" * size), None, "tester")
    lab.broker.put(Topic.COMMANDS, 0, [Entry(b"run-1", lab.codec.encode(command))])
    lab.start("echo", "short", run_id="neighbour")
    assert lab.run(30, until=lambda: lab.ended("neighbour"))
    if size + 2 <= LIMIT:
        assert lab.status() == "completed"
        return
    assert "run-1" not in lab.fold().runs
    (rejected,) = [event for event in lab.events() if isinstance(event, CommandRejected)]
    assert rejected.reason == "too_large"
    assert f"{size + 2:,} bytes, {LIMIT:,} are allowed" in rejected.detail


@pytest.mark.parametrize("size", [2_000_000, 5_000_000])
def test_a_client_is_told_that_its_input_is_too_large_f25(size: int) -> None:
    """One that fits no batch is refused before it is sent, one that the owner refuses by it."""
    lab, vendor = Lab(), Vendor()
    lab.worker(reports(vendor))
    error = ask(lab, lambda client: client.start("echo", "x" * size, run_id="run-1"))
    assert isinstance(error, RefoldError)
    told = re.findall(r"has ([\d,]+) bytes", str(error))
    assert len(told) == 1
    assert 0 <= int(told[0].replace(",", "")) - size < 1_000
    assert error.exit_code in (1, 2)
    assert error.kept
    assert error.next
    assert "run-1" not in lab.fold().runs


def test_an_argument_over_the_limit_is_refused_before_anything_is_done_f25() -> None:
    lab, vendor = Lab(), Vendor()
    app = App("arguments")

    @app.step(policy=Policy.KEYED, key_ttl=None)
    async def upload(fx: Effect, text: str) -> str:
        return await vendor.act(fx)

    @app.run("send")
    async def send(ctx: RunContext) -> str:
        try:
            return await ctx.step(upload, "x" * LIMIT)
        except RefoldError as error:
            return str(error)

    lab.start("send")
    lab.worker(app)
    assert lab.run(10, until=lab.ended)
    ended = lab.state().ended
    assert ended is not None
    assert ended.result is not None
    said = str(decode_value(ended.result))
    assert f"{LIMIT + 2:,}" in said
    assert "upload" in said
    assert "text" in said
    assert vendor.calls == []
    assert lab.events(StepIntended) == []


# ---- F26: a run at its limit can be ended and looked at


EVENTS_MAX = 4_000


def busy() -> App:
    app = App("busy")

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def page(number: int) -> str:
        return "x" * 600

    @app.run("crawl", plan=["page"])
    async def crawl(ctx: RunContext) -> int:
        for number in range(100_000):
            await ctx.step(page, number)
        return 0

    return app


@pytest.mark.untraced
@pytest.mark.parametrize("limit", ["events", "bytes"])
def test_a_run_at_its_limit_can_be_shown_exported_and_ended_f26(limit: str, tmp_path: Path) -> None:
    settings = (
        WorkerSettings(events_max=EVENTS_MAX)
        if limit == "events"
        else WorkerSettings(run_bytes_max=2_000_000)
    )
    lab = Lab(settings=settings)
    lab.start("crawl")
    lab.worker(busy())
    assert lab.run(120, until=lambda: "blocked" in [event.kind for event in lab.told])
    lab.run(1)
    state = lab.state()
    (blocked,) = lab.events(RunBlocked)
    assert isinstance(blocked, RunBlocked)
    assert blocked.reason == "limit"
    if limit == "events":
        assert f"{EVENTS_MAX:,}" in blocked.detail
        assert state.event_count >= EVENTS_MAX
    else:
        assert "2,000,000 are allowed" in blocked.detail
        assert state.byte_count >= 2_000_000
    warned = [event.text for event in lab.told if "a fifth of a run's limit" in event.text]
    assert len(warned) == 1

    found = ask(lab, lambda client: client.boundary("run-1"))
    assert (found.status, found.needs) == ("blocked", "person")
    assert len(found.done) == len(state.slots)

    async def history(client: Client) -> int:
        return len([record async for record in client.history("run-1")])

    async def export(client: Client) -> Report:
        folder = tmp_path / f"at-{lab.now_ms()}"
        return await Exporting(client.log, client.codec, Plan(folder, lab.now_ms() + 1)).run()

    assert ask(lab, history) == state.event_count
    made = ask(lab, export)
    assert (made.manifest.complete, made.rows("events") > state.event_count) == (True, True)
    assert made.rows("runs") == 1
    lab.cancel()
    assert lab.run(10, until=lab.ended)
    assert lab.status() == "cancelled"
    last = lab.broker.records(Topic.EVENTS, 0)[-1]
    assert len(last.value or b"") < 200  # the end does not carry what it ends
    assert ask(lab, history) == state.event_count + 2
    assert ask(lab, export).rows("events") == made.rows("events") + 2
