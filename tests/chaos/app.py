"""The app that is put under faults: orders with an effect of each policy, registers and sets.

`refold worker chaos.app:app` hosts it. `CHAOS_FOLDER` has its traps, `CHAOS_SETTINGS` limits and
waits that differ from the usual ones, `WORLD_URL` and `CHAOS_OBJECTS` are the far systems.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Coroutine
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

import refold.worker
from chaos.traps import Moment, Traps
from refold import Absent, App, Effect, Found, Pending, Policy, Rejected, RunContext
from refold.log import kafka
from world.client import WorldClient

app = App("chaos")
TRAPS: Traps | None = None
TIMEOUT = timedelta(seconds=2)
LOOKS_S = 0.003
"""Long enough for a request to be on its way when the process dies `during-call`."""
MAILED = {"accepted": True}


def put_under_faults(folder: Path, settings: dict[str, Any]) -> None:
    """Set the traps of this process, and its limits: `session_ms`, and those of WorkerSettings."""
    global TRAPS
    TRAPS = Traps(folder)
    TRAPS.watch_log()
    for name in ("session_ms", "hand_over_ms"):
        if name in settings:
            defaults: Any = kafka.KafkaLog.__init__.__kwdefaults__
            defaults[name] = settings.pop(name)
    if "log_append_ms" in settings:
        kafka.APPEND_TIMEOUT_MS = settings.pop("log_append_ms")
    if settings:
        made: Any = partial(refold.worker.WorkerSettings, **settings)
        hosting: Any = refold.worker  # `refold worker` takes it from here
        hosting.WorkerSettings = made


if "CHAOS_FOLDER" in os.environ:
    put_under_faults(
        Path(os.environ["CHAOS_FOLDER"]), json.loads(os.environ.get("CHAOS_SETTINGS", "{}"))
    )


def passes(moment: Moment) -> None:
    if TRAPS is not None:
        TRAPS.passes(moment)


async def acting(call: Coroutine[Any, Any, Any]) -> Any:
    """Make a call past the moments around it."""
    passes(Moment.BEFORE_CALL)
    under_way = asyncio.create_task(call)
    await asyncio.sleep(LOOKS_S)
    passes(Moment.DURING_CALL)
    answer = await under_way
    passes(Moment.AFTER_CALL)
    return answer


# ---- orders: what is done in the world of vendors


async def find_charge(key: str) -> Found[Any] | Absent | Pending | Rejected:
    found = await WorldClient(timeout_s=5).payment_by_key(key)
    if found.state == "succeeded":
        return Found(found.answer)
    return Absent() if found.state == "absent" else Pending()


@app.step(policy=Policy.KEYED, key_ttl=None, timeout=TIMEOUT)
async def ship(fx: Effect, reference: str, pallets: int) -> dict[str, Any]:
    vendors = WorldClient(timeout_s=5)
    shipped: dict[str, Any] = await acting(vendors.book_shipment(reference, pallets, key=fx.key))
    return shipped


@app.step(
    policy=Policy.RESOLVABLE,
    lookup=find_charge,
    key_ttl=timedelta(hours=24),
    settle=timedelta(milliseconds=100),
    timeout=TIMEOUT,
)
async def charge(fx: Effect, reference: str, cents: int) -> dict[str, Any]:
    vendors = WorldClient(timeout_s=5)
    charged: dict[str, Any] = await acting(vendors.charge(reference, cents, key=fx.key))
    return charged


@app.step(timeout=TIMEOUT)
async def mail(fx: Effect, reference: str) -> dict[str, Any]:
    """Undeclared, hence handed to a person if its outcome is not known."""
    vendors = WorldClient(timeout_s=5)
    await acting(vendors.send_email("buyer@example.com", reference, "Your order is on its way."))
    return MAILED


@app.step(policy=Policy.RE_EXECUTABLE)
async def read_stock(sku: str) -> int:
    await asyncio.sleep(0)
    return len(sku)


@app.run("order", version="1")
async def order(ctx: RunContext, mails: bool) -> str:
    await ctx.step(read_stock, "any")
    await ctx.step(ship, ctx.run_id, 2)
    await ctx.step(charge, ctx.run_id, 4160)
    if mails:
        await ctx.step(mail, ctx.run_id)
    return ctx.run_id


# ---- registers and sets: a far system that everybody shares


async def ask_objects(what: str, body: dict[str, Any], key: str | None) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    url = f"{os.environ['CHAOS_OBJECTS']}/{what}"
    connector = aiohttp.TCPConnector(force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url, json=body, headers=headers) as answer,
    ):
        answer.raise_for_status()
        return (await answer.json())["value"]


@app.step(policy=Policy.KEYED, key_ttl=None, timeout=TIMEOUT)
async def change(fx: Effect, what: str, body: dict[str, Any]) -> Any:
    return await acting(ask_objects(what, body, fx.key))


@app.step(policy=Policy.RE_EXECUTABLE, timeout=timedelta(seconds=30))
async def look(what: str, body: dict[str, Any]) -> Any:
    return await ask_objects(what, body, None)


@app.run("change", version="1")
async def run_change(ctx: RunContext, given: dict[str, Any]) -> Any:
    return await ctx.step(change, given["what"], given["body"])


@app.run("look", version="1")
async def run_look(ctx: RunContext, given: dict[str, Any]) -> Any:
    return await ctx.step(look, given["what"], given["body"])


# ---- runs that do harm, and long ones


@app.step(policy=Policy.RE_EXECUTABLE)
async def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.run("deadly", version="1")
async def deadly(ctx: RunContext, given: int) -> None:
    await ctx.step(die)


@app.step(policy=Policy.KEYED, key_ttl=None, timeout=timedelta(seconds=120))
async def wait_long(fx: Effect, seconds: float) -> str:
    await asyncio.sleep(seconds)
    return fx.key


@app.step(policy=Policy.KEYED, key_ttl=None, timeout=timedelta(seconds=120))
def block_thread(fx: Effect, seconds: float) -> str:
    time.sleep(seconds)
    return fx.key


@app.run("long", version="1")
async def long(ctx: RunContext, seconds: float) -> str:
    return await ctx.step(wait_long, seconds)


@app.run("long-thread", version="1")
async def long_thread(ctx: RunContext, seconds: float) -> str:
    return await ctx.step(block_thread, seconds)


@app.run("block", version="1")
async def block(ctx: RunContext, seconds: float) -> str:
    """Run code that holds the engine's loop up, as it must not."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is its point
    return "blocked"


@app.run("nap", version="1")
async def nap(ctx: RunContext, seconds: float) -> str:
    await ctx.sleep(timedelta(seconds=seconds))
    return "awake"


@app.step(policy=Policy.RE_EXECUTABLE)
async def nothing() -> int:
    return 0


@app.run("small", version="1")
async def small(ctx: RunContext, given: int) -> int:
    return await ctx.step(nothing)
