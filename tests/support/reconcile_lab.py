"""A lab with a bank that can be asked, and reconciliations of it in processes of their own."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from refold import Absent, App, Effect, Found, Pending, Policy, Rejected, RunContext
from refold.client import Client
from refold.log.memory import MemoryLog
from refold.testing.sim_loop import SimProcess
from refold.worker import WorkerSettings
from refold_projections.fold import Finding
from refold_schemas.errors import RefoldError
from refold_schemas.events import FindingRecorded
from refold_tools.archive import Archiving, Plan
from refold_tools.reconcile import Limits, Reconciler, Report, Window
from refold_tools.reconcile.rounds import accept
from support.lab import EPOCH_MS, Lab
from support.vendor import Vendor

SETTINGS = WorkerSettings(checkpoint_ms=500, idle_after_ms=500, proof_after_ms=60_000)
ALL = Window(0, EPOCH_MS + 10**10)
YOUNG_S = 12.0
"""Timeout and settle of the bank's steps, in seconds, with the margin and some more."""

Answer = Found[Any] | Absent | Pending | Rejected


class Declined(Exception):
    """The bank refused: nothing was booked."""


class Receipt(BaseModel):
    """What the bank gives back."""

    number: str
    pence: int


class Bank:
    """Knows keys; `books` can be changed behind refold's back, and `answer` replaces its lookup."""

    def __init__(self) -> None:
        self.vendor = Vendor()
        self.books: dict[str, Receipt] = {}
        self.declines = 0
        self.asked: list[str] = []
        self.answer: Callable[[str], Awaitable[Any]] | None = None

    async def find(self, key: str) -> Answer:
        """The lookup."""
        self.asked.append(key)
        if self.answer is not None:
            told: Answer = await self.answer(key)
            return told
        return Found(self.books[key]) if key in self.books else Absent()

    def app(self) -> App:
        """One run function for each thing that can come of a payment."""
        app = App("bank")
        bank = self
        five, lookup_for = timedelta(seconds=5), timedelta(seconds=20)

        @app.step(
            policy=Policy.KEYED,
            key_ttl=None,
            lookup=self.find,
            not_done=(Declined,),
            timeout=five,
            settle=five,
        )
        async def pay(fx: Effect, order: str, pence: int) -> Receipt:
            if bank.declines:
                bank.declines -= 1
                raise Declined("no")
            receipt = Receipt(number=await bank.vendor.act(fx, order=order), pence=pence)
            return bank.books.setdefault(fx.key, receipt)

        @app.step(
            policy=Policy.RESOLVABLE,
            lookup=self.find,
            timeout=five,
            settle=five,
            lookup_for=lookup_for,
        )
        async def book(fx: Effect, order: str) -> Receipt:
            await bank.vendor.act(fx, order=order)
            return bank.books.setdefault(fx.key, Receipt(number="b-1", pence=1))

        @app.step(timeout=timedelta(seconds=5))
        async def mail(fx: Effect, order: str) -> str:
            return await bank.vendor.act(fx, order=order)

        @app.run("order")
        async def order(ctx: RunContext, pence: int) -> Receipt:
            return await ctx.step(pay, ctx.run_id, pence)

        @app.run("tolerant")
        async def tolerant(ctx: RunContext, pence: int) -> str:
            try:
                await ctx.step(pay, ctx.run_id, pence)
            except Declined:
                return "declined"
            return "paid"

        @app.run("booking")
        async def booking(ctx: RunContext, given: int) -> Receipt:
            return await ctx.step(book, ctx.run_id)

        @app.run("letter")
        async def letter(ctx: RunContext, given: int) -> str:
            return await ctx.step(mail, ctx.run_id)

        return app


class Reconciliation:
    """A bank, its lab with one worker, and looks at it."""

    def __init__(self) -> None:
        self.bank = Bank()
        self.app = self.bank.app()
        self.lab = Lab(settings=SETTINGS)
        self.worker: SimProcess = self.lab.worker(self.app)

    def runs(self, *names: str, run: str = "order", given: object = 4160, s: float = 3) -> None:
        """Start runs and give them their time."""
        for name in names:
            self.lab.start(run, given, run_id=name)
        self.lab.run(s)

    def settle(self) -> None:
        """Let the far system's lag pass."""
        self.lab.run(YOUNG_S)

    def key(self, run_id: str) -> str:
        """The effect key of its one step."""
        (slot,) = self.lab.state(run_id).slots.values()
        return slot.effect_key

    def in_process(self, work: Callable[[Client], Awaitable[Any]], s: float = 600) -> Any:
        """What `work` returns, with a client in a process of its own."""
        lab, came = self.lab, []
        process = SimProcess(lab.universe, "tool", epoch_ms=EPOCH_MS)
        log = MemoryLog("memory://lab", broker=lab.broker, name="tool")
        process.on_kill.append(log.kill)

        async def main() -> None:
            await log.open(create=False)
            try:
                async with Client(log) as client:
                    came.append(await work(client))
            except RefoldError as error:
                came.append(error)
            await log.close()

        task = process.start(main())
        assert lab.run(s, until=task.done)
        process.kill()
        (one,) = came
        if isinstance(one, RefoldError):
            raise one
        return one

    def look(self, window: Window = ALL, *, times: int = 1, **options: Any) -> Report:
        """One look, or the last of several by one reconciler."""

        async def work(client: Client) -> Report:
            reconciler = self.reconciler(client, **options)
            for _ in range(times):
                report = await reconciler.look(window)
            return report

        report = self.in_process(work)
        assert isinstance(report, Report)
        return report

    def reconciler(self, client: Client, **options: Any) -> Reconciler:
        limits = options.pop("limits", Limits(timeout_s=2.0))
        return Reconciler(client, self.app, self.lab.now_ms, limits=limits, **options)

    def archive(self, folder: Path) -> None:
        """Copy everything to files and trim the log behind it."""
        plan = Plan(folder, self.lab.now_ms() + 1, self.lab.now_ms() + 1)

        async def work(client: Client) -> Any:
            return await Archiving(client.log, client.codec, plan).partition(0)

        assert self.in_process(work).record_count

    def accept(self, finding_id: str) -> tuple[str, Finding] | None:
        async def work(client: Client) -> Any:
            return await accept(client, finding_id, by="ada", why="repaid by hand", within=None)

        told: tuple[str, Finding] | None = self.in_process(work)
        return told

    def recorded(self, run_id: str) -> list[tuple[str, str]]:
        """Kind and status of each finding in the run's log."""
        found = self.lab.events(FindingRecorded, run_id)
        return [(e.kind, e.status) for e in found if isinstance(e, FindingRecorded)]


def kinds(report: Report) -> list[tuple[str, str, str]]:
    """Run, kind and state of what a look found."""
    return sorted((one.run_id, one.finding.kind, one.state) for one in report.findings)
