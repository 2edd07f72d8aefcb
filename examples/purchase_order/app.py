"""The purchase order as a durable run: one order, one reference, one charge, one pallet.

Nine steps of a buyer's service. Which of them may run again, which can be asked for by our own
key, and which only a person can decide, is declared at each step and listed by
`refold policies purchase_order.app:app`.
"""

from datetime import timedelta

from purchase_order.lookups import answer_as
from purchase_order.values import (
    Charge,
    CreditDecision,
    Json,
    Line,
    Lock,
    OpenOrder,
    Ordered,
    OrderRequest,
    ParsedRequest,
    PortalOrder,
    Price,
    Shipment,
    Supplier,
)
from refold import Absent, App, Effect, Found, Pending, Policy, Rejected, Retry, RunContext
from world.access import vendors
from world.calls import CardDeclined, LockHeld, Unavailable

app = App("purchasing")

SEVERAL = Retry(max_attempts=4, first_wait=timedelta(milliseconds=500))
CALL_TIMEOUT = timedelta(seconds=10)
QUOTE_VALID = timedelta(days=7)


class CreditRefused(Exception):
    """The bureau refused the buyer."""


# A lock is an acquisition: what another system holds for us under a handle. It is given back when
# the run ends, however it ends, and taken again if it ran out while nobody was running.


@app.step(policy=Policy.KEYED, key_ttl=None, timeout=CALL_TIMEOUT, not_done=(Unavailable,))
async def unlock_account(fx: Effect, lock: Lock) -> Json:
    """Give the lock back. The ERP knows its handle: giving it back again changes nothing."""
    return await vendors().release_lock(lock.handle)


@app.step(
    policy=Policy.KEYED,
    key_ttl=None,
    timeout=CALL_TIMEOUT,
    not_done=(LockHeld, Unavailable),
    retry=Retry(max_attempts=10, first_wait=timedelta(seconds=1)),
    release=unlock_account,
    # Less than the minute that the ERP grants: it began to count before we heard of it.
    valid_for=timedelta(seconds=50),
)
async def lock_account(fx: Effect, supplier_id: str) -> Lock:
    """Keep other runs from ordering at this supplier meanwhile."""
    return Lock.model_validate(await vendors().acquire_lock(f"supplier/{supplier_id}", key=fx.key))


@app.step(policy=Policy.RE_EXECUTABLE, retry=SEVERAL)
async def parse_request(request_id: str) -> ParsedRequest:
    """Read what the buyer wants."""
    return ParsedRequest.model_validate(await vendors().purchase_request(request_id))


@app.step(policy=Policy.RE_EXECUTABLE, retry=SEVERAL)
async def resolve_supplier(supplier_id: str) -> Supplier:
    """Find out where the supplier takes orders."""
    return Supplier.model_validate(await vendors().supplier(supplier_id))


async def find_reference(key: str) -> Found[OpenOrder] | Absent | Pending | Rejected:
    """Ask the ERP which number it has given to our key."""
    return answer_as(OpenOrder, await vendors().erp_by_key(key))


@app.step(
    policy=Policy.KEYED,
    key_ttl=None,
    lookup=find_reference,
    settle=timedelta(seconds=1),
    timeout=CALL_TIMEOUT,
    not_done=(Unavailable,),
    retry=SEVERAL,
)
async def open_order(fx: Effect) -> OpenOrder:
    """Draw the order's number from the ERP's sequence.

    This is a step because the number travels: to the portal, to the carrier, into a mail. Drawn
    outside of one, each restart would draw another and nobody could connect the two.
    """
    return OpenOrder.model_validate(await vendors().next_reference(key=fx.key))


@app.step(policy=Policy.RE_EXECUTABLE, retry=SEVERAL)
async def quote(line: Line) -> Price:
    """Read the supplier's price of one line."""
    priced = await vendors().price(line.item)
    return Price(item=line.item, cents=priced["cents"] * line.quantity)


async def find_credit_check(key: str) -> Found[CreditDecision] | Absent | Pending | Rejected:
    """Ask the bureau by our request id; its answers lag, which is what `settle` is for."""
    return answer_as(CreditDecision, await vendors().credit_check_by_id(key))


@app.step(
    policy=Policy.RESOLVABLE,
    key_ttl=None,
    lookup=find_credit_check,
    settle=timedelta(seconds=5),
    timeout=CALL_TIMEOUT,
    not_done=(Unavailable,),
    retry=SEVERAL,
)
async def credit_check(fx: Effect, buyer: str, cents: int) -> CreditDecision:
    """Have the buyer checked. Each check costs, and every other lender sees it."""
    decided = await vendors().credit_check(buyer, cents, request_id=fx.key)
    return CreditDecision.model_validate(decided)


@app.step(policy=Policy.ESCALATE, timeout=CALL_TIMEOUT, not_done=(Unavailable,), retry=SEVERAL)
async def submit_order(reference: str, lines: int, cents: int) -> PortalOrder:
    """Send the order to the supplier's portal.

    The portal takes no key, and its search reads a replica: an empty answer proves nothing. So
    nobody but a person, who can ring the supplier up, may say that it did not happen.
    """
    return PortalOrder.model_validate(await vendors().submit_portal_order(reference, lines, cents))


async def find_charge(key: str) -> Found[Charge] | Absent | Pending | Rejected:
    """Ask the payment provider by our own key."""
    return answer_as(Charge, await vendors().payment_by_key(key))


@app.step(
    policy=Policy.RESOLVABLE,
    key_ttl=timedelta(hours=24),
    lookup=find_charge,
    settle=timedelta(seconds=1),
    timeout=CALL_TIMEOUT,
    not_done=(CardDeclined, Unavailable),
    retry=Retry(max_attempts=3, fresh_key_on=(CardDeclined,)),
)
async def charge(fx: Effect, reference: str, cents: int) -> Charge:
    """Take the buyer's money."""
    return Charge.model_validate(await vendors().charge(reference, cents, key=fx.key))


async def find_shipment(key: str) -> Found[Shipment] | Absent | Pending | Rejected:
    """Ask the carrier by our own key."""
    return answer_as(Shipment, await vendors().shipment_by_key(key))


@app.step(
    policy=Policy.RESOLVABLE,
    key_ttl=None,
    lookup=find_shipment,
    settle=timedelta(seconds=1),
    timeout=CALL_TIMEOUT,
    not_done=(Unavailable,),
    retry=SEVERAL,
)
async def book_shipment(fx: Effect, reference: str, pallets: int) -> Shipment:
    """Send a lorry."""
    return Shipment.model_validate(await vendors().book_shipment(reference, pallets, key=fx.key))


@app.step(policy=Policy.ESCALATE, timeout=CALL_TIMEOUT, not_done=(Unavailable,), retry=SEVERAL)
async def notify_buyer(to: str, reference: str, tracking: str) -> Json:
    """Tell the buyer. No key, no lookup: a person decides whether it was sent."""
    body = f"Your order {reference} is on its way. Tracking number: {tracking}."
    return await vendors().send_email(to, f"Order {reference}", body)


@app.run(
    "purchase-order",
    plan=[
        parse_request,
        resolve_supplier,
        open_order,
        quote,
        credit_check,
        submit_order,
        charge,
        book_shipment,
        notify_buyer,
    ],
)
async def purchase_order(ctx: RunContext, request: OrderRequest) -> Ordered:
    """Order what the buyer asked for."""
    wanted = await ctx.step(parse_request, request.request_id)
    supplier = await ctx.step(resolve_supplier, wanted.supplier_id)
    await ctx.step(lock_account, supplier.supplier_id)
    order = await ctx.step(open_order)
    # Neither needs a step: `now` is the time of the outcome above, on every replay.
    opened_at = ctx.now()
    quote_valid_until = opened_at + QUOTE_VALID
    # One entry in the log for 25 prices: a crash costs at most those 25. One call at a time is
    # what the supplier allows.
    prices = await ctx.map(quote, wanted.lines, every=25, concurrency=1)
    # The sum follows from what is recorded, so it is computed again.
    cents = sum(price.cents for price in prices)
    credit = await ctx.step(credit_check, wanted.buyer, cents)
    if not credit.approved:
        raise CreditRefused(f"{wanted.buyer} for {cents} cents")
    submitted = await ctx.step(submit_order, order.reference, len(wanted.lines), cents)
    paid = await ctx.step(charge, order.reference, cents)
    shipment = await ctx.step(book_shipment, order.reference, 1)
    await ctx.step(notify_buyer, f"{wanted.buyer}@example.com", order.reference, shipment.tracking)
    return Ordered(
        reference=order.reference,
        opened_at=opened_at,
        quote_valid_until=quote_valid_until,
        lines=len(prices),
        cents=cents,
        portal_id=submitted.portal_id,
        charge_id=paid.id,
        tracking=shipment.tracking,
    )
