"""A steady load: callers that start runs and wait for them, as long as it lasts."""

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from chaos.linear import Op
from refold.client import Client
from refold_schemas.errors import RefoldError

PAUSE_S = 0.2
REGISTERS, SETS = 3, 2


@dataclass
class Sent:
    """One run as its caller saw it, in seconds of the monotonic clock."""

    run_id: str
    run: str
    given: Any
    asked: float
    accepted: float | None = None
    ended: float | None = None
    result: Any = None
    failures: list[str] = field(default_factory=list)


class Load:
    """Callers of one client. A command without an answer is sent again under the same id."""

    def __init__(self, client: Client, *, seed: int, mail_every: int = 6) -> None:
        self.client, self.mail_every = client, mail_every
        self.sent: list[Sent] = []
        self.histories: dict[tuple[str, str], list[Op]] = {}
        self.harmed: set[str] = set()
        """Runs that are made to do harm: nobody expects their end."""
        self.over = asyncio.Event()
        self._may_start = asyncio.Event()
        self._may_start.set()
        self._random = random.Random(seed)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._count = 0

    def begin(self, *, orders: int, objects: int, pause_s: float = 0.0) -> None:
        """So many callers of each kind begin; each has one run at a time."""
        for _ in range(orders):
            self._spawn(self._orders(pause_s))
        for _ in range(objects):
            self._spawn(self._objects(pause_s))

    @asynccontextmanager
    async def held_back(self) -> AsyncIterator[None]:
        """Meanwhile no caller begins another run; those that go on may."""
        self._may_start.clear()
        try:
            yield
        finally:
            self._may_start.set()

    async def end(self, within_s: float) -> None:
        """No more runs are started; wait for the ends of those that were."""
        self.over.set()
        end = time.monotonic() + within_s
        while left := {task for task in self._tasks if not task.done()}:  # they start others
            done, _ = await asyncio.wait(left, timeout=max(0.0, end - time.monotonic()))
            if not done:
                break
        for task in self._tasks - left:
            task.result()
        if left:
            open_runs = [one.run_id for one in self.sent if one.ended is None]
            raise TimeoutError(f"{len(open_runs)} runs have not ended: {open_runs[:10]}")

    async def stop(self) -> None:
        """Whatever still goes on is given up."""
        self.over.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Any) -> None:
        self._tasks.add(asyncio.create_task(work))

    async def _orders(self, pause_s: float) -> None:
        while not self.over.is_set():
            await self._may_start.wait()
            self._count += 1
            mails = self._count % self.mail_every == 0
            sent = await self.start("order", mails)
            if mails:  # it may wait for a person until the end
                self._spawn(self.wait(sent))
            else:
                await self.wait(sent)
            await asyncio.sleep(pause_s)

    async def _objects(self, pause_s: float) -> None:
        while not self.over.is_set():
            await self._may_start.wait()
            if self._random.random() < 0.5:
                what, name = "register", f"register-{self._random.randrange(REGISTERS)}"
            else:
                what, name = "set", f"set-{self._random.randrange(SETS)}"
            reads = self._random.random() < 0.4
            self._count += 1
            value = self._count
            body = {"name": name} if reads else {"name": name, "value": value}
            given = {"what": what, "body": body}
            sent = await self.start("look" if reads else "change", given)
            await self.wait(sent)
            kind = "read" if reads else "write" if what == "register" else "add"
            op = Op(kind, sent.result if reads else value, sent.asked, sent.ended)
            self.histories.setdefault((what, name), []).append(op)
            await asyncio.sleep(pause_s)

    async def start(self, run: str, given: Any, *, run_id: str | None = None) -> Sent:
        """Start a run and return once it is accepted."""
        run_id = run_id or f"{run}-{uuid.UUID(int=self._random.getrandbits(128))}"
        sent = Sent(run_id, run, given, time.monotonic())
        self.sent.append(sent)
        command_id = str(uuid.uuid4())
        while True:
            try:
                await self.client.start(run, given, run_id=run_id, command_id=command_id)
            except RefoldError as error:
                sent.failures.append(error.code)
                await asyncio.sleep(PAUSE_S)
            else:
                sent.accepted = time.monotonic()
                return sent

    async def wait(self, sent: Sent) -> None:
        """Wait for a run's end. Raises RunFailedError, RunCancelledError."""
        handle = self.client.handle(sent.run_id)
        while True:
            try:
                await handle.ended()
            except RefoldError as error:
                sent.failures.append(error.code)
                await asyncio.sleep(PAUSE_S)
            else:
                break
        sent.result = await handle.result()
        sent.ended = time.monotonic()
