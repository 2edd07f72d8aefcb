"""refold under the peers' harness: run by `refold bench --vs`, which puts that harness on the path.

`default`: each step durable before the next; `flowing`: output commit.
"""

import contextlib
import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from refold_tools.bench.orders import order
from refold_tools.bench.peers import KIND_VARIABLE, URL_VARIABLE
from refold_tools.bench.stores import Store, open_store
from refold_tools.bench.work import CRASH_VARIABLE, LOG_VARIABLE

PLACE_VARIABLE = "REFOLD_BENCH_PLACE"
"""The URL of the log that the worker process serves."""


def adapter(harness: Any) -> type:
    """The adapter class that the harness drives."""

    class Refold(harness.Adapter):  # type: ignore[misc]  # known only at run time
        """A log, one worker process, the client in the harness's own."""

        name, script = "refold", str(Path(__file__).resolve())

        def up(self) -> None:
            """A fresh, empty log; on Kafka with a broker of its own unless one was named."""
            folder = Path(harness.RUN) / "refold"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            self.open = contextlib.ExitStack()
            found = open_store(
                os.environ[KIND_VARIABLE], os.environ.get(URL_VARIABLE) or None, folder
            )
            self.store: Store = self.open.enter_context(found)
            self.url = self.store.url("peers")

        def down(self) -> None:
            """End the broker if it is ours."""
            self.open.close()

        def roots(self) -> list[int]:
            """The broker's pid."""
            return list(self.store.server_pids())

        def worker(self, log: str, env: dict[str, str] | None = None) -> Any:
            """A worker process that takes work."""
            return super().worker(log, {**(env or {}), PLACE_VARIABLE: self.url})

        def _order(self, op: str, wf: str, n: int, given: dict[str, Any]) -> dict[str, Any]:
            if wf == "steps":
                run, value = "flowing" if self.variant == "flowing" else "steps", given["steps"]
            else:
                run, value = "timer" if given.get("bare") else "sleeper", given["secs"]
            return order(self.url, op, run, n, value, given["tag"])

        def run_many(self, w: Any, wf: str, n: int, **given: Any) -> Any:
            """All at once."""
            return self._order("many", wf, n, given)

        def run_seq(self, w: Any, wf: str, n: int, **given: Any) -> Any:
            """One after the other."""
            return self._order("seq", wf, n, given)

        def submit(self, w: Any, wf: str, n: int, **given: Any) -> None:
            """Start them only."""
            self._order("submit", wf, n, given)

        def stored(self) -> int | None:
            """Bytes of the log's files."""
            return self.store.stored(self.url)

    return Refold


def serve() -> None:
    """The worker process: its steps leave their lines where the harness reads them."""
    import asyncio

    from refold_tools.bench import worker

    os.environ[LOG_VARIABLE] = os.environ["PEERS_LOG"]
    crash = os.environ.get("PEERS_CRASH_AT")
    if crash is not None:
        os.environ[CRASH_VARIABLE] = crash
    asyncio.run(worker.serve(os.environ[PLACE_VARIABLE], "bench-1"))


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules must not hide others
    found = importlib.import_module("common")
    found.main(adapter(found), lambda variant: serve())
