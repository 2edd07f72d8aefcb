"""refold under the peers' harness: run by `refold bench --vs`, which puts that harness on the path.

`default`: each step durable before the next; `flowing`: output commit.
"""

import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from refold_tools.bench.orders import order
from refold_tools.bench.process import stored_bytes
from refold_tools.bench.work import CRASH_VARIABLE, LOG_VARIABLE


def home(harness: Any) -> Path:
    """Where refold's log is while it is measured."""
    return Path(harness.RUN) / "refold"


def url(harness: Any) -> str:
    """The log's URL."""
    return f"sqlite:///{home(harness) / 'log.db'}"


def adapter(harness: Any) -> type:
    """The adapter class that the harness drives; there is no server."""

    class Refold(harness.Adapter):  # type: ignore[misc]  # known only at run time
        """A SQLite log, one worker process, the client in the harness's own."""

        name, script = "refold", str(Path(__file__).resolve())

        def up(self) -> None:
            """A fresh, empty log."""
            shutil.rmtree(home(harness), ignore_errors=True)
            home(harness).mkdir(parents=True)

        def _order(self, op: str, wf: str, n: int, given: dict[str, Any]) -> dict[str, Any]:
            if wf == "steps":
                run, value = "flowing" if self.variant == "flowing" else "steps", given["steps"]
            else:
                run, value = "timer" if given.get("bare") else "sleeper", given["secs"]
            return order(url(harness), op, run, n, value, given["tag"])

        def run_many(self, w: Any, wf: str, n: int, **given: Any) -> Any:
            """All at once."""
            return self._order("many", wf, n, given)

        def run_seq(self, w: Any, wf: str, n: int, **given: Any) -> Any:
            """One after the other."""
            return self._order("seq", wf, n, given)

        def submit(self, w: Any, wf: str, n: int, **given: Any) -> None:
            """Start them only."""
            self._order("submit", wf, n, given)

        def stored(self) -> int:
            """Bytes of the log's files."""
            return stored_bytes(home(harness) / "log.db")

    return Refold


def serve(harness: Any) -> None:
    """The worker process: its steps leave their lines where the harness reads them."""
    import asyncio

    from refold_tools.bench import worker

    os.environ[LOG_VARIABLE] = os.environ["PEERS_LOG"]
    crash = os.environ.get("PEERS_CRASH_AT")
    if crash is not None:
        os.environ[CRASH_VARIABLE] = crash
    asyncio.run(worker.serve(url(harness)))


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules must not hide others
    found = importlib.import_module("common")
    found.main(adapter(found), lambda variant: serve(found))
