"""The purchase order's story: it dies at item 173 of the quote and while booking the shipment."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from refold_projections.fold import Boundary, Slot
from refold_tools.demo.stories import Moment, Story, Verdict

ITEM = 173
ITEMS, EVERY = 240, 25
QUOTE_ROUTE = "GET /prices/{item}"

ROUTES = {
    "parse_request": "GET /purchase-requests/{id}",
    "resolve_supplier": "GET /suppliers/{id}",
    "lock_account": "POST /erp/locks",
    "unlock_account": "DELETE /erp/locks/{handle}",
    "open_order": "POST /erp/references",
    "credit_check": "POST /credit/checks",
    "submit_order": "POST /portal/orders",
    "charge": "POST /payments/charges",
    "book_shipment": "POST /carrier/shipments",
    "notify_buyer": "POST /email/messages",
}
VENDORS = {
    "lock_account": "the ERP",
    "unlock_account": "the ERP",
    "open_order": "the ERP",
    "credit_check": "the credit bureau",
    "submit_order": "the supplier's portal",
    "charge": "the bank",
    "book_shipment": "the carrier",
    "notify_buyer": "the e-mail sender",
}
TOLD = {
    "parse_request": "reads what the buyer wants: 240 lines",
    "resolve_supplier": "finds the supplier",
    "lock_account": "locks the supplier's account in the ERP, for this run alone",
    "open_order": "draws the order's number from the ERP",
    "credit_check": "has the buyer's credit checked",
    "submit_order": "sends the order to the supplier's portal",
    "charge": "takes the buyer's €14,200",
    "book_shipment": "books a lorry for one pallet",
    "notify_buyer": "writes to the buyer",
    "unlock_account": "gives the lock in the ERP back",
}
REFERENCES = {"erp_reference": "ERP", "portal_order": "portal", "shipment": "shipment"}


class PurchaseStory(Story):
    """One reference for the ERP, the portal and the shipment; one pallet."""

    name = "purchase-order"
    target = "purchase_order.app:app"
    run = "purchase-order"

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.given = {"request_id": "PR-7"}
        self.title = "A purchase order: nine steps, 240 lines, one reference, one pallet"

    @property
    def moments(self) -> Sequence[Moment]:
        """At item 173 of the quote, and while booking the shipment."""
        first = (ITEM - 1) // EVERY * EVERY
        chunk = f"map#1[{first}..{first + EVERY - 1}]/quote#1"

        def prices_left(done: Collection[str]) -> int:
            quoted = sum(EVERY for slot in done if slot.endswith("/quote#1"))
            return max(0, ITEM - 1 - quoted)

        return (
            Moment(
                None,
                chunk,
                "quote",
                QUOTE_ROUTE,
                prices_left,
                None,
                f"the supplier looks up the price of item {ITEM}; the answer is on the way",
            ),
            Moment(
                None,
                "book_shipment#1",
                "book_shipment",
                ROUTES["book_shipment"],
                lambda done: 0,
                "shipment",
                "the carrier has booked the lorry; its answer is on the way",
            ),
        )

    def line(self, slot: str, step: str) -> str | None:
        """Every step, and every fourth of the ten parts of the quote."""
        if step == "quote":
            last = int(slot.partition("..")[2].partition("]")[0]) + 1
            return f"has the prices of items 1 to {last}" if last in (100, 200, ITEMS) else None
        return TOLD.get(step)

    def vendor(self, step: str) -> str:
        """Who does what the step asks for."""
        return VENDORS.get(step, "the supplier")

    def lost(self, seen: Boundary, moment: Moment) -> str:
        """What died with the process."""
        if moment.step == "quote":
            first = (ITEM - 1) // EVERY * EVERY + 1
            return f"items {first} to {ITEM} with it; what is recorded ends at item {first - 1}"
        return "the carrier's answer with it"

    def expected(self) -> Mapping[str, int]:
        """Everything once."""
        kinds = (
            "erp_reference",
            "erp_lock",
            "erp_release",
            "credit_check",
            "portal_order",
            "charge",
            "shipment",
            "pallet",
            "email",
        )
        return dict.fromkeys(kinds, 1)

    def expected_calls(self, slots: Mapping[str, Slot]) -> Mapping[str, Sequence[str]]:
        """One call a slot, but for the quote: one for each of its lines."""
        due: dict[str, list[str]] = {QUOTE_ROUTE: []}
        for slot in slots.values():
            if slot.step == "quote":
                first, _, last = slot.name.partition("[")[2].partition("]")[0].partition("..")
                due[QUOTE_ROUTE] += [slot.name] * (int(last) - int(first) + 1)
            elif slot.step in ROUTES:
                due.setdefault(ROUTES[slot.step], []).append(slot.name)
        return due

    def also(self, ledger: Sequence[dict[str, Any]]) -> Mapping[str, object]:
        """The references that the ERP, the portal and the carrier have."""
        return {
            "references": {
                place: sorted({e["body"]["reference"] for e in ledger if e["kind"] == kind})
                for kind, place in REFERENCES.items()
            },
            "pallets": sum(e["quantity"] for e in ledger if e["kind"] == "pallet"),
        }

    def judge(self, step: str, ledger: Sequence[dict[str, Any]], settled: int) -> Verdict | None:
        """The portal and the e-mail sender: a person rings up, here by reading the ledger."""
        kind = {"submit_order": "portal_order", "notify_buyer": "email"}.get(step)
        if kind is None:
            return None
        found = [effect for effect in ledger if effect["kind"] == kind]
        if len(found) > settled:
            return Verdict(True, found[settled]["body"], f"{self.vendor(step)} has it")
        return Verdict(False, None, f"{self.vendor(step)} has nothing of it")

    def holds(self, result: object, ledger: Sequence[dict[str, Any]]) -> str | None:
        """One reference everywhere, and the run knows it by no other."""
        references = {e["body"]["reference"] for e in ledger if e["kind"] in REFERENCES}
        known = result.get("reference") if isinstance(result, dict) else None
        if references != {known}:
            return f"outside it is {', '.join(sorted(references))}, the run knows {known}"
        return None
