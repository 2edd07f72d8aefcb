"""`refold export` is killed at any moment and called again: in the end the files are the same."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from refold.log import open_log
from refold.log.memory import MemoryLog
from refold.log.port import Entry, Topic
from refold_schemas.events import RunCompleted
from refold_schemas.values import encode_value
from refold_tools.export import Manifest, read_manifest
from support.written_log import Writer, done, started

RUNS = 1_500
COMMAND = [
    sys.executable,
    "-m",
    "refold_tools.cli",
    "export",
    "--log",
    "sqlite:///log.db",
    "--json",
]


async def fill(url: str) -> None:
    """A log of RUNS runs on SQLite."""
    made = MemoryLog("memory://killed-export")
    made.broker.recreate()
    writer = Writer(made.broker)
    writer.claim()
    for number in range(RUNS):
        run_id = f"run-{number:05}"
        writer.write(run_id, *started(given={"order": number}), done("read#1", "x" * 200))
        writer.write(run_id, RunCompleted(encode_value(number)))
    log = open_log(url)
    await log.open(create=True)
    records = made.broker.records(Topic.EVENTS, 0)
    for first in range(0, len(records), 500):
        entries = [Entry(r.key, r.value, r.header) for r in records[first : first + 500]]
        await log.append(Topic.EVENTS, 0, entries)
    await log.close()


def digests(manifest: Manifest | None) -> list[tuple[str, int, str]]:
    assert manifest is not None
    assert manifest.complete
    return [(one.path, one.rows, one.sha256) for one in manifest.files]


def test_an_export_that_is_killed_again_and_again_ends_as_one_that_was_not(tmp_path: Path) -> None:
    asyncio.run(fill(f"sqlite:///{tmp_path}/log.db"))
    kept = {name: text for name, text in os.environ.items() if not name.startswith("REFOLD_")}

    def begin(folder: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*COMMAND, "--to", folder],
            cwd=tmp_path,
            env=kept,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    whole = begin("whole")
    begun = time.monotonic()
    out, err = whole.communicate(timeout=60)
    took_s = time.monotonic() - begun
    assert whole.returncode == 0, err
    assert json.loads(out)["rows"]["events"] == 3 * RUNS + 1
    for share in (0.6, 0.9, 0.75):
        child = begin("out")
        time.sleep(took_s * share)
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=60)
        manifest = read_manifest(tmp_path / "out")
        for one in () if manifest is None else manifest.files:
            assert (tmp_path / "out" / one.path).stat().st_size == one.size
    last = begin("out")
    out, err = last.communicate(timeout=60)
    finished = read_manifest(tmp_path / "out")
    # Either it went on to the end now, or one of the killed ones had just said its last word.
    assert last.returncode == 0 or "is complete, up to" in out, out + err
    ours, theirs = digests(finished), digests(read_manifest(tmp_path / "whole"))
    assert ours == theirs
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.name.endswith(".part")]
    assert left == [] or last.returncode != 0
