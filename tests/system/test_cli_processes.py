"""The real `refold` in processes of its own: killed, resolved, resumed, stopped, restarted.

Whatever hosts the author's code is a process. Who only reads the log or writes a command into it
is asked in this one, by the same command line: a process each would take most of the time.
"""

import asyncio
import json
import os
import pty
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import pytest

from refold.client import BlockingClient, Client
from refold_projections.fold import Boundary
from refold_tools.cli import main
from support.console import crashed

SHOP = """
import asyncio
import os
from datetime import timedelta

from pydantic import BaseModel

from refold import App, Effect, NotDone, Policy, RunContext

app = App("shop")


class Order(BaseModel):
    id: str
    pence: int = 4160


@app.step(policy=Policy.RE_EXECUTABLE)
async def load(order_id: str) -> dict:
    return {"id": order_id}


@app.step(policy=Policy.ESCALATE)
async def charge(fx: Effect, order_id: str, pence: int) -> str:
    with open("charged.txt", "a") as ledger:
        ledger.write(fx.key + "\\n")
    while os.path.exists("hang"):
        await asyncio.sleep(0.02)
    if pence == 0:
        raise NotDone("nothing to charge")
    return f"charge-{order_id}"


@app.step(policy=Policy.RE_EXECUTABLE)
def mail(order_id: str) -> str:
    return f"told {order_id}"


@app.run("shop", plan=["load", "charge", "mail"])
async def shop(ctx: RunContext, order: Order) -> str:
    loaded = await ctx.step(load, order.id)
    await ctx.step(charge, loaded["id"], order.pence)
    return await ctx.step(mail, order.id)


@app.run("sleeper")
async def sleeper(ctx: RunContext) -> None:
    await ctx.sleep(timedelta(days=9))
"""
REFOLD = [sys.executable, "-m", "refold_tools.cli"]
HOSTS = ("run", "worker")
PATIENCE_S = 30.0


class Child:
    """A process whose lines are read as they come, so that no wait can hang and no pipe fills."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.out)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.err)),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], kept: list[str]) -> None:
        with stream:
            for line in stream:
                kept.append(line)
                self.lines.put(line)

    def says(self, word: str) -> None:
        """Return when a line that holds `word` has come since the last call."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if word in self.lines.get(timeout=max(0.0, deadline - time.monotonic())):
                    return
            except queue.Empty:
                raise AssertionError(f"no {word!r} in\n{self.out}\n{self.err}") from None

    def end(self, number: signal.Signals) -> int:
        """Send the signal and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)
        return code


@dataclass
class Project:
    """A working directory with an app and a log, and the processes that were started in it."""

    folder: Path
    capsys: pytest.CaptureFixture[str]
    children: list[Child] = field(default_factory=list)

    def call(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `refold` to its end; its exit code is as expected."""
        if arguments[0] in HOSTS:
            done = subprocess.run(
                [*REFOLD, *arguments],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        else:
            self.capsys.readouterr()
            ended = main(arguments)
            done = subprocess.CompletedProcess(arguments, ended, *self.capsys.readouterr())
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert not crashed(done.stderr)
        return done

    def json(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """The JSON on the last line of stdout."""
        lines = self.call(*arguments, "--json", code=code).stdout.splitlines()
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer

    def begin(self, *arguments: str) -> Child:
        """Start `refold` and leave it running."""
        child = Child([*REFOLD, *arguments], self.folder, self.environment)
        self.children.append(child)
        return child

    def worker(self) -> Child:
        """A worker that has claimed its partition."""
        child = self.begin("worker", "shop:app", "--json")
        child.says('"claimed"')
        return child

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONUNBUFFERED": "1"}

    @property
    def charges(self) -> list[str]:
        """The effect keys under which the step acted."""
        ledger = self.folder / "charged.txt"
        return ledger.read_text().split() if ledger.exists() else []

    def hang(self, *, on: bool) -> None:
        """Let the step act and then not return."""
        if on:
            (self.folder / "hang").touch()
        else:
            (self.folder / "hang").unlink()


@pytest.fixture(autouse=True)
def _hangups_are_heard() -> Iterator[None]:
    """As on a terminal, also where the tests themselves run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Project]:
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    for name in [one for one in os.environ if one.startswith("REFOLD_")]:
        monkeypatch.delenv(name)
    made = Project(tmp_path, capsys)
    yield made
    for child in made.children:
        if child.process.poll() is None:
            child.end(signal.SIGKILL)


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.02)


def killed_while_charging(project: Project) -> None:
    """A run whose worker was killed after it acted and before it recorded that."""
    project.call("namespace", "create")
    project.hang(on=True)
    worker = project.worker()
    project.call("start", "shop", "--input", '{"id": "o1"}', "--run-id", "r1")
    until(lambda: project.charges, "the step acts")
    worker.end(signal.SIGKILL)
    project.hang(on=False)


HUNG = """
import asyncio
import threading
from datetime import timedelta

from refold import App, Effect, Policy, RunContext

app = App("hung")
FOR_EVER = threading.Event()


@app.step(policy=Policy.RE_EXECUTABLE, timeout=timedelta(milliseconds=200))
def in_a_step() -> bool:
    return FOR_EVER.wait()


@app.step(policy=Policy.ESCALATE, timeout=timedelta(milliseconds=200))
async def in_a_thread(fx: Effect) -> bool:
    return await asyncio.to_thread(FOR_EVER.wait)


@app.run("failed")
async def failed(ctx: RunContext) -> bool:
    return await ctx.step(in_a_step)


@app.run("doubted")
async def doubted(ctx: RunContext) -> bool:
    return await ctx.step(in_a_thread)
"""

# ---- run


@pytest.mark.parametrize(("name", "code"), [("failed", 1), ("doubted", 3)])
def test_a_thread_that_never_ends_does_not_keep_the_process_from_ending(
    project: Project, name: str, code: int
) -> None:
    """Python waits for every thread at its exit, asyncio for those of its own pool."""
    (project.folder / "hung.py").write_text(HUNG)
    answer = project.json("run", "hung:app", name, "--run-id", "r1", code=code)
    assert answer["run_id"] == "r1"
    assert answer["error"]["message"].startswith("run r1 ")


def test_a_worker_stops_beside_a_thread_that_never_ends(project: Project) -> None:
    (project.folder / "hung.py").write_text(HUNG)
    project.call("namespace", "create")
    worker = project.begin("worker", "hung:app", "--json")
    worker.says('"claimed"')
    project.call("start", "failed", "--run-id", "r1", "--wait", code=1)
    assert worker.end(signal.SIGTERM) == 0
    last = json.loads(worker.out[-1])
    assert (last["stopped"], last["handed_over"]) == (True, True)


def test_run_does_all_of_it_and_comes_back_with_the_result(project: Project) -> None:
    arguments = ("run", "shop:app", "shop", "--input", '{"id": "o1"}', "--run-id", "r1")
    done = project.call(*arguments)
    assert done.stdout == '"told o1"\n'
    assert "made the log sqlite:///.refold/log.db" in done.stderr
    again = project.json(*arguments)
    assert again == {
        "run_id": "r1",
        "status": "completed",
        "result": "told o1",
        "sentence": "three steps complete, the run completed",
    }
    assert len(project.charges) == 1
    other = (*arguments[:4], '{"id": "o2"}', *arguments[5:])
    error = project.json(*other, code=2)["error"]
    assert error["code"] == "R505"
    assert ".id 'o1' → 'o2'" in error["message"]


def test_a_failed_run_is_exit_one_with_its_error(project: Project) -> None:
    (project.folder / "order.json").write_text('{"id": "o1", "pence": 0}')
    answer = project.json(
        "run", "shop:app", "shop", "--input", "@order.json", "--run-id", "r1", code=1
    )
    assert set(answer) == {"run_id", "status", "error", "sentence"}
    assert (answer["status"], answer["error"]["code"]) == ("failed", "R501")
    assert "NotDone: nothing to charge" in answer["error"]["message"]


def test_run_resumes_what_a_killed_worker_left_and_stops_for_a_person(project: Project) -> None:
    killed_while_charging(project)
    arguments = ("run", "shop:app", "shop", "--input", '{"id": "o1"}', "--run-id", "r1")
    stopped = project.call(*arguments, "--json", code=3)
    answer = json.loads(stopped.stdout.splitlines()[-1])
    assert set(answer) == {"run_id", "status", "error", "sentence"}
    assert (answer["status"], answer["error"]["code"]) == ("in_doubt", "R519")
    assert "refold resolve r1 'charge#1' --happened" in answer["error"]["next"]
    first = stopped.stderr.splitlines()[0]
    assert first.startswith("resuming r1: one step complete, charge in doubt since ")
    assert first.endswith(", two steps remaining")
    # Nobody is there to take the word; it waits in the log, and the next `refold run` takes it.
    project.call("resolve", "r1", "charge#1", "--happened", "--result", '"charge-9"', code=3)
    resumed, result = project.call(*arguments).stdout.splitlines()
    assert resumed == first
    assert result == '"told o1"'
    assert len(project.charges) == 1


def test_run_waits_where_somebody_else_owns_the_partition(project: Project) -> None:
    project.call("namespace", "create")
    worker = project.worker()
    answer = project.json("run", "shop:app", "shop", "--input", '{"id": "o1"}', "--run-id", "r1")
    assert (answer["status"], answer["result"]) == ("completed", "told o1")
    claims = [one for one in history(project, "r1") if one["event"] == "PartitionClaimed"]
    assert claims == [], "the run stayed with the worker that owned the partition"
    assert worker.end(signal.SIGTERM) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_hands_the_partition_over(project: Project, number: signal.Signals) -> None:
    running = project.begin("run", "shop:app", "sleeper", "--run-id", "r1", "--json")
    running.says("claimed")
    until(lambda: status(project, "r1") == "waiting", "the run sleeps")
    assert running.end(number) == 3
    answer = json.loads(running.out[-1])
    assert (answer["status"], answer["error"]["code"]) == ("waiting", "R524")
    assert "released by" in project.call("doctor").stdout


def in_a_terminal(project: Project, *arguments: str) -> tuple[int, int]:
    """`refold` in a terminal of its own: its pid, and the end whose closing closes the terminal."""
    pid, terminal = pty.fork()
    if not pid:  # nothing but the command: the process that it was forked from has threads
        os.execve(sys.executable, [*REFOLD, *arguments], project.environment)
    return pid, terminal


@pytest.mark.parametrize(
    "command",
    [
        "worker shop:app",
        "worker shop:app --processes 2",
        "dev shop:app --no-page",
        'run shop:app shop --input {"id":"o1"} --run-id r1',
    ],
)
@pytest.mark.filterwarnings("ignore:.*use of forkpty:DeprecationWarning")
def test_a_terminal_that_closes_lets_what_is_under_way_end(project: Project, command: str) -> None:
    """The step that acts when it closes has its outcome, and the partition is handed over."""
    project.call("namespace", "create", "--log", "sqlite:///.refold/log.db?partitions=2")
    project.hang(on=True)
    pid, terminal = in_a_terminal(project, *command.split())
    try:
        if not command.startswith("run"):
            url = f"sqlite:///{project.folder}/.refold/log.db"
            with BlockingClient(url) as client:
                client.start("shop", {"id": "o1"}, run_id="r1", within=timedelta(seconds=30))
        until(lambda: project.charges, "the step acts")
    finally:
        os.close(terminal)
    time.sleep(0.2)
    with suppress(ProcessLookupError):  # as it comes once more when the shell has gone, too
        os.kill(pid, signal.SIGHUP)
    project.hang(on=False)
    _, ended = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(ended) in (0, 3)
    kinds = [one["event"] for one in history(project, "r1")]
    assert kinds.count("StepIntended") == 1
    assert "StepCompleted" in kinds
    assert "StepInDoubt" not in kinds
    assert project.call("doctor").stdout.count("released by") == 2


def test_nohup_keeps_its_word(project: Project) -> None:
    project.call("namespace", "create")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a child has it, as nohup's has
    try:
        worker = project.worker()
    finally:
        signal.signal(signal.SIGHUP, before)
    worker.process.send_signal(signal.SIGHUP)
    run = project.json("start", "shop", "--input", '{"id": "o1"}', "--wait")
    assert run["status"] == "completed"
    assert worker.end(signal.SIGTERM) == 0


def seen(project: Project, run_id: str) -> Boundary | None:
    """The run's boundary, read by a client in this process; None before the run exists."""
    with BlockingClient(f"sqlite:///{project.folder}/.refold/log.db") as client:
        return None if client.find(run_id) is None else client.boundary(run_id)


def status(project: Project, run_id: str) -> str | None:
    found = seen(project, run_id)
    return None if found is None else found.status


def needs(project: Project, run_id: str) -> str | None:
    found = seen(project, run_id)
    return None if found is None else found.needs


def history(project: Project, run_id: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = project.json("history", run_id)["records"]
    return records


# ---- worker


def test_a_killed_worker_leaves_a_step_in_doubt_that_a_person_resolves(project: Project) -> None:
    killed_while_charging(project)
    seen = project.json("boundary", "r1")
    assert (seen["status"], [one["slot"] for one in seen["in_doubt"]]) == ("in_doubt", ["charge#1"])
    assert seen["in_doubt"][0]["effect_key"] == project.charges[0]
    assert seen["remaining"] == ["charge", "mail"]
    why = project.json("why", "r1")
    assert "No live worker owns its partition now" in why["text"]
    worker = project.worker()
    until(lambda: needs(project, "r1") == "person", "the policy asks a person")
    project.call("doctor", code=1)
    answer = project.json("resolve", "r1", "charge#2", "--did-not-happen", code=2)
    assert answer["error"]["code"] == "R508"
    project.call(
        *("resolve", "r1", "charge#1", "--happened", "--result", '"charge-o1"'),
        *("--by", "ada", "--why", "seen in the bank"),
    )
    until(lambda: status(project, "r1") == "completed", "the run ends")
    resolved = [one for one in history(project, "r1") if one["event"] == "StepResolved"]
    assert "ada says it happened" in resolved[0]["what"]
    assert "(seen in the bank)" in resolved[0]["what"]
    assert len(project.charges) == 1
    assert project.json("doctor")["ok"]
    assert worker.end(signal.SIGINT) == 0
    assert json.loads(worker.out[-1])["stopped"] is True


def test_a_command_waits_in_the_log_for_a_worker(project: Project) -> None:
    project.call("namespace", "create")
    error = project.json(
        *("start", "shop", "--input", '{"id": "o1"}', "--run-id", "r1", "--within", "0.2"), code=3
    )["error"]
    assert error["code"] == "R512"
    assert "1 command(s) wait and no live worker" in project.call("doctor", code=1).stdout
    project.worker()
    waited = project.json("start", "shop", "--input", '{"id": "o1"}', "--run-id", "r1", "--wait")
    assert waited["result"] == "told o1"
    assert len(project.charges) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_command_waits_is_answered_with_what_stands_in_the_log(
    project: Project, number: signal.Signals
) -> None:
    """Nobody has to guess under which id a run will start once a worker comes."""
    project.call("namespace", "create")
    asking = project.begin("start", "sleeper", "--within", "600", "--json")
    waits = False
    while not waits:
        main(["doctor"])
        waits = "1 command(s) wait" in project.capsys.readouterr().out
    assert asking.end(number) == 3
    error = json.loads(asking.out[-1])["error"]
    assert (error["code"], error["kept"]) == (
        "R535",
        "the command; it stands in the log and is applied once",
    )
    run_id = error["next"].split()[2].strip("`")
    worker = project.worker()
    worker.says(run_id)
    waiting = project.begin("start", "sleeper", "--run-id", run_id, "--wait")
    waiting.says("was there already")
    assert waiting.end(number) == 3
    assert "Kept: the run; it goes on wherever a worker lives." in "".join(waiting.err)
    assert worker.end(signal.SIGTERM) == 0


def test_a_run_is_cancelled_and_a_failed_one_is_retried(project: Project) -> None:
    project.call("namespace", "create")
    project.worker()
    project.call("start", "sleeper", "--run-id", "r1")
    project.call("cancel", "r1", "--why", "no longer wanted")
    until(lambda: status(project, "r1") == "cancelled", "the run is cancelled")
    project.call("start", "shop", "--input", '{"id": "o1", "pence": 0}', "--run-id", "r2")
    until(lambda: status(project, "r2") == "failed", "the run fails")
    project.call("retry", "r2", "--fresh-key")
    until(lambda: len(project.charges) == 2, "the step is tried again")
    assert len(set(project.charges)) == 2, "under a fresh key"
    listed = project.json("runs")["runs"]
    assert {one["run_id"] for one in listed} == {"r1", "r2"}


def test_a_worker_never_makes_a_log(project: Project) -> None:
    assert project.json("worker", "shop:app", code=4)["error"]["code"] == "R304"
    assert not (project.folder / ".refold").exists()


def test_a_log_of_another_app_is_not_served(project: Project) -> None:
    project.call("run", "shop:app", "shop", "--input", '{"id": "o1"}', "--run-id", "r1")
    (project.folder / "other.py").write_text(SHOP.replace('App("shop")', 'App("other")'))
    done = project.call("worker", "other:app", code=project_refuses())
    assert "belongs to app 'shop', not 'other'" in done.stderr
    assert "another name behind ?ns= in its --log URL" in done.stderr


def project_refuses() -> int:
    from refold.engine.ending import ClaimRefused

    return ClaimRefused.exit_code


def test_changed_code_diverges_and_matching_code_goes_on(project: Project) -> None:
    killed_while_charging(project)
    changed = SHOP.replace("order.pence)\n", "order.pence + 450)\n")
    (project.folder / "shop.py").write_text(changed)
    arguments = ("run", "shop:app", "shop", "--input", '{"id": "o1"}', "--run-id", "r1")
    answer = project.json(*arguments, code=3)
    assert answer["status"] == "diverged"
    assert "charge: argument pence 4160 → 4610" in answer["sentence"]
    (project.folder / "shop.py").write_text(SHOP)
    answer = project.json(*arguments, code=3)
    assert answer["status"] == "in_doubt"
    assert len(project.charges) == 1


STUCK = """
import time
from datetime import timedelta

from refold import App, Policy, RunContext

app = App("shop")


@app.step(
    policy=Policy.ESCALATE,
    timeout=timedelta(milliseconds=100),
    lookup_for=timedelta(milliseconds=200),
)
def call_out() -> None:
    time.sleep(10**6)


@app.run("stuck")
async def stuck(ctx: RunContext) -> None:
    await ctx.step(call_out)
"""


def test_a_thread_that_never_ends_ends_its_process_with_its_last_word_said(
    project: Project,
) -> None:
    (project.folder / "stuck.py").write_text(STUCK)
    error = project.json("run", "stuck:app", "stuck", "--run-id", "r1", code=70)["error"]
    assert error["code"] == "R023"
    assert "run r1: the call of call_out#1, attempt 1, has not ended" in error["message"]
    assert needs(project, "r1") == "person"
    assert "released by" in project.call("doctor", code=1).stdout


# ---- dev


def test_dev_restarts_its_worker_when_the_code_changes(project: Project) -> None:
    developing = project.begin("dev", "shop:app", "--no-page", "--json")
    developing.says('"claimed"')
    started = ("start", "shop", "--input", '{"id": "o1"}', "--wait")
    assert project.json(*started, "--run-id", "r1")["result"] == "told o1"
    changed = SHOP.replace('f"told {order_id}"', 'f"informed {order_id}"')
    (project.folder / "shop.py").write_text(changed)
    developing.says('"claimed"')
    assert project.json(*started, "--run-id", "r2")["result"] == "informed o1"
    assert developing.end(signal.SIGINT) == 0
    assert "dev: changed: shop.py; restarting the worker\n" in developing.err


def test_a_worker_does_not_outlive_the_dev_that_started_it(project: Project) -> None:
    developing = project.begin("dev", "shop:app", "--no-page", "--json")
    developing.says('"claimed"')
    assert developing.end(signal.SIGKILL) == -signal.SIGKILL
    # Its output has ended, hence the worker has; and it had the time to hand over.
    assert json.loads(developing.out[-1])["stopped"] is True
    assert "released by" in project.call("doctor").stdout


# ---- several processes


def crew(project: Project) -> tuple[Child, list[int]]:
    """`refold worker --processes 2` that has claimed all four partitions, and its pids."""
    log = "sqlite:///.refold/log.db?partitions=4"
    project.call("namespace", "create", "--log", log)
    parent = project.begin("worker", "shop:app", "--processes", "2", "--json")
    until(lambda: owners(project) == [2, 2], "each has claimed two partitions")
    assert len(started(parent)) == 2
    return parent, started(parent)


def told(child: Child, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in list(child.out)]
    return [line for line in lines if line.get("event") == event]


def owners(project: Project) -> list[int]:
    """How many partitions each living process has that has any."""

    async def main() -> list[int]:
        async with Client(f"sqlite:///{project.folder}/.refold/log.db") as client:
            claims = [await client.claim_of(partition) for partition in range(4)]
        held = Counter(
            one.fold.facts.owner
            for one in claims
            if one.owner_lives and not one.fold.facts.released
        )
        return sorted(held.values())

    return asyncio.run(main())


def started(child: Child) -> list[int]:
    texts = [line["text"] for line in told(child, "process")]
    return [int(text.rpartition("pid ")[2]) for text in texts if "is started: pid" in text]


def test_processes_share_the_partitions_and_one_that_dies_is_started_again(
    project: Project,
) -> None:
    parent, pids = crew(project)
    os.kill(pids[0], signal.SIGKILL)
    until(lambda: len(started(parent)) == 3, "another one is started in its place")
    assert any("SIGKILL; it is started again" in t["text"] for t in told(parent, "process"))
    names = [f"r{number}" for number in range(8)]
    with BlockingClient(f"sqlite:///{project.folder}/.refold/log.db") as client:
        within = timedelta(seconds=PATIENCE_S)
        runs = [client.start("shop", {"id": "o"}, run_id=name, within=within) for name in names]
        assert [run.result(within=within) for run in runs] == ["told o"] * 8
    until(lambda: owners(project) == [2, 2], "each has two partitions again")
    assert parent.end(signal.SIGINT) == 0
    assert json.loads(parent.out[-1]) == {"stopped": True, "processes": 2, "exit_codes": [0, 0]}
    handed_over = [line for line in map(json.loads, parent.out) if "handed_over" in line]
    assert [line["handed_over"] for line in handed_over] == [True, True]


def test_processes_do_not_outlive_the_one_that_started_them(project: Project) -> None:
    parent, _ = crew(project)
    assert parent.end(signal.SIGKILL) == -signal.SIGKILL
    # Their output has ended, hence they have; and they had the time to hand over.
    ends = [json.loads(line) for line in parent.out if '"stopped"' in line]
    assert [line["handed_over"] for line in ends] == [True, True]


def test_more_processes_than_partitions_are_refused(project: Project) -> None:
    project.call("namespace", "create")
    refused = project.json("worker", "shop:app", "--processes", "2", code=2)["error"]
    assert "1 partition(s)" in refused["message"]


def test_processes_that_must_not_serve_end_with_the_reason(project: Project) -> None:
    project.call("namespace", "create", "--log", "sqlite:///.refold/log.db?partitions=2")
    project.worker().end(signal.SIGTERM)
    other = SHOP.replace('App("shop")', 'App("other")')
    (project.folder / "other.py").write_text(other)
    parent = project.begin("worker", "other:app", "--processes", "2", "--json")
    assert parent.process.wait(PATIENCE_S) == 2
    assert "belongs to app 'shop', not 'other'" in "".join(parent.out)


CREW = """
import os, sys, time
number = next(n for n in range(9) if not os.path.exists(f"{sys.argv[1]}/{n}"))
while True:
    try:
        os.close(os.open(f"{sys.argv[1]}/{number}", os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        number += 1
if number in UNREACHED:
    sys.exit(4)
if number == 3:
    os.kill(os.getppid(), 15)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("unreached", "code"),
    [((1, 2), 0), ((0, 1, 2, 3), 4)],
    ids=["another one serves", "nobody serves"],
)
def test_who_cannot_reach_the_log_is_tried_again_while_others_serve(
    tmp_path: Path, unreached: tuple[int, ...], code: int
) -> None:
    script = CREW.replace("UNREACHED", repr(unreached))
    parent = (
        "import sys; from refold_tools.cli.crew import Crew\n"
        f"command = [sys.executable, '-c', {script!r}, {str(tmp_path)!r}]\n"
        "sys.exit(Crew(command, 2, print).run())"
    )
    done = subprocess.run(
        [sys.executable, "-c", parent], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == code, done.stdout + done.stderr
    again = done.stdout.count("exit 4; it is started again")
    assert again == len(unreached) if code == 0 else again <= 2


# ---- at the edge


INTERRUPTED_WHILE_LOADING = """
import sys
from refold_tools.cli.leaving import run_process

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "asyncio" or name == "refold_tools.cli.failures":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
sys.argv = ["refold", "doctor"]
run_process()
"""


SIGNALLED_WHILE_IT_READS = """
import asyncio
import os
import sys
from refold_tools.cli import leaving
import refold_tools.cli as cli

async def read() -> int:
    try:
        os.kill(os.getpid(), int(sys.argv[1]))
        await asyncio.sleep(600)
    finally:
        print("cleaned up", flush=True)

def main() -> int:
    try:
        return asyncio.run(read())
    except KeyboardInterrupt:
        return 130

cli.main = main
leaving.run_process()
"""


def test_an_interrupt_while_modules_are_loaded_is_no_traceback(project: Project) -> None:
    """What takes long to load is loaded where somebody waits for the interrupt."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_LOADING],
        cwd=project.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_command_that_only_reads_ends_as_by_an_interrupt(
    project: Project, number: signal.Signals
) -> None:
    """What it has to clean up is cleaned up: a signal that nobody hears leaves it no time."""
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED_WHILE_IT_READS, str(int(number))],
        cwd=project.folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned up\n", "")


@pytest.mark.parametrize("command", ["history r1", "doctor", "run"])
def test_what_a_run_has_to_say_and_finds_no_room_is_no_defect(
    project: Project, command: str
) -> None:
    project.call("run", "shop:app", "shop", "--input", '{"id": "o1"}', "--run-id", "r1")
    if command == "run":
        command = 'run shop:app shop --run-id r1 --input \'{"id": "o1"}\''
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m refold_tools.cli {command} > /dev/full"],
        cwd=project.folder,
        env=project.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "output could not be written: No space left on device" in done.stderr
    assert done.stderr.endswith("(R533)\n")
    assert not crashed(done.stderr)


def test_a_reader_that_goes_away_is_no_error(project: Project) -> None:
    project.call("run", "shop:app", "shop", "--input", '{"id": "o1"}', "--run-id", "r1")
    script = f"{sys.executable} -m refold_tools.cli history r1 | head -1"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=project.folder,
        env=project.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_completion_scripts_are_printed(project: Project) -> None:
    done = subprocess.run(
        [*REFOLD, "--show-completion", "bash"],
        cwd=project.folder,
        # No shell stands above a test on a build server that could be asked for its name.
        env={**project.environment, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "_REFOLD_COMPLETE=complete_bash" in done.stdout
    completing = subprocess.run(
        REFOLD,
        cwd=project.folder,
        env={
            **project.environment,
            "_REFOLD_COMPLETE": "complete_bash",
            "COMP_WORDS": "refold bou",
            "COMP_CWORD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert completing.stdout.split() == ["boundary"]
