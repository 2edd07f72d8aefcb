"""Plays a story: starts the processes, kills the worker at its moments, and tells what is seen.

Everything that is told is read from outside: from the log, as anybody can read it, and from the
vendors' own counters. Nothing of the demo runs inside the worker.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from refold.client import Client
from refold.client.handle import RunHandle
from refold.client.history import HistoryRecord
from refold.log import Log, Topic
from refold_projections.fold import Boundary, RunState, sentence
from refold_projections.fold.sentence import count_words
from refold_schemas.errors.cli import TooEarly
from refold_schemas.errors.shell import shell_line
from refold_schemas.events import (
    PartitionClaimed,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
)
from refold_schemas.values import Policy
from refold_tools.demo.children import Child
from refold_tools.demo.counting import executed_twice
from refold_tools.demo.errors import DemoStopped
from refold_tools.demo.outside import Outside
from refold_tools.demo.stories import Moment, Story
from refold_tools.demo.timeline import Timeline

LOOK_S = 0.04
SETTLE_S = 0.3
"""How long the dying process is left alone before the kill, so that the log is at rest by then."""
READY_WITHIN_S = 20.0
STUCK_AFTER_S = 45.0
BY = "refold demo"
RE_EXECUTABLE = Policy.RE_EXECUTABLE.value

T = TypeVar("T")


@dataclass
class Told:
    """What came of a story; `as_json` is the demo's last line."""

    story: Story
    completed: bool = False
    status: str = ""
    kills: list[dict[str, object]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    effects: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)
    executed_twice: list[str] = field(default_factory=list)
    resolved: list[dict[str, object]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    also: dict[str, object] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether everything held."""
        return self.completed and not self.problems

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "demo": self.story.name,
            "run_id": self.story.run_id,
            "completed": self.good,
            "status": self.status,
            "kills": self.kills,
            "sentence": self.sentences[0] if self.sentences else "",
            "sentences": self.sentences,
            "effects": self.effects,
            "executed_twice": self.executed_twice,
            "duplicates": self.duplicates,
            "resolved": self.resolved,
            "problems": self.problems,
            **self.also,
        }


class Director:
    """The world, at most one worker, and a client that reads along. Use it as a context."""

    def __init__(
        self, log: Log, examples: Path, folder: Path, timeline: Timeline, *, log_kept: bool
    ) -> None:
        self.log, self.examples, self.folder, self.timeline = log, examples, folder, timeline
        self.log_kept = log_kept
        self.client = Client(log, by=BY)
        self._stack = AsyncExitStack()
        self._worker: Child | None = None
        self.outside = Outside("")

    async def __aenter__(self) -> "Director":
        """Start the world and open the client."""
        try:
            await self._stack.enter_async_context(self.client)
            await self._start_world()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        """Stop everything that was started, each by its pid."""
        await self._stack.aclose()

    async def play(self, story: Story) -> Told:
        """Play one story to its end and count what happened."""
        return await _Performance(self, story).play()

    # ---- processes

    async def _start_world(self) -> None:
        ledger = str(self.folder / "world.db")
        child = await self._start("the world", ["-m", "world", "--ledger", ledger], {})
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                line = await child.line()
        except TimeoutError:
            line = None
        if line is None or not line.startswith("READY "):
            raise self.stopped(f"the world did not start: {child.last_words()}")
        self.outside = Outside(line.removeprefix("READY "))
        self.timeline.say(
            "world",
            f"the vendors are open: a bank, a carrier, an e-mail sender, a model … "
            f"(pid {child.pid})",
        )

    async def start_worker(self, target: str) -> Child:
        """A fresh worker process; the one before is dead."""
        command = ["-m", "refold_tools.cli", "worker", target, "--log", self.log.url, "--json"]
        env = {"WORLD_URL": self.outside.url}
        self._worker = await self._start("the worker", command, env)
        return self._worker

    async def stop_worker(self) -> None:
        """A clean hand-over."""
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()

    async def _start(self, name: str, arguments: list[str], env: Mapping[str, str]) -> Child:
        paths = [str(self.examples), os.environ.get("PYTHONPATH", "")]
        own = {"PYTHONPATH": os.pathsep.join(p for p in paths if p), "PYTHONUNBUFFERED": "1"}
        # The log is handed over by name: what the environment says of another must not matter.
        inherited = {k: v for k, v in os.environ.items() if k not in ("REFOLD_LOG", "WORLD_URL")}
        # In the demo's own folder, so that no file of the caller's is taken for a module of ours.
        command = [sys.executable, "-P", *arguments]
        child = await Child.start(name, command, {**inherited, **own, **env}, self.folder)
        self._stack.push_async_callback(child.stop)
        return child

    def check_children(self) -> None:
        """Raise DemoStopped if the worker has ended by itself."""
        worker = self._worker
        if worker is not None and worker.ended is not None:
            raise self.stopped(f"the worker ended with {worker.ended}: {worker.last_words()}")

    def stopped(self, reason: str) -> DemoStopped:
        """The error that ends the demo."""
        return DemoStopped(reason, self.log.url, self.log_kept)


class _Performance:
    """One story while it is played."""

    def __init__(self, director: Director, story: Story) -> None:
        self.director, self.story = director, story
        self.client, self.outside = director.client, director.outside
        self.told = Told(story)
        self.handle: RunHandle | None = None
        self._partition = self.client.partition_of(story.run_id)
        self._seen_offset = -1
        self._end = -1
        self._settled: dict[str, int] = {}
        self._suspects: dict[str, list[str]] = {}
        self._asked: dict[str, str] = {}
        self._keys: dict[str, str] = {}
        self._steps: dict[str, str] = {}
        self._lines: set[str] = set()
        self._pid = 0

    def say(self, who: str, text: str, *, at_ms: int | None = None, loud: bool = False) -> None:
        """A line of the timeline."""
        self.director.timeline.say(who, text, at_ms=at_ms, loud=loud)

    async def play(self) -> Told:
        """From the first worker to the last count."""
        story, director = self.story, self.director
        director.timeline.head(story.title)
        await self.outside.reset()
        moments = deque(story.moments)
        done: set[str] = set()
        while True:
            moment = moments.popleft() if moments else None
            before: dict[str, Any] = {}
            after = 0
            if moment is not None:
                after = moment.after(done)
                before = await self.outside.counters()
                await self.outside.keep_silent_after(moment.route, after)
            worker = await director.start_worker(story.target)
            self._pid = worker.pid
            if self.handle is None:
                self.say("refold", f"worker {worker.pid} starts on the log {self.client.log.url}")
                self.handle = await self._guarded(
                    self.client.start(story.run, story.given, run_id=story.run_id)
                )
            if not await self._follow(moment, before, after):
                break
            assert moment is not None
            seen = await self._die(worker, moment)
            done = {entry.slot for entry in seen.done}
        await self._count()
        await director.stop_worker()
        return self.told

    # ---- reading along

    async def _follow(self, moment: Moment | None, before: dict[str, Any], after: int) -> bool:
        """Tell what happens until the moment has come (True) or the run has ended (False)."""
        loop = asyncio.get_running_loop()
        moved_at, end = loop.time(), self._end
        while True:
            self.director.check_children()
            await self._tell_news()
            if moment is not None and await self._has_come(moment, before, after):
                await asyncio.sleep(SETTLE_S)
                await self._tell_news()
                return True
            seen = await self._boundary()
            if seen.status in ("completed", "failed", "cancelled"):
                await self._tell_news()
                self.told.status = seen.status
                return False
            if seen.needs == "code":
                raise self.director.stopped(
                    f"run {self.story.run_id} is {seen.status}: {seen.reason}"
                )
            if seen.needs == "person":
                await self._be_asked(seen)
            if self._end != end:
                moved_at, end = loop.time(), self._end
            elif loop.time() - moved_at > STUCK_AFTER_S:
                said = self._sentence(seen)
                raise self.director.stopped(f"nothing has moved for {STUCK_AFTER_S:g} s: {said}")
            await asyncio.sleep(LOOK_S)

    async def _has_come(self, moment: Moment, before: dict[str, Any], after: int) -> bool:
        """Whether the vendor has taken the call in and done what it does, by its own counters."""
        now = await self.outside.counters()
        calls = now["calls"].get(moment.route, 0) - before["calls"].get(moment.route, 0)
        if calls <= after:
            return False
        if moment.effect is None:
            return True
        shown = now["effects"].get(moment.effect, 0) > before["effects"].get(moment.effect, 0)
        return bool(shown)

    async def _boundary(self) -> Boundary:
        assert self.handle is not None
        return await self.handle.boundary()

    def _sentence(self, seen: Boundary) -> str:
        zone = self.director.timeline.zone
        return sentence(seen, zone, datetime.now(zone).date())

    async def _tell_news(self) -> None:
        """Tell the records that have come since the last look."""
        _, end = await self.client.log.bounds(Topic.EVENTS, self._partition)
        if end == self._end:
            return
        self._end = end
        async for record in self.client.history(self.story.run_id, claims=True):
            if record.offset > self._seen_offset:
                self._seen_offset = record.offset
                if record.counted:
                    self._tell(record)

    def _tell(self, record: HistoryRecord) -> None:
        at_ms = record.at_ms
        match record.event:
            case PartitionClaimed():
                said = "takes over: what is recorded is not run again"
                self.say("refold", f"worker {self._pid} {said}", at_ms=at_ms)
            case StepIntended(slot=slot, step=step, attempt=attempt, effect_key=key, policy=policy):
                self._keys[slot], self._steps[slot] = key, step
                self._tell_agent(slot, step, at_ms)
                if attempt > 1 and policy != RE_EXECUTABLE:
                    self._tell_again(slot, step, key, at_ms)
            case StepCompleted(slot=slot, step=named):
                if slot in self._asked:
                    self.say("refold", f"{self._asked.pop(slot)} again, and has its answer now")
                self._tell_agent(slot, named or self._steps.get(slot, ""), at_ms)
            case StepResolved(slot=slot, verdict=verdict, evidence=evidence):
                step = self._steps.get(slot, "")
                self._tell_resolved(slot, step, verdict, evidence, at_ms)
            case StepInDoubt(slot=slot, escalated=True):
                self.say(
                    "refold",
                    f"{slot} has no key that could be asked for: the run stops and asks a person",
                    at_ms=at_ms,
                )
            case StepFailed(slot=slot, error=error):
                self.say("refold", f"{slot} failed and was not done: {error.message}", at_ms=at_ms)

    def _tell_again(self, slot: str, step: str, key: str, at_ms: int) -> None:
        said = f"sends {step} again under the same key {key[:8]}…"
        vendor = self.story.vendor(step)
        self.say("refold", f"{said}: {vendor} knows it and does it only once", at_ms=at_ms)

    def _tell_resolved(self, slot: str, step: str, verdict: str, evidence: str, at_ms: int) -> None:
        if evidence == "lookup":
            key = self._keys.get(slot, "")
            vendor = self.story.vendor(step)
            found = "it was done" if verdict == "done" else f"it is {verdict}"
            not_again = "; so it is done, and not sent again" if verdict == "done" else ""
            self.say(
                "refold",
                f"asks {vendor} by its own key {key[:8]}…: {found}{not_again}",
                at_ms=at_ms,
                loud=True,
            )
        self.told.resolved.append({"slot": slot, "verdict": verdict, "by": evidence})

    def _tell_agent(self, slot: str, step: str, at_ms: int) -> None:
        """Once a slot: where it is intended, or where it is done if it needs no intent."""
        line = None if slot in self._lines else self.story.line(slot, step)
        if line is not None:
            self._lines.add(slot)
            self.say("agent", line, at_ms=at_ms)

    # ---- deaths and doubts

    async def _die(self, worker: Child, moment: Moment) -> Boundary:
        """A real SIGKILL; then, before anybody works again, what the record says."""
        self.say("world", moment.acted)
        await worker.kill()
        at = datetime.now(self.director.timeline.zone)
        await self.outside.no_faults()
        await self._until_missed()
        seen = await self._boundary()
        said = self._sentence(seen)
        self.say(
            "crash",
            f"kill -9 {worker.pid}: the worker is gone, {self.story.lost(seen, moment)}",
            at_ms=round(at.timestamp() * 1000),  # a broker misses it seconds later
        )
        self.say("refold", "nobody is at work; before anybody is, the record says:")
        self.say("refold", f"“{said}”", loud=True)
        in_doubt = [entry.slot for entry in seen.in_doubt]
        harmless = all(entry.policy == RE_EXECUTABLE for entry in seen.in_doubt)
        slots = in_doubt or ([moment.slot] if moment.slot else [])
        self._suspects.setdefault(moment.route, []).extend(slots)
        if harmless and moment.slot:
            self.say("refold", f"{moment.step} changes nothing outside, so it may be asked again")
            self._asked[moment.slot] = f"asks {self.story.vendor(moment.step)}"
        self.told.sentences.append(said)
        self.told.kills.append(
            {
                "turn": moment.turn,
                "slot": slots[0] if slots else moment.slot,
                "step": moment.step,
                "pid": worker.pid,
                "at": at.isoformat(timespec="milliseconds"),
                "in_doubt": in_doubt,
                "sentence": said,
            }
        )
        return seen

    async def _until_missed(self) -> None:
        """Until the log knows that the worker is gone; on Kafka that takes as long as a session."""
        end = asyncio.get_running_loop().time() + STUCK_AFTER_S
        while await self.client.owner_lives(self._partition) is not False:
            if asyncio.get_running_loop().time() > end:
                raise self.director.stopped("the log still takes the killed worker for alive")
            await asyncio.sleep(LOOK_S)

    async def _be_asked(self, seen: Boundary) -> None:
        """Play the person: read the far system's own ledger, and say what it shows."""
        for entry in seen.in_doubt:
            if not entry.escalated:
                continue
            settled = self._settled.get(entry.step, 0)
            verdict = self.story.judge(entry.step, await self.outside.effects(), settled)
            if verdict is None:
                raise self.director.stopped(
                    f"{entry.slot} needs a person, and nobody knows it here"
                )
            said = "--happened" if verdict.happened else "--did-not-happen"
            try:
                await self.client.resolve(
                    self.story.run_id,
                    entry.slot,
                    attempt=entry.attempt,
                    happened=verdict.happened,
                    result=verdict.result,
                    why=verdict.said,
                    within=timedelta(seconds=STUCK_AFTER_S),
                )
            except TooEarly:
                continue  # a call may still be under way: said again at the next look
            self._settled[entry.step] = settled + int(verdict.happened)
            self.say("person", f"looks it up: {verdict.said}")
            words = (self.story.run_id, entry.slot)
            self.say("person", shell_line("refold resolve", *words, options=(said,)))

    # ---- the end

    async def _count(self) -> None:
        """What the run came to, and what the vendors say they have done for it."""
        story, told = self.story, self.told
        state = await self.client.state(story.run_id)
        counters, ledger = await self.outside.counters(), await self.outside.effects()
        told.effects, told.duplicates = counters["effects"], counters["duplicates"]
        told.completed = told.status == "completed"
        if not told.completed:
            why = f": {state.ended.error.message}" if state.ended and state.ended.error else ""
            told.problems.append(f"the run {told.status}{why}")
        due = dict(story.expected())
        if told.effects != due:
            told.problems.append(f"the vendors have done {told.effects}, due was {due}")
        if told.completed and (wrong := story.holds(await self._result(), ledger)) is not None:
            told.problems.append(wrong)
        slots = {
            slot.name: slot for slot in sorted(state.slots.values(), key=lambda slot: slot.born)
        }
        routes = story.expected_calls(slots)
        told.executed_twice = executed_twice(slots, routes, self._suspects, counters)
        told.also = dict(story.also(ledger))
        self._tell_end(state, counters)

    async def _result(self) -> object:
        assert self.handle is not None
        return await self.handle.result(as_type=dict[str, Any])

    def _tell_end(self, state: RunState, counters: dict[str, Any]) -> None:
        told = self.told
        steps = sum(slot.outcome is not None for slot in state.slots.values())
        self.say(
            "refold",
            f"the run {told.status}: {steps} steps, {count_words(len(told.kills), 'death')}",
            loud=True,
        )
        effects = ", ".join(f"{kind} {count}" for kind, count in told.effects.items()) or "nothing"
        self.say("world", f"has done: {effects}", loud=True)
        calls = counters["model"]["calls"]
        if calls:
            self.say("world", f"the model was asked {calls} times")
        twice = ", ".join(told.executed_twice) or "nothing"
        policies = {state.slots[name].policy for name in told.executed_twice}
        harmless = told.executed_twice and policies <= {"", RE_EXECUTABLE}
        self.say("refold", f"executed twice: {twice}{', which only reads' if harmless else ''}")
        for problem in told.problems:
            self.say("refold", f"NOT AS IT SHOULD BE: {problem}", loud=True)

    async def _guarded(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` gives; DemoStopped if the worker ends first or it takes too long."""
        task = asyncio.ensure_future(work)
        deadline = asyncio.get_running_loop().time() + READY_WITHIN_S
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_S)
                if not task.done():
                    self.director.check_children()
                    if asyncio.get_running_loop().time() > deadline:
                        raise self.director.stopped("no worker has taken the run")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})
        return task.result()
