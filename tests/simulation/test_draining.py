"""A worker that dies while it drains has handed nothing over: its claim ended without a release."""

import asyncio
from datetime import timedelta

from refold import App, Effect, Policy, RunContext
from refold.log.port import Topic
from refold.worker import WorkerSettings
from refold_schemas.events import StepIntended
from support.lab import Lab


def slow_app() -> App:
    app = App("slow")

    @app.step(policy=Policy.ESCALATE, timeout=timedelta(seconds=30))
    async def mail(fx: Effect) -> str:
        await asyncio.sleep(20)
        return "sent"

    @app.run("order")
    async def order(ctx: RunContext) -> str:
        return await ctx.step(mail)

    return app


def test_a_checkpoint_written_while_draining_does_not_say_that_the_partition_is_released() -> None:
    lab = Lab(settings=WorkerSettings(checkpoint_ms=500, drain_ms=15_000))
    first = lab.worker(slow_app())
    lab.start("order")
    assert lab.run(5, until=lambda: bool(lab.events(StepIntended)))
    lab.workers[first.name].stop()
    written = len(lab.broker.records(Topic.SNAPSHOTS, 0))
    assert lab.run(5, until=lambda: len(lab.broker.records(Topic.SNAPSHOTS, 0)) > written)
    lab.run(0.5)
    first.kill()
    second = lab.worker(slow_app())
    assert lab.run(10, until=lambda: lab.fold().facts.process == second.name)
    lab.run(0.5)
    facts = lab.fold().facts
    assert (facts.unclean_total, facts.unclean_row) == (1, 1)
    (owner,) = lab.workers[second.name].owners.values()
    assert owner.books.facts == facts
