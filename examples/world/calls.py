"""Every call to the world as a method, the same over HTTP (`WorldClient`) and in process.

A vendor's refusal is raised as a typed exception that can be rebuilt from its `args`. A call that
got no answer raises what the transport raises (a timeout, a ConnectionError, an aiohttp
ClientError): whether the vendor acted is then unknown, and nothing here pretends otherwise.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias
from urllib.parse import quote, urlencode

from world.messages import Answer, Json

KeyState: TypeAlias = Literal["absent", "in_progress", "succeeded", "failed"]


class WorldError(Exception):
    """The vendor answered with a status from 400 on; `body` is its JSON.

    A 504 is among them: it comes from a gateway, and the vendor behind it may have acted.
    """

    def __init__(self, status: int, body: Json) -> None:
        """Keep both in `args`, from which the exception can be made again."""
        super().__init__(status, body)
        self.status = status
        self.body = body

    def __str__(self) -> str:
        """The status and the vendor's own words."""
        return f"{self.status} {self.body.get('error')}: {self.body.get('message')}"


class CardDeclined(WorldError):
    """402: the card was declined and nothing was charged; the key will say so while it lives."""


class Unavailable(WorldError):
    """503 with `acted: false`: the vendor did not take the call in; nothing was done."""


class LockHeld(WorldError):
    """423: somebody else holds the lock; `body` says until when."""


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """What a lookup by key said.

    `absent` says that nothing is on record, which is only final once the vendor's own lag and
    queues have passed. `answer` is what the first call answered (or would have).
    """

    state: KeyState
    answer: Json
    status: int | None = None


class VendorCalls(ABC):
    """The vendors' calls. Amounts are whole pence or cents; keys go out as Idempotency-Key."""

    @abstractmethod
    async def send(
        self, method: str, target: str, body: Json | None = None, *, key: str | None = None
    ) -> Answer:
        """Make one call, once, and return whatever status came back."""

    async def ask(
        self, method: str, target: str, body: Json | None = None, *, key: str | None = None
    ) -> Json:
        """Make one call and return its body. Raises WorldError or one of its subclasses."""
        answer = await self.send(method, target, body, key=key)
        raise_for(answer)
        return answer.body

    async def refund(
        self, order_id: str, pence: int, *, key: str | None, card: str | None = None
    ) -> Json:
        """Pay money back. Raises CardDeclined."""
        body = {"order_id": order_id, "pence": pence} | ({"card": card} if card else {})
        return await self.ask("POST", "/payments/refunds", body, key=key)

    async def charge(
        self, reference: str, cents: int, *, key: str | None, card: str | None = None
    ) -> Json:
        """Take money. Raises CardDeclined."""
        body = {"reference": reference, "cents": cents} | ({"card": card} if card else {})
        return await self.ask("POST", "/payments/charges", body, key=key)

    async def payment_by_key(self, key: str) -> KeyAnswer:
        """What the payment provider has under our key."""
        return await self._by_key("/payments/by-key", key)

    async def book_shipment(self, reference: str, pallets: int, *, key: str | None) -> Json:
        """Send a lorry."""
        body = {"reference": reference, "pallets": pallets}
        return await self.ask("POST", "/carrier/shipments", body, key=key)

    async def shipment_by_key(self, key: str) -> KeyAnswer:
        """What the carrier has under our key."""
        return await self._by_key("/carrier/by-key", key)

    async def credit_check(self, buyer: str, cents: int, *, request_id: str) -> Json:
        """Ask for a decision; a repeat of the request id gets the same one."""
        body = {"request_id": request_id, "buyer": buyer, "cents": cents}
        return await self.ask("POST", "/credit/checks", body, key=request_id)

    async def credit_check_by_id(self, request_id: str) -> KeyAnswer:
        """What the bureau's copy shows; it lags by some seconds."""
        return await self._by_key("/credit/checks", request_id)

    async def next_reference(self, *, key: str | None = None) -> Json:
        """The ERP's next order number, e.g. `{"reference": "PO-2026-0041"}`."""
        return await self.ask("POST", "/erp/references", key=key)

    async def acquire_lock(
        self, resource: str, *, key: str | None = None, ttl_ms: int | None = None
    ) -> Json:
        """Lock a resource in the ERP: a handle and `expires_at_ms`. Raises LockHeld."""
        body: Json = {"resource": resource} | ({"ttl_ms": ttl_ms} if ttl_ms is not None else {})
        return await self.ask("POST", "/erp/locks", body, key=key)

    async def lock_state(self, handle: str) -> Json:
        """The lock and whether it is still `valid`."""
        return await self.ask("GET", f"/erp/locks/{_quoted(handle)}")

    async def release_lock(self, handle: str) -> Json:
        """Give the lock back; a second time changes nothing."""
        return await self.ask("DELETE", f"/erp/locks/{_quoted(handle)}")

    async def erp_by_key(self, key: str) -> KeyAnswer:
        """The reference or lock that the ERP has under our key."""
        return await self._by_key("/erp/by-key", key)

    async def create_erp_order(
        self, reference: str, lines: int, cents: int, *, lock: str | None = None
    ) -> Json:
        """Enter the order; the reference is its key."""
        body: Json = {"reference": reference, "lines": lines, "cents": cents}
        return await self.ask("POST", "/erp/orders", body | ({"lock": lock} if lock else {}))

    async def erp_order(self, reference: str) -> KeyAnswer:
        """The order under this reference, from the primary."""
        answer = await self.send("GET", f"/erp/orders/{_quoted(reference)}")
        if answer.status == 404:
            return KeyAnswer("absent", answer.body)
        raise_for(answer)
        return KeyAnswer("succeeded", answer.body, answer.status)

    async def submit_portal_order(self, reference: str, lines: int, cents: int) -> Json:
        """Send the order to the supplier. Sent twice it is two orders."""
        body = {"reference": reference, "lines": lines, "cents": cents}
        return await self.ask("POST", "/portal/orders", body)

    async def search_portal(self, reference: str) -> list[Json]:
        """What the supplier's replica shows. An empty list proves nothing."""
        found = await self.ask("GET", "/portal/orders?" + urlencode({"ref": reference}))
        orders: list[Json] = found["orders"]
        return orders

    async def send_email(self, to: str, subject: str, body: str) -> Json:
        """Send a message. Sent twice it arrives twice."""
        message = {"to": to, "subject": subject, "body": body}
        return await self.ask("POST", "/email/messages", message)

    async def create_ticket(
        self, subject: str, *, key: str | None, order_id: str | None = None
    ) -> Json:
        """Open a ticket under our own key."""
        return await self.ask(
            "POST", "/tickets", {"subject": subject, "order_id": order_id}, key=key
        )

    async def ticket_by_key(self, key: str) -> KeyAnswer:
        """What the ticket system has under our key."""
        return await self._by_key("/tickets/by-key", key)

    async def put_note(self, order_id: str, note: str, text: str) -> Json:
        """Set a note on an order; setting it again changes nothing."""
        return await self.ask("PUT", f"/notes/{_quoted(order_id)}/{_quoted(note)}", {"text": text})

    async def desk(
        self, action: str, arguments: Any, result: Any = None, *, key: str | None = None
    ) -> Json:
        """Do a recorded action; the answer's `result` is the one that was handed in."""
        body = {"arguments": arguments, "result": result}
        return await self.ask("POST", f"/desk/{_quoted(action)}", body, key=key)

    async def desk_look(self, action: str, arguments: Any, result: Any = None) -> Json:
        """Look something up at the desk, as recorded; nothing changes."""
        body = {"arguments": arguments, "result": result}
        return await self.ask("POST", f"/desk/{_quoted(action)}/look", body)

    async def desk_by_key(self, key: str) -> KeyAnswer:
        """What the desk has under our key."""
        return await self._by_key("/desk/by-key", key)

    async def order(self, order_id: str) -> Json:
        """An order, e.g. 48211."""
        return await self.ask("GET", f"/orders/{_quoted(order_id)}")

    async def customer(self, customer_id: str) -> Json:
        """A customer's record."""
        return await self.ask("GET", f"/customers/{_quoted(customer_id)}")

    async def stock(self, sku: str) -> Json:
        """How many of an article can be sent."""
        return await self.ask("GET", f"/stock/{_quoted(sku)}")

    async def policy(self, name: str) -> Json:
        """`refunds`, `returns` or `escalation`."""
        return await self.ask("GET", f"/policies/{_quoted(name)}")

    async def fraud(self, order_id: str) -> Json:
        """A score from 0 to 100 and a verdict."""
        return await self.ask("GET", f"/fraud/{_quoted(order_id)}")

    async def supplier(self, supplier_id: str) -> Json:
        """A supplier's record, e.g. sup-881."""
        return await self.ask("GET", f"/suppliers/{_quoted(supplier_id)}")

    async def purchase_request(self, request_id: str) -> Json:
        """What a buyer asked for: 240 lines."""
        return await self.ask("GET", f"/purchase-requests/{_quoted(request_id)}")

    async def price(self, item: str) -> Json:
        """The supplier's price of `item-001` … `item-240` at this moment."""
        return await self.ask("GET", f"/prices/{_quoted(item)}")

    async def chat(
        self, messages: Sequence[Any], *, turn: int | None = None, script: Json | None = None
    ) -> Json:
        """Ask the model: the whole assistant message with id, model, usage and stop reason."""
        body: Json = {"messages": list(messages)}
        if turn is not None:
            body["turn"] = turn
        if script is not None:
            body["script"] = script
        return await self.ask("POST", "/model/chat", body)

    async def _by_key(self, path: str, key: str) -> KeyAnswer:
        answer = await self.send("GET", f"{path}/{_quoted(key)}")
        if answer.status == 404:
            return KeyAnswer("absent", answer.body)
        raise_for(answer)
        return KeyAnswer(
            answer.body["state"], answer.body.get("answer", {}), answer.body.get("status")
        )


def raise_for(answer: Answer) -> None:
    """Raise the exception that stands for a refusal; nothing below 400."""
    if answer.status < 400:
        return
    if answer.status == 402:
        raise CardDeclined(answer.status, answer.body)
    if answer.status == 423:
        raise LockHeld(answer.status, answer.body)
    if answer.status == 503 and answer.body.get("acted") is False:
        raise Unavailable(answer.status, answer.body)
    raise WorldError(answer.status, answer.body)


def _quoted(segment: str) -> str:
    return quote(segment, safe="")
