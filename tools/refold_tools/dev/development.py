"""What `refold dev` starts, watches and ends, in which order."""

import contextlib
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from refold_schemas.errors.base import RefoldError
from refold_tools.dev.changes import changed, snapshot
from refold_tools.dev.child import WorkerChild
from refold_tools.dev.database import FOLDER, lives, place_of, start_again, start_database
from refold_tools.dev.folder import Hold, held
from refold_tools.dev.metrics import Listening
from refold_tools.dev.page import Page, check_installed, choose_port
from refold_tools.devstack import Stack
from refold_tools.processes import hears_hangups

LOOK_EVERY_S = 0.5
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start.

    `command` is the worker's, `watched` are the folders whose Python files it depends on, `folder`
    is where state is kept (`.refold`). `who`: what commands from the page record as their sender.
    `database_url`: one that runs already. `port` None: any.
    Without `page` it is the worker alone. `listening`: where Prometheus is answered for all parts;
    `command` says so to the worker.
    """

    command: Sequence[str]
    watched: tuple[Path, ...]
    folder: Path
    log_url: str
    time_zone: str
    who: str
    database_url: str | None = None
    port: int | None = None
    page: bool = True
    listening: Listening | None = None


class Development:
    """One `refold dev`. `tell(text)` is told what happens; `ready(url, metrics_url)` when the
    page is there."""

    def __init__(
        self,
        plan: Plan,
        tell: Callable[[str], None],
        ready: Callable[[str | None, str | None], None],
    ) -> None:
        self.plan, self.tell, self.ready = plan, tell, ready
        self.child = WorkerChild(plan.command, tell)
        self._signals = 0
        self._database: Stack | None = None
        self._database_problem = ""
        self._stopping = threading.Event()

    def run(self, prepare: Callable[[], None] = lambda: None) -> int:
        """Until one of SIGNALS; returns 0 once everything that was started has ended.

        `prepare` is called once the folder is held, before anything starts. Call this from the main
        thread. Raises DevRunning, DevExtraMissing, DevPortTaken, DevPageEnded, and what keeps the
        database from coming up.
        """
        heard = [one for one in SIGNALS if one != signal.SIGHUP or hears_hangups()]
        before = {number: signal.signal(number, self._signalled) for number in heard}
        try:
            with held(self.plan.folder) as hold, contextlib.ExitStack() as started:
                prepare()
                self._begin(hold, started)
            return 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _begin(self, hold: Hold, started: contextlib.ExitStack) -> None:
        """Start everything, watch until a signal, and leave the ends to `started`."""
        plan = self.plan
        port = 0
        if plan.page:
            check_installed()
            port = choose_port(plan.port)
        seen = snapshot(plan.watched)
        self.child.start()
        started.callback(self._end_worker)
        if plan.page and not self._stopping.is_set():
            database_url = plan.database_url
            if database_url is None:
                stack = self._database = start_database(plan.folder / FOLDER)
                started.callback(stack.down)
                database_url = stack.variables["REFOLD_DATABASE_URL"]
                self.tell(f"the database is {database_url}, its data are in {place_of(stack)}")
            if self._stopping.is_set():
                return
            page = Page(
                plan.log_url,
                database_url,
                port,
                plan.time_zone,
                plan.who,
                self.tell,
                plan.listening,
            )
            page.start()
            started.callback(page.end)
            # The worker first: what it writes last is still projected.
            started.callback(self._end_worker)
            page.wait_ready(self._stopping)
            if self._stopping.is_set():
                return
            hold.tell(page.url)
            self.ready(page.url, page.metrics_url)
        else:
            self.ready(None, None)
        self._watch(seen)

    def _watch(self, seen: dict[str, int]) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            self.child.look()
            self._look_at_database()
            now = snapshot(self.plan.watched)
            if now != seen:
                self.tell(f"changed: {', '.join(changed(seen, now))}; restarting the worker")
                self.child.end()
                if not self._stopping.is_set():
                    self.child.start()
            seen = now

    def _look_at_database(self) -> None:
        """Start it again where it has ended: the page and the projector find it by themselves."""
        if self._database is None or lives(self._database):
            return
        if not self._database_problem:
            self.tell("the database has ended; it is started again, and the tables go on")
        try:
            start_again(self._database)
        except RefoldError as error:  # what is left of the old one may be in the way for a moment
            if error.message != self._database_problem:  # once for each cause
                self._database_problem = error.message
                self.tell(f"the database does not start, and is tried again: {error.message}")
            return
        self._database_problem = ""

    def _signalled(self, number: int, frame: object) -> None:
        if number != signal.SIGHUP:  # a terminal's end hurries nobody
            self._signals += 1
        if self._signals > 1:
            self.child.hurry()
        self._stopping.set()

    def _end_worker(self) -> None:
        self.child.end()
