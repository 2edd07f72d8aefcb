"""A worker of the refund agent that kills itself at one named moment: a process of a test.

python dying_worker.py FOLDER LIFE [SLOT MOMENT]    FOLDER holds log.db, world.db, entered, deaths
"""

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from refold.app import Effect, StepDef
from refold.log.port import Ack, Entry, Topic
from refold.log.sqlite import SqliteLog
from refold.testing.explore import Moment
from refold.worker import Worker, WorkerEvent
from refold_schemas.codec import Codec
from refold_schemas.events import StepCompleted, StepIntended
from refold_schemas.registry import FileRegistry
from refund_agent.app import app
from world import Settings, World
from world.access import using
from world.local import LocalClient

TIMEOUT = timedelta(seconds=1.5)
"""Of steps with an effect: "it did not happen" is believed this long after a takeover."""


class Life:
    """One life of the worker, and where it ends."""

    def __init__(self, folder: Path, number: str, slot: str, moment: str) -> None:
        self.folder, self.number = folder, number
        self.slot, self.moment = slot, moment

    def passes(self, slot: str, moment: Moment) -> None:
        """Come by a moment; die there, by SIGKILL, if it is the one. The death is written down."""
        if (slot, moment.value) == (self.slot, self.moment):
            self.note("deaths", f"{self.number}\t{slot}\t{moment.value}")
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self, name: str, line: str) -> None:
        with open(self.folder / name, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def wrapped(self, definition: StepDef) -> Callable[..., Coroutine[Any, Any, Any]]:
        """The step's function with the moments before and after its effect."""
        original, wants_effect = definition.fn, definition.wants_effect

        async def step(fx: Effect, *args: Any, **kwargs: Any) -> Any:
            self.passes(fx.slot, Moment.BEFORE_EFFECT)
            self.note("entered", f"{self.number}\t{fx.slot}")
            result = original(fx, *args, **kwargs) if wants_effect else original(*args, **kwargs)
            if inspect.isawaitable(result):
                result = await result
            self.passes(fx.slot, Moment.AFTER_EFFECT)
            return result

        return step


class DyingLog(SqliteLog):
    """The SQLite log with the moments of intents and outcomes."""

    def __init__(self, life: Life) -> None:
        super().__init__(life.folder / "log.db")
        self._life = life
        self._codec = Codec(FileRegistry())

    async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
        """Append, unless the process dies before it or before the engine has its answer."""
        if topic is not Topic.EVENTS:
            return await super().append(topic, partition, entries)
        events = [self._codec.decode(entry.value or b"") for entry in entries]
        intents = [event.slot for event in events if isinstance(event, StepIntended)]
        for slot in intents:
            self._life.passes(slot, Moment.INTENT_LOST)
        ack = await super().append(topic, partition, entries)
        for slot in intents:
            self._life.passes(slot, Moment.INTENT_STORED)
        for event in events:
            if isinstance(event, StepCompleted):
                self._life.passes(event.slot, Moment.AFTER_OUTCOME)
        return ack


async def live(life: Life) -> None:
    """Serve until the run has completed."""
    for definition in app.steps.values():
        _ = definition.returns  # resolved from the function as it was written
        changes: dict[str, Any] = {"fn": life.wrapped(definition), "wants_effect": True}
        if definition.policy.value != "re_executable":
            changes["timeout_ms"] = int(TIMEOUT.total_seconds() * 1000)
            changes["settle_ms"] = 0 if definition.lookup is None else 50
        definition.__dict__.update(changes)  # frozen for everybody else
    log = DyingLog(life)
    await log.open(create=True)

    def told(event: WorkerEvent) -> None:
        if event.kind == "completed":
            worker.stop()

    worker = Worker(app, log, on_event=told)
    world = World(settings=Settings(seed=1), ledger=life.folder / "world.db")
    with world, using(LocalClient(world)):
        await worker.run()
    await log.close()


if __name__ == "__main__":
    folder, number, slot, moment = (*sys.argv[1:], "", "")[:4]
    asyncio.run(live(Life(Path(folder), number, slot, moment)))
