"""`refold demo` as a newcomer calls it: real processes, real SIGKILLs, through the command line."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from refold_tools.cli import main

ROOT = Path(__file__).parents[2]
REFOLD = [sys.executable, "-m", "refold_tools.cli"]
WITHIN_S = 120.0
REFUND_EFFECTS = {"ticket": 1, "email": 1, "refund": 1, "note": 1}
LINE = re.compile(r"^\d\d:\d\d:\d\d\.\d  (agent |crash |refold|world |person)  \S.*$")


def environment(tmp_path: Path) -> dict[str, str]:
    """Ours, with the temporary files where the test can see whether any is left."""
    return {**os.environ, "TMPDIR": str(tmp_path), "NO_COLOR": "1"}


def refold(
    tmp_path: Path, *arguments: str, code: int = 0, more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*REFOLD, *arguments],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        cwd=tmp_path,
        env={**environment(tmp_path), **(more or {})},
        check=False,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def demo(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    """The last line of `refold demo … --json`, and that it left nothing behind."""
    done = refold(tmp_path, "demo", *arguments, "--json")
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("refold-demo")] == []
    assert children_of(done.stderr) == []
    return told


def children_of(timeline: str) -> list[int]:
    """Pids that a timeline names and that are still processes of ours."""
    pids = {int(pid) for pid in re.findall(r"(?:worker|pid|kill -9) (\d+)", timeline)}
    return [pid for pid in sorted(pids) if is_ours(pid)]


def is_ours(pid: int) -> bool:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"refold_tools.cli" in line or b"world" in line


def check_timeline(timeline: str) -> list[str]:
    """Every line but the headlines has a clock and a speaker; returns those lines."""
    assert "\x1b" not in timeline
    lines = [line for line in timeline.splitlines() if line]
    spoken = [line for line in lines if LINE.match(line)]
    assert len(lines) - len(spoken) == 1
    return spoken


@pytest.mark.untraced  # the same on Kafka is
def test_the_demo_dies_twice_and_refunds_once(tmp_path: Path) -> None:
    done = refold(tmp_path, "demo", "--json")
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["completed"] is True
    assert told["effects"] == REFUND_EFFECTS
    assert [kill["turn"] for kill in told["kills"]] == [22, 31]
    assert len({kill["pid"] for kill in told["kills"]}) == 2
    assert re.fullmatch(
        r"28 steps complete, issue_refund in doubt since \d\d:\d\d, three steps remaining",
        told["sentence"],
    )
    assert told["kills"][0]["in_doubt"] == ["issue_refund#1"]
    assert told["kills"][1]["in_doubt"] == []
    assert told["executed_twice"] == ["decide#31"]
    assert told["resolved"] == [{"slot": "issue_refund#1", "verdict": "done", "by": "lookup"}]
    assert told["problems"] == []
    spoken = check_timeline(done.stderr)
    speakers = [line[12:18].strip() for line in spoken]
    assert set(speakers) == {"world", "refold", "agent", "crash"}
    crash = speakers.index("crash")
    # What the record says stands between the kill and the next worker.
    assert told["sentence"] in spoken[crash + 2]
    assert "takes over" in spoken[crash + 3]
    assert "executed twice: decide#31, which only reads" in spoken[-1]


@pytest.mark.untraced
def test_a_demo_killed_at_the_e_mail_asks_a_person_and_its_log_can_be_read(tmp_path: Path) -> None:
    # Relative to the folder that the demo is called in, whatever lies around there.
    url = "sqlite:///demo.db"
    (tmp_path / "world.py").write_text("raise ImportError('somebody else's')")
    told = demo(tmp_path, "--kill-at", "14", "--kill-at", "6", "--log", url)
    assert told["completed"] is True
    assert [kill["turn"] for kill in told["kills"]] == [6, 14]
    assert told["effects"] == REFUND_EFFECTS
    assert told["executed_twice"] == ["open_ticket#1"]
    assert told["duplicates"] == {"ticket": 1}
    assert told["resolved"] == [{"slot": "send_email#1", "verdict": "done", "by": "person"}]
    done = refold(tmp_path, "boundary", told["run_id"], "--log", url, "--json")
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["status"] == "completed"
    assert len(seen["done"]) == 50
    # The same log is no place for another app, and one sentence says so.
    other = refold(tmp_path, "demo", "recorded-agent", "--log", url, "--json", code=1)
    error = json.loads(other.stdout.splitlines()[-1])["error"]
    assert error["code"] == "R530"
    assert "refunds" in error["message"]
    assert "demo.db" in error["kept"]
    assert children_of(other.stderr) == []


def test_the_purchase_order_dies_at_item_173_and_while_booking(tmp_path: Path) -> None:
    told = demo(tmp_path, "purchase-order")
    assert told["completed"] is True
    assert [kill["step"] for kill in told["kills"]] == ["quote", "book_shipment"]
    assert told["kills"][0]["slot"] == "map#1[150..174]/quote#1"
    (reference,) = told["references"]["ERP"]
    assert told["references"] == {place: [reference] for place in ("ERP", "portal", "shipment")}
    assert told["pallets"] == 1
    assert set(told["effects"].values()) == {1}
    assert told["executed_twice"] == ["map#1[150..174]/quote#1"]
    assert told["resolved"] == [{"slot": "book_shipment#1", "verdict": "done", "by": "lookup"}]


def test_the_recorded_agent_plays_a_file(tmp_path: Path) -> None:
    calls = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": "transfer_to_human_agents", "arguments": "{}"},
        }
        for call_id in ("c", "d")
    ]
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Both of us want to speak to somebody."},
        {"role": "assistant", "content": None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": one["id"], "content": "rung up"} for one in calls),
        {"role": "assistant", "content": "Two colleagues will ring you."},
    ]
    path = tmp_path / "mine.jsonl"
    silent = {"id": "two-of-us", "messages": [messages[0], messages[-1]]}
    played = {"id": "two-of-us", "messages": messages}
    path.write_text("".join(json.dumps(one) + "\n" for one in (silent, played)))
    told = demo(tmp_path, "recorded-agent", "--file", str(path))
    assert told["completed"] is True
    assert [one["run_id"] for one in told["runs"]] == ["two-of-us", "two-of-us-2"]
    assert told["effects"] == {"desk:transfer_to_human_agents": 2}
    assert len(told["kills"]) == 1
    assert {one["by"] for one in told["runs"][1]["resolved"]} == {"person"}
    assert told["executed_twice"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "there is no demo 'nothing'; there are refund-agent, purchase-order"),
        (["--kill-at", "41"], "--kill-at 41: the agent has turns 1 to 40"),
        (["--kill-at", "0"], "--kill-at 0: the agent has turns 1 to 40"),
        (["purchase-order", "--kill-at", "3"], "--kill-at names turns of refund-agent"),
        (["--file", "x.jsonl"], "--file is played by recorded-agent"),
        (["recorded-agent", "--file", "x.jsonl"], "x.jsonl: No such file"),
    ],
)
def test_a_demo_that_is_asked_wrongly_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *arguments, "--json"]) == 2
    out, err = capsys.readouterr()
    error = json.loads(out.splitlines()[-1])["error"]
    assert said in error["message"]
    assert error["next"]
    assert children_of(err) == []


def test_a_demo_without_its_extra_names_it(tmp_path: Path) -> None:
    # An installation without the extra: a finder that has no aiohttp.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'aiohttp':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
    )
    more = {"PYTHONPATH": str(tmp_path)}
    done = refold(tmp_path, "demo", "--json", code=2, more=more)
    error = json.loads(done.stdout.splitlines()[-1])["error"]
    assert error["code"] == "R531"
    assert "aiohttp" in error["message"]
    assert "pip install '.[demo]' in a checkout of it" in error["next"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_interrupted_stops_all_that_it_started(
    tmp_path: Path, number: signal.Signals
) -> None:
    running = subprocess.Popen(
        [*REFOLD, "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=tmp_path,
        env=environment(tmp_path),
    )
    assert running.stdout is not None
    lines: list[str] = []
    try:
        for line in running.stdout:
            lines.append(line)
            if "  agent   " in line:
                break
        running.send_signal(number)
        rest, _ = running.communicate(timeout=30)
    finally:
        if running.poll() is None:
            running.kill()
            running.wait()
    assert running.returncode == (-9 if number is signal.SIGKILL else 130)
    timeline = "".join(lines) + rest
    assert "Traceback" not in timeline
    assert re.search(r"worker \d+ starts", timeline)
    deadline = time.monotonic() + 10
    while children_of(timeline) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children_of(timeline) == []
    if number is not signal.SIGKILL:  # which leaves no time to clean up
        left = [path.name for path in tmp_path.iterdir() if path.name.startswith("refold-demo")]
        assert left == []
