"""What the model does on which turn. With a model of your own this file is not needed.

The world's model endpoint answers in words that never come twice, but acts by this script, so that
the example takes the same forty turns on every machine.
"""

from typing import Any, TypedDict


class ScriptedCall(TypedDict):
    """A tool call that the model makes."""

    name: str
    input: dict[str, Any]


def _call(name: str, /, **arguments: Any) -> ScriptedCall:
    return {"name": name, "input": arguments}


ORDER_ID = "48211"
CUSTOMER_ID = "C-1709"
EMAIL_TURN, REFUND_TURN = 14, 22

TOOL_TURNS: dict[int, ScriptedCall] = {
    2: _call("read_order", order_id=ORDER_ID),
    4: _call("read_customer", customer_id=CUSTOMER_ID),
    6: _call("open_ticket", order_id=ORDER_ID, subject="Kettle with a cracked base"),
    9: _call("read_policy", name="refunds"),
    11: _call("check_fraud", order_id=ORDER_ID),
    EMAIL_TURN: _call(
        "send_email",
        to="c-1709@example.com",
        subject="Your refund for order 48211",
        body="We are sorry about the kettle. Your refund of £41.60 is approved.",
    ),
    REFUND_TURN: _call("issue_refund", order_id=ORDER_ID, pence=4160),
    26: _call("put_note", order_id=ORDER_ID, text="£41.60 refunded, the kettle is not sent back."),
    33: _call("check_stock", sku="KETTLE-17"),
    37: _call("read_policy", name="returns"),
}
"""Ten tool calls, eight of them before turn 31; the ticket, the e-mail, the refund and the note
change something."""


def script_for(turn: int) -> dict[str, Any]:
    """The script of one turn, in the shape that the endpoint takes."""
    call = TOOL_TURNS.get(turn)
    return {"calls": [call] if call else []}
