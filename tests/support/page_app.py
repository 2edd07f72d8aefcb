"""The shop whose runs the tests of the page look at: one for each way a run can stand."""

import asyncio
import os
import signal
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from refold import App, Effect, NotDone, Policy, RunContext


class Order(BaseModel):
    """`kind` says what the vendors do with it; `note` is whatever somebody wrote."""

    id: str
    kind: str = "good"
    pence: int = 4160
    note: str = ""


def make_app(*, dies_in: Path | None = None, markup_pence: int = 0, refunds: bool = True) -> App:
    """The shop. `dies_in`: a folder that remembers that the process has died for an order of kind
    `dies`. With `markup_pence` the run function `again` is other code; without `refunds` there is
    one function less.
    """
    app = App("shop")

    @app.step(policy=Policy.RE_EXECUTABLE)
    async def load_order(order_id: str, note: str) -> dict[str, str]:
        return {"id": order_id, "note": note}

    @app.step(policy=Policy.ESCALATE, timeout=timedelta(seconds=5))
    async def charge(fx: Effect, order_id: str, pence: int, note: str) -> str:
        kind = order_id.partition(":")[0]
        if kind == "declined":
            raise NotDone("the card was declined")
        if kind == "doubt":
            raise ConnectionError(f"the bank closed the connection {note}".strip())
        if kind == "dies" and dies_in is not None:
            (dies_in / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"charge-{order_id}"

    @app.step(policy=Policy.KEYED, key_ttl=None)
    async def notify(fx: Effect, order_id: str) -> dict[str, str]:
        return {"told": order_id, "by": fx.key}

    @app.run("shop", plan=["load_order", "charge", "notify"])
    async def shop(ctx: RunContext, order: Order) -> str:
        loaded = await ctx.step(load_order, order.id, order.note)
        name = f"{order.kind}:{loaded['id']}"
        charged = await ctx.step(charge, name, order.pence, order.note)
        await ctx.step(notify, order.id)
        return charged

    @app.run("patient")
    async def patient(ctx: RunContext, order: Order) -> str:
        await ctx.step(charge, order.id, order.pence, order.note)
        await ctx.sleep(timedelta(days=9))
        return "woken"

    @app.run("again")
    async def again(ctx: RunContext, order: Order) -> str:
        await ctx.step(charge, order.id, order.pence + markup_pence, order.note)
        await ctx.sleep(timedelta(seconds=1))
        await ctx.step(notify, order.id)
        return "told"

    if refunds:

        @app.run("refund")
        async def refund(ctx: RunContext, order: Order) -> str:
            await ctx.sleep(timedelta(seconds=1))
            return await ctx.step(charge, order.id, order.pence, order.note)

    return app


async def _die(log_url: str, folder: Path) -> None:
    from refold.log import open_log
    from refold.worker import Worker

    log = open_log(log_url)
    await log.open(create=False)
    await Worker(make_app(dies_in=folder), log).run()


if __name__ == "__main__":  # a worker that an order of kind `dies` ends with SIGKILL
    import sys

    asyncio.run(_die(sys.argv[1], Path(sys.argv[2])))
