"""Bad input through the command line: one clear sentence, with what was kept and what to do next.

Each case is what a person meets: exit code, one line on stderr without a traceback, and with --json
the shape of errors as the last line of stdout.
"""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from refold.log.sqlite import SqliteLog
from refold_tools.cli import main
from refold_tools.cli.inputs import load_app
from support.command_line import folder_with
from support.console import crashed
from support.worker_thread import worker_of

Capture = pytest.CaptureFixture[str]
DEFAULTS: dict[str, Any] = SqliteLog.__init__.__kwdefaults__ or {}

APP = """
import asyncio
import socket
import threading
from datetime import timedelta

from pydantic import BaseModel

from refold import Absent, App, Effect, Found, Policy, RunContext

app = App("bad")
SHORT = {"timeout": timedelta(milliseconds=200), "settle": timedelta(milliseconds=10)}
kept = []


class Order(BaseModel):
    id: str
    pence: int


@app.step(policy=Policy.RE_EXECUTABLE)
async def read(number: int) -> int:
    return number


@app.step(policy=Policy.RE_EXECUTABLE)
async def store(value: object) -> str:
    return "stored"


@app.step(policy=Policy.ESCALATE)
async def connect(fx: Effect) -> object:
    with open("connected", "a") as file:
        file.write("once\\n")
    return {"sockets": [socket.socket]}


def raises(key: str) -> Absent:
    raise ConnectionError("the search is down")


def lies(key: str) -> object:
    return {"found": True}


@app.step(policy=Policy.RESOLVABLE, lookup=raises, lookup_for=timedelta(seconds=1), **SHORT)
async def charge(fx: Effect) -> str:
    raise ConnectionResetError("the answer was lost")


@app.step(policy=Policy.RESOLVABLE, lookup=lies, lookup_for=timedelta(seconds=1), **SHORT)
async def refund(fx: Effect) -> str:
    raise ConnectionResetError("the answer was lost")


@app.run("order")
async def order(ctx: RunContext, order: Order) -> int:
    return await ctx.step(read, order.pence)


@app.run("awaits-foreign")
async def awaits_foreign(ctx: RunContext) -> None:
    await asyncio.sleep(0.01)


@app.run("foreign-task")
async def foreign_task(ctx: RunContext) -> None:
    call = ctx.step(read, 1)
    errors = []

    def other() -> None:
        try:
            asyncio.run(wait(call))
        except Exception as error:
            errors.append(error)

    async def wait(call):
        return await call

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    raise errors[0]


@app.run("after-the-end")
async def after_the_end(ctx: RunContext) -> str:
    kept.append(ctx)
    return "over"


@app.run("outside")
async def outside(ctx: RunContext) -> None:
    await kept[0].step(read, 1)


@app.run("odd-argument")
async def odd_argument(ctx: RunContext) -> str:
    return await ctx.step(store, {"price": float("nan")})


@app.run("odd-result")
async def odd_result(ctx: RunContext) -> object:
    return await ctx.step(connect)


@app.run("odd-end")
async def odd_end(ctx: RunContext) -> object:
    return {"when": lambda: 1}


@app.run("lookup-raises")
async def lookup_raises(ctx: RunContext) -> str:
    return await ctx.step(charge)


@app.run("lookup-lies")
async def lookup_lies(ctx: RunContext) -> str:
    return await ctx.step(refund)


@app.run("swallows")
async def swallows(ctx: RunContext) -> str:
    while True:
        try:
            await ctx.sleep(timedelta(seconds=11))
            return "woke"
        except GeneratorExit:  # not the engine's: Python ends, and takes it away
            raise
        except BaseException:
            pass
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the module `bad_app`."""
    with folder_with("bad_app", APP, tmp_path, monkeypatch):
        yield tmp_path


def refused(capsys: Capture, *arguments: str, code: int) -> dict[str, Any]:
    """The error as JSON has it; the same words on one line of stderr."""
    assert main(list(arguments)) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    said = err.splitlines()[-1]
    assert main([*arguments, "--json"]) == code
    error: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    assert {"code", "message", "kept", "next"} <= set(error)
    assert all(error.values())
    assert error["code"] in said
    return error


def run(name: str, given: str = "null", *more: str) -> tuple[str, ...]:
    return ("run", "bad_app:app", name, "--input", given, *more)


def ends(capsys: Capture, name: str, *more: str, code: int) -> dict[str, Any]:
    """What `refold run --json` says of a run that does not end well."""
    assert main([*run(name, "null", *more), "--json"]) == code
    out, err = capsys.readouterr()
    assert not crashed(err)
    told: dict[str, Any] = json.loads(out.splitlines()[-1])
    return told


# ---- the log's file


def make_log(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)

    async def make() -> None:
        log = SqliteLog(path)
        await log.open(create=True)
        await log.close()

    asyncio.run(make())


def test_a_log_that_is_not_reachable(capsys: Capture, folder: Path) -> None:
    error = refused(capsys, "runs", "--log", "sqlite:////nowhere/at/all/log.db", code=4)
    assert "/nowhere/at/all" in error["message"]
    error = refused(capsys, "runs", "--log", f"sqlite:///{folder}", code=4)
    assert str(folder) in error["message"]


def test_a_log_that_is_locked(
    capsys: Capture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteLog.__init__, "__kwdefaults__", {**DEFAULTS, "lock_timeout_ms": 100})
    path = folder / "log.db"
    make_log(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        error = refused(capsys, "runs", "--log", f"sqlite:///{path}", code=4)
    assert "log.db" in error["message"]
    assert "lock" in error["message"]


DAMAGED = {
    "text": b"this is a letter, not a log\n" * 200,
    "damaged": b"SQLite format 3\x00" + b"\xff" * 9_000,
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_log_that_is_corrupted(capsys: Capture, folder: Path, kind: str) -> None:
    path = folder / "log.db"
    path.write_bytes(DAMAGED[kind])
    error = refused(capsys, "runs", "--log", f"sqlite:///{path}", code=4)
    assert "log.db" in error["message"]
    assert path.read_bytes() == DAMAGED[kind], "it was left as it was"


def test_a_log_on_a_full_disk(
    capsys: Capture, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite is given no more room than half of what is to be written."""
    path = folder / "log.db"
    make_log(path)
    monkeypatch.setattr(
        SqliteLog.__init__, "__kwdefaults__", {**DEFAULTS, "file_size_max": 400_000}
    )
    (folder / "order.json").write_text(json.dumps({"id": "x" * 10, "pence": 1}))
    long = json.dumps({"id": Random(1).randbytes(400_000).hex(), "pence": 1})
    (folder / "long.json").write_text(long)
    url = f"sqlite:///{path}"
    assert main([*run("order", "@order.json", "--log", url, "--run-id", "r1")]) == 0
    capsys.readouterr()
    error = refused(capsys, *run("order", "@long.json", "--log", url), code=4)
    assert "log.db" in error["message"]
    assert "full" in error["message"]
    # What was there before can be read.
    assert main(["boundary", "r1", "--log", url]) == 0


def test_a_log_that_is_read_only(capsys: Capture, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # one that a user without rights can reach
        path = Path(name) / "log.db"
        make_log(path)
        url = f"sqlite:///{path}"
        assert main(["runs", "--log", url]) == 0  # everything that is needed is loaded now
        capsys.readouterr()
        path.chmod(0o444)
        Path(name).chmod(0o555)
        with without_rights():
            error = refused(capsys, "runs", "--log", url, code=4)
        Path(name).chmod(0o755)
    assert str(path.name) in error["message"] or name in error["message"]
    assert "written" in error["message"]


@contextmanager
def without_rights() -> Iterator[None]:
    """As a user to whom file modes apply; root, who may run the tests, is above them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


# ---- the app


CHECKED = """
from datetime import timedelta
from refold import Absent, App, Effect, Policy, RunContext

app = App("checked")


@app.step(policy=Policy.RE_EXECUTABLE)
async def read() -> int:
    return 1


"""
REGISTRATIONS = {
    "two steps of one name": (
        "@app.step(policy=Policy.RE_EXECUTABLE)\nasync def read() -> int:\n    return 2\n",
        "read",
    ),
    "two runs of one name and version": (
        "@app.run('x')\nasync def x(ctx: RunContext) -> None: ...\n"
        "@app.run('x')\nasync def y(ctx: RunContext) -> None: ...\n",
        "x",
    ),
    "keyed without a life time": (
        "@app.step(policy=Policy.KEYED)\nasync def pay(fx: Effect) -> None: ...\n",
        "key_ttl",
    ),
    "resolvable without a lookup": (
        "@app.step(policy=Policy.RESOLVABLE, settle=timedelta(0))\n"
        "async def pay(fx: Effect) -> None: ...\n",
        "lookup",
    ),
    "resolvable without settle": (
        "@app.step(policy=Policy.RESOLVABLE, lookup=lambda key: Absent())\n"
        "async def pay(fx: Effect) -> None: ...\n",
        "settle",
    ),
    "a lookup that cannot be called": (
        "@app.step(policy=Policy.RESOLVABLE, lookup='find', settle=timedelta(0))\n"
        "async def pay(fx: Effect) -> None: ...\n",
        "lookup",
    ),
    "a run function that does not await": (
        "@app.run('x')\ndef x(ctx: RunContext) -> None: ...\n",
        "async",
    ),
    "parameters without a name": (
        "@app.step(policy=Policy.RE_EXECUTABLE)\nasync def pay(*orders) -> None: ...\n",
        "orders",
    ),
}


@pytest.mark.parametrize("kind", REGISTRATIONS)
def test_a_registration_that_lacks_something(capsys: Capture, folder: Path, kind: str) -> None:
    source, said = REGISTRATIONS[kind]
    (folder / "checked_app.py").write_text(CHECKED + source)
    try:
        error = refused(capsys, "check", "checked_app:app", code=2)
    finally:
        sys.modules.pop("checked_app", None)
    assert "checked_app.py:" in error["message"]
    assert said in f"{error['message']} {error['next']}"


def test_an_app_that_does_not_import(capsys: Capture, folder: Path) -> None:
    (folder / "broken_app.py").write_text("import nothing_of_that_name\n")
    error = refused(capsys, "run", "broken_app:app", "x", code=2)
    assert "broken_app.py:1: ModuleNotFoundError" in error["message"]
    assert not (folder / ".refold").exists()


# ---- runs and steps that are not there, or not so


def test_a_run_function_run_or_step_that_does_not_exist(capsys: Capture, folder: Path) -> None:
    assert "no run function 'x'" in refused(capsys, *run("x"), code=2)["message"]
    ends_well(capsys, "r1")
    assert "no run 'r2'" in refused(capsys, "why", "r2", code=2)["message"]


def ends_well(capsys: Capture, run_id: str) -> None:
    given = json.dumps({"id": "o1", "pence": 4160})
    assert main([*run("order", given, "--run-id", run_id)]) == 0
    capsys.readouterr()


def test_a_run_id_that_is_taken_by_other_input(capsys: Capture, folder: Path) -> None:
    ends_well(capsys, "r1")
    ends_well(capsys, "r1")  # the same input is the same run
    other = json.dumps({"id": "o1", "pence": 1})
    error = refused(capsys, *run("order", other, "--run-id", "r1"), code=2)
    assert "r1" in error["message"]
    assert "other input" in error["message"]


@pytest.mark.parametrize("run_id", ["", "x" * 201, "line\nbreak", "nul\x00"])
def test_a_run_id_that_cannot_be_one(capsys: Capture, folder: Path, run_id: str) -> None:
    given = json.dumps({"id": "o1", "pence": 4160})
    refused(capsys, *run("order", given, "--run-id", run_id), code=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"id": "o1"}', "pence"),
        ('{"id": "o1", "pence": "four"}', "pence"),
        ("[]", "order"),
        ("{", "line 1"),
        ("@nothing.json", "nothing.json"),
    ],
)
def test_input_that_does_not_validate(capsys: Capture, folder: Path, given: str, said: str) -> None:
    error = refused(capsys, *run("order", given), code=2)
    assert said in error["message"]
    assert not (folder / ".refold").exists()


@pytest.fixture
def worker(folder: Path) -> Iterator[None]:
    """A worker on a loop in a thread, as another process would be."""
    make_log(folder / ".refold" / "log.db")
    with worker_of(load_app("bad_app:app"), "sqlite:///.refold/log.db"):
        yield


@pytest.mark.usefixtures("worker")
def test_a_resolution_of_what_is_not_in_doubt(capsys: Capture) -> None:
    given = json.dumps({"id": "o1", "pence": 4160})
    assert main(["start", "order", "--input", given, "--run-id", "r1", "--wait"]) == 0
    capsys.readouterr()
    for slot, said in (("read#1", "its outcome is recorded"), ("charge#1", "no such slot")):
        for word in (["--did-not-happen"], ["--happened", "--result", "1"]):
            error = refused(capsys, "resolve", "r1", slot, *word, code=2)
            assert f"{slot} is not in doubt" in error["message"]
            assert said in error["message"]
    error = refused(capsys, "resolve", "r9", "read#1", "--did-not-happen", code=2)
    assert "no run 'r9'" in error["message"]


# ---- run code that does what it must not


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("awaits-foreign", "asyncio"),
        ("foreign-task", "read"),
        ("odd-argument", "price"),
        ("odd-result", "sockets"),
        ("odd-end", "when"),
    ],
)
def test_run_code_that_does_what_it_must_not(
    capsys: Capture, folder: Path, name: str, said: str
) -> None:
    told = ends(capsys, name, "--run-id", "r1", code=1)
    assert told["status"] == "failed"
    assert said in told["error"]["message"]
    # The same again, from the record: nothing is done a second time.
    assert ends(capsys, name, "--run-id", "r1", code=1)["error"] == told["error"]
    if name == "odd-result":
        assert (folder / "connected").read_text() == "once\n"


def test_a_step_that_is_called_outside_its_run(capsys: Capture, folder: Path) -> None:
    assert main(list(run("after-the-end"))) == 0
    capsys.readouterr()
    told = ends(capsys, "outside", code=1)
    assert "read" in told["error"]["message"]


def test_run_code_that_swallows_its_teardown(capsys: Capture, folder: Path) -> None:
    """Evicted while it sleeps, it is abandoned, and said; the run itself goes on where it was."""
    assert main(list(run("swallows", "null", "--run-id", "r1"))) == 0
    out, err = capsys.readouterr()
    assert "woke" in out
    assert "run code swallowed its teardown and was abandoned; nothing of it is lost" in err
    assert "(R018)" in err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lookup-raises", "ConnectionError: the search is down"),
        ("lookup-lies", "it returned dict, which is no lookup answer"),
    ],
)
def test_a_lookup_that_raises_or_lies_goes_to_a_person(
    capsys: Capture, folder: Path, name: str, said: str
) -> None:
    """Neither is an answer: asked again, and after `lookup_for` a person is."""
    told = ends(capsys, name, "--run-id", "r1", code=3)
    assert told["status"] == "in_doubt"
    assert main(["why", "r1"]) == 0
    why = capsys.readouterr().out
    assert said in why
    assert "no lookup has answered for too long" in why
    assert "refold resolve r1" in why


@pytest.mark.parametrize(
    ("output", "said"),
    [(">&-", ""), (">/dev/full", "there is no run"), (">out", "")],
    ids=["closed", "full", "ascii"],
)
def test_an_output_that_cannot_take_what_is_said(output: str, said: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    assert main(["namespace", "create", "--log", url]) == 0
    command = f"exec '{sys.executable}' -m refold_tools.cli boundary Jürgen --log '{url}'"
    ended = subprocess.run(
        ["/bin/sh", "-c", f"{command} --json {output}"],
        cwd=tmp_path,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUNBUFFERED": ""},
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    if output == ">out":
        assert json.loads((tmp_path / "out").read_text())["error"]["code"] == "R503"


def told_in_shell(line: str, folder: Path, unbuffered: str = "") -> str:
    """What `refold` says on stderr where its standard output is as `line` has it; it fails."""
    ended = subprocess.run(
        ["/bin/sh", "-c", line.replace("refold", f"'{sys.executable}' -m refold_tools.cli", 1)],
        cwd=folder,
        capture_output=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        text=True,
        check=False,
    )
    assert ended.returncode in (1, 2)
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.mark.parametrize(
    "command",
    ["--help", "runs", "runs --json", "worker bad_app:app", "namespace create", "devstack status"],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_the_output_is_no_defect(
    command: str, unbuffered: str, folder: Path
) -> None:
    assert main(["namespace", "create"]) == 0
    said = told_in_shell(f"refold {command} >/dev/full", folder, unbuffered)
    assert "output could not be written: No space left on device" in said
    assert "(R533)" in said


@pytest.mark.parametrize(
    "command", ["runs", "worker bad_app:app", "dev bad_app:app", "devstack up", "namespace create"]
)
def test_a_working_directory_that_was_deleted_is_no_defect(command: str, tmp_path: Path) -> None:
    said = told_in_shell(f"mkdir gone && cd gone && rmdir ../gone && refold {command}", tmp_path)
    assert "the working directory does not exist any more" in said
    assert "(R534)" in said
