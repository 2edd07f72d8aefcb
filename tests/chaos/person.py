"""The person who is asked: looks into the ledger of the world, and says what happened."""

import asyncio
from collections import Counter
from collections.abc import Collection

from chaos.app import MAILED
from chaos.stage import Stage
from refold.client import Client
from refold_schemas.errors import RefoldError

LOOKS_EVERY_S = 0.3


class Person:
    """Settles what is in doubt, truthfully, and lets go on what was parked by the killing."""

    def __init__(self, stage: Stage, client: Client, left_alone: Collection[str]) -> None:
        self.stage, self.client = stage, client
        self.left_alone = left_alone
        self.settled: Counter[str] = Counter()
        """How many slots were said to have happened, or not; and how many runs were retried."""
        self.too_early = 0
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._task = asyncio.create_task(self._work())

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()

    async def _work(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(LOOKS_EVERY_S)

    async def look(self) -> None:
        """Settle all that needs a person now."""
        try:
            waiting = await self.client.runs(needs="person")
        except RefoldError:
            return  # no broker: later
        if not waiting:
            return
        effects = await self.stage.world.effects("email")
        mailed = {effect["body"]["subject"] for effect in effects}
        for run in waiting:
            if run.run_id in self.left_alone:
                continue
            try:
                if (run.reason or "").startswith("crashes_worker"):
                    await self.client.retry(run.run_id, why="the processes were killed")
                    self.settled["retried"] += 1
                    continue
                boundary = await self.client.boundary(run.run_id)
                for entry in boundary.in_doubt:
                    assert entry.step == "mail", f"{entry.slot} of {run.run_id} asks a person"
                    happened = run.run_id in mailed
                    await self.client.resolve(
                        run.run_id, entry.slot, happened=happened, result=MAILED, why="the ledger"
                    )
                    self.settled["happened" if happened else "did not happen"] += 1
            except RefoldError:
                self.too_early += 1  # a call may still be on its way, or somebody was quicker
