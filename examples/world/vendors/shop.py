"""What can be read and not changed: orders, customers, stock, policies, prices, fraud scores."""

from collections.abc import Iterable

from world.messages import Answer, Handler, Json, Request, Route, refusal
from world.vendors.base import Vendor
from world.vendors.fields import amount

ITEM_COUNT = 240
PURCHASE_TOTAL_CENTS = 1_420_000

ORDERS: dict[str, Json] = {
    "48211": {
        "order_id": "48211",
        "customer_id": "C-1709",
        "total_pence": 4160,
        "currency": "GBP",
        "placed_on": "2026-05-02",
        "delivered_on": "2026-05-07",
        "payment": "card-4471",
        "lines": [
            {"sku": "KETTLE-17", "quantity": 1, "pence": 2990},
            {"sku": "FILTER-3", "quantity": 3, "pence": 390},
        ],
    },
    "48212": {
        "order_id": "48212",
        "customer_id": "C-2044",
        "total_pence": 990,
        "currency": "GBP",
        "placed_on": "2026-05-03",
        "delivered_on": None,
        "payment": "card-declined",
        "lines": [{"sku": "MUG-2", "quantity": 1, "pence": 990}],
    },
}
CUSTOMERS: dict[str, Json] = {
    "C-1709": {"customer_id": "C-1709", "email": "c-1709@example.com", "since": "2021-03-11"},
    "C-2044": {"customer_id": "C-2044", "email": "c-2044@example.com", "since": "2026-04-30"},
}
STOCK: dict[str, Json] = {
    "KETTLE-17": {"sku": "KETTLE-17", "available": 12, "warehouse": "north"},
    "FILTER-3": {"sku": "FILTER-3", "available": 0, "warehouse": "north"},
    "MUG-2": {"sku": "MUG-2", "available": 340, "warehouse": "south"},
}
POLICIES: dict[str, Json] = {
    "refunds": {"policy": "refunds", "window_days": 30, "approval_over_pence": 10_000},
    "returns": {"policy": "returns", "window_days": 45, "label": "prepaid"},
    "escalation": {"policy": "escalation", "desk": "second-line", "after_hours": 24},
}
FRAUD: dict[str, Json] = {
    "48211": {"order_id": "48211", "score": 7, "verdict": "clear"},
    "48212": {"order_id": "48212", "score": 81, "verdict": "review"},
}
SUPPLIERS: dict[str, Json] = {
    "sup-881": {"supplier_id": "sup-881", "portal": "portal-881", "email": "orders@example.net"},
}


def item_cents(number: int) -> int:
    """The list price of item 1 to 240: all different enough, together exactly 1,420,000 cents."""
    if number < ITEM_COUNT:
        return 5_917 + (number * 37) % 101 - 50
    return PURCHASE_TOTAL_CENTS - sum(item_cents(other) for other in range(1, ITEM_COUNT))


def item_name(number: int) -> str:
    """`item-001` to `item-240`."""
    return f"item-{number:03}"


LIST_PRICES = {item_name(number): item_cents(number) for number in range(1, ITEM_COUNT + 1)}


class Shop(Vendor):
    """Read-only but for one thing: a supplier may change a price (`PUT /prices/{item}`)."""

    name = "shop"

    def routes(self) -> Iterable[Route]:
        """The shop's addresses."""
        for path, table in (
            ("/orders/{id}", ORDERS),
            ("/customers/{id}", CUSTOMERS),
            ("/stock/{id}", STOCK),
            ("/policies/{id}", POLICIES),
            ("/fraud/{id}", FRAUD),
            ("/suppliers/{id}", SUPPLIERS),
        ):
            yield Route(self.name, "GET", path, _reader(table))
        yield Route(self.name, "GET", "/purchase-requests/{id}", self._purchase_request)
        yield Route(self.name, "GET", "/prices/{item}", self._price)
        yield Route(self.name, "PUT", "/prices/{item}", self._set_price, writes=True)

    def _purchase_request(self, request: Request) -> Answer:
        return Answer(
            200,
            {
                "request_id": request.params["id"],
                "supplier_id": "sup-881",
                "buyer": "buyer-17",
                "lines": [{"item": item, "quantity": 1} for item in sorted(LIST_PRICES)],
            },
        )

    def _price(self, request: Request) -> Answer:
        item = request.params["item"]
        if item not in LIST_PRICES:
            return refusal(404, "not_found", f"there is no price for {item}")
        cents = self._books.ledger.get("shop.prices", item) or LIST_PRICES[item]
        return Answer(200, {"item": item, "cents": cents, "currency": "EUR"})

    def _set_price(self, request: Request) -> Answer:
        item = request.params["item"]
        if item not in LIST_PRICES:
            return refusal(404, "not_found", f"there is no price for {item}")
        self._books.ledger.put("shop.prices", item, amount(request, "cents"))
        return self._price(request)


def _reader(table: dict[str, Json]) -> Handler:
    def read(request: Request) -> Answer:
        found = table.get(request.params["id"])
        if found is None:
            return refusal(404, "not_found", f"{request.path} does not exist")
        return Answer(200, found)

    return read
