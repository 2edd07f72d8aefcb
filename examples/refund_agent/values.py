"""What the refund agent takes, what its tools take and answer, and what it returns."""

from typing import Any, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

Message: TypeAlias = dict[str, Any]
"""A message as the model's provider has it. Kept as plain data: every byte of it counts later."""


class Case(BaseModel):
    """The run's input. `turns_max` is the agent's budget: an agent needs an end."""

    order_id: str
    complaint: str = "The kettle arrived with a cracked base. I would like my money back."
    turns_max: int = Field(default=40, ge=1, le=200)


class Outcome(BaseModel):
    """The run's result, with the whole conversation as the model has last seen it."""

    order_id: str
    refunded_pence: int
    turns: int
    tool_calls: int
    closing: str
    messages: list[Message]


class Answer(BaseModel):
    """What a vendor answers: the named fields are relied on, all others are kept as they came."""

    model_config = ConfigDict(extra="allow")


class Order(Answer):
    """An order of the shop."""

    order_id: str
    customer_id: str
    total_pence: int


class Refund(Answer):
    """Money that was paid back."""

    id: str
    order_id: str
    pence: int


class Ticket(Answer):
    """A ticket of the support desk."""

    ticket: str
    subject: str


class OrderTool(BaseModel):
    """Arguments of the tools that only need an order."""

    order_id: str


class CustomerTool(BaseModel):
    """Arguments of `read_customer`."""

    customer_id: str


class PolicyTool(BaseModel):
    """Arguments of `read_policy`."""

    name: str


class StockTool(BaseModel):
    """Arguments of `check_stock`."""

    sku: str


class TicketTool(BaseModel):
    """Arguments of `open_ticket`."""

    order_id: str
    subject: str


class EmailTool(BaseModel):
    """Arguments of `send_email`."""

    to: str
    subject: str
    body: str


class RefundTool(BaseModel):
    """Arguments of `issue_refund`. Whole pence: money is never a float."""

    order_id: str
    pence: int = Field(gt=0)


class NoteTool(BaseModel):
    """Arguments of `put_note`."""

    order_id: str
    text: str
