"""Runs the scripts that measure other engines, and refold under the same harness.

`REFOLD_PEERS` names a folder with `common.py` and a script `NAME_bench.py` for each peer;
`PEERS_HOME` where their servers and environments are. refold joins through `peer_adapter`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from refold_schemas.errors import RefoldError

SCRIPT_S = 300
KIND_VARIABLE, URL_VARIABLE = "REFOLD_BENCH_ON", "REFOLD_BENCH_LOG"
"""They tell `peer_adapter` where refold's log is kept."""


class PeersMissing(RefoldError):
    """The scripts or the environment of a peer are not where they are said to be."""

    code = "R511"
    exit_code = 2


VARIANTS = {
    "restate": {"latency": "default", "throughput": "default"},
    "dbos": {"latency": "default", "throughput": "threads4"},
    "langgraph": {"latency": "sync", "throughput": "sync+gate16"},
    "temporal": {"latency": "wal+fastq", "throughput": "wal"},
}
TESTS = {
    "latency": "latency",
    "throughput": "throughput",
    "resume": "resume",
    "takeover": "takeover",
    "timers": "timers",
}


def peers_folder() -> Path:
    """The folder that REFOLD_PEERS names. Raises PeersMissing."""
    named = os.environ.get("REFOLD_PEERS")
    folder = Path(named or "").resolve()
    if not named or not (folder / "common.py").is_file():
        raise PeersMissing(
            f"REFOLD_PEERS names no folder with the peers' scripts ({named or 'not set'})",
            kept="the figures of refold alone can be measured without it",
            next="set REFOLD_PEERS to the folder that holds common.py",
        )
    return folder


def measure(peer: str, test: str, kind: str, log: str | None) -> dict[str, Any]:
    """One measurement of one peer (`refold` and `refold-flowing` too), as its script prints it.

    `kind` and `log` say where refold keeps its log; without a `log` its servers are its own.
    """
    folder = peers_folder()
    home = Path(os.environ.get("PEERS_HOME") or "/tmp/peers")
    environment = {**os.environ, "PEERS_HOME": str(home), "PYTHONPATH": str(folder)}
    if peer.startswith("refold"):
        script = Path(__file__).with_name("peer_adapter.py")
        variant = "flowing" if peer.endswith("flowing") else "default"
        command = [sys.executable, str(script), test, variant]
        environment[KIND_VARIABLE], environment[URL_VARIABLE] = kind, log or ""
        inherited = os.environ.get("PYTHONPATH")
        if inherited:
            environment["PYTHONPATH"] = f"{folder}{os.pathsep}{inherited}"
    else:
        python = home / f"ve-{peer}" / "bin" / "python"
        if not python.exists():
            raise PeersMissing(
                f"{peer} is not installed under PEERS_HOME ({home})",
                kept="what was measured before",
                next=f"run {folder / 'setup.sh'} first",
            )
        variant = VARIANTS[peer].get(test, "default")
        command = [str(python), str(folder / f"{peer}_bench.py"), test, variant]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=SCRIPT_S, check=False
    )
    for text in reversed(done.stdout.splitlines()):
        if text.startswith("RESULT "):
            result: dict[str, Any] = json.loads(text[len("RESULT ") :])
            return result
    return {"peer": peer, "test": test, "error": done.stderr[-500:]}
