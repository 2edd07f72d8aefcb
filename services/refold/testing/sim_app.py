"""The work of a simulation: steps of all four policies on a simulated vendor, and runs of them.

Every run function is deterministic: its result depends on its input alone, unless a person or a
cancellation said that an effect is absent (its result then says `absent`).
"""

from datetime import timedelta
from typing import Any

from refold.app import App, Effect, RunContext
from refold.testing.sim_loop import current_process
from refold.testing.sim_world import Declined, Link, Service
from refold_schemas.errors.run import StepAbsent
from refold_schemas.values import NotDone, Policy, Retry

TIMEOUT = timedelta(seconds=2)
SETTLE = timedelta(seconds=1)
SHIP_KEY_TTL = timedelta(seconds=9)
LABEL_KEY_TTL = timedelta(seconds=12)

SERVICES = {
    service.kind: service
    for service in (
        Service("charge", dedupes=True, declines=lambda amount: amount % 7 == 0),
        Service("book", dedupes=False),
        Service("reserve", dedupes=True),
        Service("ship", dedupes=True, key_ttl_us=SHIP_KEY_TTL // timedelta(microseconds=1)),
        Service("label", dedupes=True, key_ttl_us=LABEL_KEY_TTL // timedelta(microseconds=1)),
        Service("mail", dedupes=False),
        Service("lock", dedupes=True),
        Service("unlock", dedupes=True),
    )
}
POLICIES = {
    "charge": Policy.RESOLVABLE,
    "book": Policy.RESOLVABLE,
    "reserve": Policy.KEYED,
    "ship": Policy.KEYED,
    "label": Policy.KEYED,
    "mail": Policy.ESCALATE,
    "lock": Policy.KEYED,
    "unlock": Policy.KEYED,
}

app = App("simulation")
_TRIES = Retry(
    max_attempts=40, first_wait=timedelta(milliseconds=100), wait_max=timedelta(seconds=2)
)


def _link() -> Link:
    link: Link = current_process().attached["link"]
    return link


async def _find_charge(key: str) -> Any:
    return await _link().look_up("charge", key)


async def _find_booking(key: str) -> Any:
    return await _link().look_up("book", key)


async def _find_shipment(key: str) -> Any:
    return await _link().look_up("ship", key)


@app.step(policy=Policy.RE_EXECUTABLE, retry=_TRIES)
async def read_price(amount: int) -> int:
    """Read something; nothing outside changes."""
    return await _link().read("read_price", amount)


@app.model(retry=_TRIES)
async def think(amount: int) -> dict[str, Any]:
    """Ask a model."""
    return {"content": f"thought {await _link().read('think', amount)}", "stop_reason": "end_turn"}


@app.step(
    policy=Policy.RESOLVABLE,
    lookup=_find_charge,
    settle=SETTLE,
    timeout=TIMEOUT,
    key_ttl=None,
    not_done=(Declined,),
    retry=Retry(
        max_attempts=40,
        first_wait=timedelta(milliseconds=200),
        wait_max=timedelta(seconds=2),
        fresh_key_on=(Declined,),
    ),
)
async def charge(fx: Effect, amount: int) -> dict[str, Any]:
    """An effect with key and lookup; some amounts are declined under their first key."""
    result: dict[str, Any] = await _link().call("charge", fx, amount)
    return result


@app.step(
    policy=Policy.RESOLVABLE,
    lookup=_find_booking,
    settle=SETTLE,
    timeout=TIMEOUT,
    key_ttl=timedelta(0),
    retry=_TRIES,
)
async def book(fx: Effect, amount: int) -> dict[str, Any]:
    """An effect that is found by its key, but not deduplicated."""
    result: dict[str, Any] = await _link().call("book", fx, amount)
    return result


@app.step(policy=Policy.KEYED, timeout=TIMEOUT, key_ttl=None, retry=_TRIES)
async def reserve(fx: Effect, amount: int) -> dict[str, Any]:
    """An effect whose key lives for ever."""
    result: dict[str, Any] = await _link().call("reserve", fx, amount)
    return result


@app.step(
    policy=Policy.KEYED,
    timeout=TIMEOUT,
    settle=SETTLE,
    key_ttl=SHIP_KEY_TTL,
    lookup=_find_shipment,
    retry=_TRIES,
)
async def ship(fx: Effect, amount: int) -> dict[str, Any]:
    """An effect whose key is forgotten, but still found by a lookup."""
    result: dict[str, Any] = await _link().call("ship", fx, amount)
    return result


@app.step(policy=Policy.KEYED, timeout=TIMEOUT, settle=SETTLE, key_ttl=LABEL_KEY_TTL, retry=_TRIES)
async def label(fx: Effect, amount: int) -> dict[str, Any]:
    """An effect whose key is forgotten; nobody but a person can find out."""
    result: dict[str, Any] = await _link().call("label", fx, amount)
    return result


@app.step(timeout=TIMEOUT, settle=SETTLE, retry=_TRIES)
async def mail(fx: Effect, amount: int) -> dict[str, Any]:
    """An effect with neither key nor lookup."""
    result: dict[str, Any] = await _link().call("mail", fx, amount)
    return result


@app.step(policy=Policy.KEYED, timeout=TIMEOUT, key_ttl=None, retry=_TRIES)
async def unlock(fx: Effect, handle: dict[str, Any]) -> dict[str, Any]:
    """Give the lock back."""
    result: dict[str, Any] = await _link().call("unlock", fx, handle["amount"])
    return result


@app.step(policy=Policy.KEYED, timeout=TIMEOUT, key_ttl=None, retry=_TRIES, release=unlock)
async def lock(fx: Effect, amount: int) -> dict[str, Any]:
    """An acquisition: what it takes is given back when the run ends, however it ends."""
    result: dict[str, Any] = await _link().call("lock", fx, amount)
    return result


async def _told(call: Any) -> Any:
    try:
        return await call
    except StepAbsent:
        return "absent"
    except (Declined, NotDone) as error:
        return f"failed: {error}"


@app.run("order", plan=["read_price", "charge", "ship", "mail"])
async def order(ctx: RunContext, amount: int) -> dict[str, Any]:
    """One step after the other, one of each policy."""
    price = await ctx.step(read_price, amount)
    thought = await ctx.step(think, price)
    paid = await _told(ctx.step(charge, amount))
    shipped = await _told(ctx.step(ship, amount))
    told = await _told(ctx.step(mail, amount))
    return {"price": price, "thought": thought, "paid": paid, "shipped": shipped, "told": told}


@app.run("parallel")
async def parallel(ctx: RunContext, amount: int) -> dict[str, Any]:
    """Branches that finish in any order, a sleep, and two equal effects."""
    named = await ctx.gather(
        charge=_told(ctx.step(charge, amount)),
        reserve=_told(ctx.step(reserve, amount + 1)),
        price=ctx.step(read_price, amount),
    )
    await ctx.sleep(timedelta(seconds=2))
    first, second = await ctx.gather(_told(ctx.step(book, amount)), _told(ctx.step(book, amount)))
    return {**named, "booked": [first, second], "token": str(ctx.uuid()) != ""}


@app.run("mapper")
async def mapper(ctx: RunContext, amount: int) -> dict[str, Any]:
    """Many items: chunks of a reading step, single slots of an effect."""
    prices = await ctx.map(read_price, list(range(amount % 7 + 3)), every=3, concurrency=2)
    reserved = await ctx.map(reserve, [amount, amount + 1, amount + 2], concurrency=2)
    labelled = await _told(ctx.step(label, amount))
    return {"prices": prices, "reserved": reserved, "labelled": labelled}


@app.run("looper")
async def looper(ctx: RunContext, amount: int) -> dict[str, Any]:
    """A loop with a cursor, an effect in its body."""
    loop = ctx.each(list(range(5)), every=2, state=0)
    async for batch, state in loop:
        total = state
        for item in batch:
            total += await ctx.step(read_price, item + amount)
        await _told(ctx.step(reserve, total))
        batch.commit(total)
    return {"total": loop.state, "booked": await _told(ctx.step(book, amount))}


async def _branch(ctx: RunContext, wait_ms: int, amount: int) -> list[Any]:
    await ctx.sleep(timedelta(milliseconds=wait_ms))
    said = await _told(ctx.step(mail, amount))
    return [said, await ctx.step(read_price, amount)]


@app.run("racer", durable="each")
async def racer(ctx: RunContext, amount: int) -> dict[str, Any]:
    """Branches with timers and mails of their own."""
    first, second = await ctx.gather(
        _branch(ctx, 700, amount), _branch(ctx, 300 + amount % 5 * 200, amount)
    )
    return {"first": first, "second": second, "label": await _told(ctx.step(label, amount))}


@app.run("locker")
async def locker(ctx: RunContext, amount: int) -> dict[str, Any]:
    """Two locks, work under them, and their release."""
    first = await ctx.step(lock, amount)
    second = await ctx.step(lock, amount + 1)
    booked = await _told(ctx.step(book, amount))
    await ctx.sleep(timedelta(seconds=3))
    return {"first": first, "second": second, "booked": booked}


RUNS = ("order", "parallel", "mapper", "looper", "racer", "locker")
