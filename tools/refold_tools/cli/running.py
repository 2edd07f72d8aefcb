"""`refold run`: a worker and a client in one process, on one handle of the log, for one run."""

import asyncio
import uuid
from datetime import datetime, timedelta, tzinfo
from itertools import islice
from typing import TYPE_CHECKING

from refold_tools.cli.inputs import load_app, read_json, zone_of
from refold_tools.cli.options import (
    AppArgument,
    ByOption,
    InputOption,
    JsonOption,
    LogOption,
    NameArgument,
    NewRunIdOption,
    asker,
)

if TYPE_CHECKING:
    from refold.app import App, RunDef
    from refold.client import Client
    from refold.client.questions import BoundaryAt
    from refold.worker import Worker, WorkerEvent
    from refold_projections.fold import RunState
    from refold_tools.cli.ending import Outcome

LOOK_S = 2.0
"""How long an owner has to look at a run that stands still, before it counts as stopped."""
QUIET_S = 0.1
"""How long nothing of the run may go on in our own worker before it counts as stopped."""
OF_CLAIMS = ("claimed", "released")
OTHERS_MAX = 5
OTHERS_LOOK_MAX = 1_000
LOOK_AGAIN = timedelta(milliseconds=100)


def run(
    target: AppArgument,
    name: NameArgument,
    given: InputOption = None,
    run_id: NewRunIdOption = None,
    by: ByOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run one run to its end, here: like a worker, and a client that waits for it.

    A run that exists with the same name and input is resumed, whoever began it; where somebody
    else owns its partition, it is started and waited for. With other input: exit 2. Exit 3 where
    the run waits for a person or other code and nothing else of it can go on.
    """
    from refold.settings import log_url
    from refold_tools.cli.ending import finish
    from refold_tools.cli.leaving import run_to_end

    data = read_json("--input", given)
    app = load_app(target)
    definition = _definition(app, name, target)
    if run_id is None:  # an empty one is somebody's mistake, and refused as any other
        run_id = str(uuid.uuid4())
    work = _Run(app, definition, data, run_id, asker(by), as_json=as_json)
    url = log_url(log)

    async def to_its_end() -> int:
        return finish(await work.on_log(url), as_json=as_json)

    return run_to_end(to_its_end(), as_json=as_json)


def _definition(app: "App", name: str, target: str) -> "RunDef":
    from refold_schemas.errors.cli import RunFunctionUnknown

    found = app.runs.get(name)
    if found is None:
        raise RunFunctionUnknown(name, target, tuple(app.runs))
    return found


class _Run:
    """One call of `refold run`."""

    def __init__(
        self,
        app: "App",
        definition: "RunDef",
        data: object,
        run_id: str,
        by: str,
        *,
        as_json: bool,
    ) -> None:
        from refold_schemas.values import check_run_id, encode_value

        check_run_id(run_id)
        self.app, self.definition, self.run_id, self.by = app, definition, run_id, by
        self.as_json = as_json
        self.data, self.value = data, encode_value(data, path="input")
        self.typed = definition.read_input(self.value)
        self.zone: tzinfo = zone_of(app=app)
        self.stopping = asyncio.Event()
        self.claimed_at: float | None = None
        self.busy_at = 0.0
        self.said_others = False

    async def on_log(self, url: str) -> "Outcome":
        """Open the log, do the run, and say how it stands afterwards."""
        from refold.client.client import Client
        from refold.log import open_log
        from refold_tools.cli.ending import outcome_of
        from refold_tools.cli.output import ReadingProgress, say
        from refold_tools.cli.registering import make_ready

        log = open_log(url)
        if await log.open(create=True):
            say(f"made the log {log.url}", "dim", error=True)
        progress = ReadingProgress()
        try:
            async with Client(log, by=self.by, on_progress=progress) as client:
                await make_ready(url, client.codec)
                state = await client.find(self.run_id)
                progress.end()
                if state is not None:
                    self._check_same(state)
                    if state.ended is not None and not await self._ordered(client):
                        return await outcome_of(client, self.run_id, self.zone)
                    await self._say_boundary(client)
                elif not self.as_json:
                    say(f"starting {self.run_id}, times in {self.zone}", "bold", error=True)
                await self._work(client, exists=state is not None)
                interrupted = self.stopping.is_set()
                return await outcome_of(client, self.run_id, self.zone, interrupted=interrupted)
        finally:
            progress.end()
            await log.close()

    def _check_same(self, state: "RunState") -> None:
        """Raise RunExists unless the run has our name and our input, in today's type."""
        from refold_schemas.errors.cli import RunExists
        from refold_schemas.values import canon_of, values_differ

        if state.run != self.definition.name:
            detail = f"run {self.run_id} exists as {state.run}"
        elif canon_of(state.input) == canon_of(self.value):
            return
        else:
            difference = values_differ(state.input, self.typed, self.definition.input_type)
            if difference is None:
                return
            detail = f"run {self.run_id} exists with other input: {difference}"
        raise RunExists(self.run_id, "StartRun", "run_exists_other_input", detail)

    async def _say_boundary(self, client: "Client") -> None:
        """The sentence of a run to be resumed, computed once, before any work."""
        from refold_projections.fold import sentence
        from refold_tools.cli.output import say

        seen = (await client.boundary_at(self.run_id)).boundary
        today = datetime.now(self.zone).date()
        said = sentence(seen, self.zone, today)
        say(f"resuming {self.run_id}: {said}", "bold", error=self.as_json)
        say(f"times in {self.zone}", "dim", error=True)

    async def _work(self, client: "Client", *, exists: bool) -> None:
        from refold.worker import Worker, WorkerSettings
        from refold_tools.cli.failures import hard_exit
        from refold_tools.cli.output import say
        from refold_tools.cli.signals import stop_on_signals
        from refold_tools.cli.telling import event_teller

        tell = event_teller(self.zone, as_json=False, error=True)

        def on_event(event: "WorkerEvent") -> None:
            if event.kind == "claimed" and event.partition == partition:
                self.claimed_at = asyncio.get_running_loop().time()
                self._say_others(worker, partition)
            if event.kind in OF_CLAIMS and event.partition != partition:
                others.add(event.partition)  # one line at the end, not two for each
            elif event.kind != "resumed" or event.run_id != self.run_id:  # said that before
                tell(event)

        others: set[int] = set()
        partition = client.partition_of(self.run_id)
        end = hard_exit(lambda: worker, as_json=self.as_json)
        settings = WorkerSettings(time_zone=str(self.zone))
        worker = Worker(
            self.app,
            client.log,
            on_event=on_event,
            exit_hard=end,
            settings=settings,
            codec=client.codec,
        )
        with stop_on_signals(self.stopping.set):
            serving = asyncio.create_task(worker.run(), name="worker")
            following = asyncio.create_task(
                self._follow(client, worker, exists=exists), name="follow"
            )
            stopping = asyncio.create_task(self.stopping.wait(), name="signals")
            tasks = {serving, following, stopping}
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
                elif serving.done():
                    serving.result()
            finally:
                for task in (following, stopping):
                    task.cancel()
                await asyncio.wait({following, stopping})
                worker.stop()
                await serving
                if others:
                    say(f"other partitions served meanwhile: {len(others)}", "dim", error=True)

    def _say_others(self, worker: "Worker", partition: int) -> None:
        """Name, once, runs that our worker drives beside ours: it owns the whole partition."""
        from refold_tools.cli.output import say

        owner = worker.owners.get(partition)
        if owner is None or self.said_others:
            return
        self.said_others = True
        states = (owner.state(one) for one in islice(owner.runs(), OTHERS_LOOK_MAX))
        others = (
            s.run_id for s in states if s is not None and not s.ended and s.run_id != self.run_id
        )
        names = list(islice(others, OTHERS_MAX + 1))
        if names:
            names[OTHERS_MAX:] = ["…"] * (len(names) > OTHERS_MAX)
            say(f"also open in this log, and worked on here: {', '.join(names)}", "dim", error=True)

    async def _follow(self, client: "Client", worker: "Worker", *, exists: bool) -> None:
        """Return when the run has ended or nothing but a person or other code moves it."""
        if exists:
            handle = client.handle(self.run_id)
        else:
            handle = await client.start(self.definition.name, self.data, run_id=self.run_id)
        begun = asyncio.get_running_loop().time()
        while True:
            seen = await client.boundary_at(self.run_id)
            bound = seen.boundary
            ended = bound.status in ("completed", "failed", "cancelled")
            if ended and not (seen.commands_waiting and await self._ordered(client)):
                return
            within = None
            if seen.commands_waiting:  # one of them may be the person's word
                within = LOOK_AGAIN
            elif bound.needs in ("person", "code"):
                left_s = self._left_s(seen, worker, begun)
                if left_s <= 0:
                    return
                within = timedelta(seconds=left_s)
            await handle.changed(seen.offset, within=within)

    async def _ordered(self, client: "Client") -> bool:
        """Whether a command for the run stands in the log undecided: it may open the run again."""
        from refold.client.pending import waiting_for

        seen = await client.boundary_at(self.run_id)
        return bool(await waiting_for(client, self.run_id, seen.command_next))

    def _left_s(self, seen: "BoundaryAt", worker: "Worker", begun: float) -> float:
        """How long the run may still move although its record asks for somebody; 0: no longer.

        The record does not show everything: steps that change nothing outside leave no intent, and
        an owner that has just claimed has yet to look at the run with the code that it has.
        """
        now = asyncio.get_running_loop().time()
        if worker.works_on(self.run_id):
            self.busy_at = now
            return QUIET_S
        claimed_at = self.claimed_at
        looked = claimed_at is not None and (seen.boundary.needs == "person" or seen.by_this_claim)
        patience_s = QUIET_S if looked else LOOK_S
        return patience_s - (now - max(claimed_at or begun, self.busy_at))
