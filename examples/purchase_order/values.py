"""What the purchase order takes, what its steps return, and what comes of it."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel


class OrderRequest(BaseModel):
    """The run's input."""

    request_id: str = "PR-7"


class Line(BaseModel):
    """One line of the request."""

    item: str
    quantity: int


class ParsedRequest(BaseModel):
    """What the buyer asked for."""

    buyer: str
    supplier_id: str
    lines: list[Line]


class Supplier(BaseModel):
    """Who delivers."""

    supplier_id: str
    portal: str
    email: str


class OpenOrder(BaseModel):
    """The number under which everybody outside knows the order. Minted once, never again."""

    reference: str


class Price(BaseModel):
    """The supplier's price of one line, in whole cents."""

    item: str
    cents: int


class CreditDecision(BaseModel):
    """What the credit bureau decided."""

    request_id: str
    approved: bool


class PortalOrder(BaseModel):
    """The supplier's own number of our order."""

    portal_id: str
    reference: str


class Charge(BaseModel):
    """The buyer's payment."""

    id: str
    reference: str
    cents: int


class Shipment(BaseModel):
    """The booked lorry."""

    tracking: str
    reference: str
    pallets: int


class Lock(BaseModel):
    """The ERP's lock on an account. It is the dead process's too: its handle is in the record."""

    handle: str
    resource: str


class Ordered(BaseModel):
    """The run's result."""

    reference: str
    opened_at: datetime
    quote_valid_until: datetime
    lines: int
    cents: int
    portal_id: str
    charge_id: str
    tracking: str


Json = dict[str, Any]
