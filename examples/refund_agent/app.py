"""The refund agent as a durable run: what it may do, what recovery may do, and the conversation.

`refold worker refund_agent.app:app` hosts it; `refold policies refund_agent.app:app` shows for each
step what happens to it when its process dies.
"""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from refold import (
    Absent,
    App,
    Effect,
    Found,
    Pending,
    Policy,
    Rejected,
    Retry,
    RunContext,
    StepAbsent,
    StepError,
)
from refund_agent.script import script_for
from refund_agent.values import (
    Case,
    CustomerTool,
    EmailTool,
    Message,
    NoteTool,
    Order,
    OrderTool,
    Outcome,
    PolicyTool,
    Refund,
    RefundTool,
    StockTool,
    Ticket,
    TicketTool,
)
from world.access import vendors
from world.calls import CardDeclined, Unavailable

app = App("refunds")

SEVERAL = Retry(max_attempts=4, first_wait=timedelta(milliseconds=500))
PAYMENTS_KEY_TTL = timedelta(hours=24)


# The model. Asking it again gives another answer, so what it says is recorded as a whole: the ids
# of its tool calls have to come back byte for byte in every later request.


@app.model(retry=SEVERAL)
async def decide(turn: int, messages: list[Message]) -> Message:
    """Ask the model what to do next, given the conversation so far."""
    return await vendors().chat(messages, turn=turn, script=script_for(turn))


# Tools that read. Reading twice changes nothing: no intent is written, and a read that was under
# way when the process died simply runs again.


@app.step(policy=Policy.RE_EXECUTABLE, retry=SEVERAL)
async def read_order(order_id: str) -> Order:
    """Read the order."""
    return Order.model_validate(await vendors().order(order_id))


@app.step(policy=Policy.RE_EXECUTABLE, retry=SEVERAL)
async def read_customer(customer_id: str) -> dict[str, Any]:
    """Read who ordered."""
    return await vendors().customer(customer_id)


@app.step(policy=Policy.RE_EXECUTABLE, retry=SEVERAL)
async def read_policy(name: str) -> dict[str, Any]:
    """Read one of the shop's own rules."""
    return await vendors().policy(name)


@app.step(policy=Policy.RE_EXECUTABLE, retry=SEVERAL)
async def check_fraud(order_id: str) -> dict[str, Any]:
    """Read the order's fraud score."""
    return await vendors().fraud(order_id)


@app.step(policy=Policy.RE_EXECUTABLE, retry=SEVERAL)
async def check_stock(sku: str) -> dict[str, Any]:
    """Read how many can be sent."""
    return await vendors().stock(sku)


# Tools that change something. For each far system two questions decide the policy: does it know a
# key of ours, and can it be asked by that key what it did?


@app.step(
    policy=Policy.KEYED,
    key_ttl=None,
    timeout=timedelta(seconds=10),
    not_done=(Unavailable,),
    retry=SEVERAL,
)
async def open_ticket(fx: Effect, order_id: str, subject: str) -> Ticket:
    """Open a ticket. The desk keeps keys for ever, so a repeat gives the first ticket again."""
    made = await vendors().create_ticket(subject, key=fx.key, order_id=order_id)
    return Ticket.model_validate(made)


@app.step(
    policy=Policy.ESCALATE, timeout=timedelta(seconds=10), not_done=(Unavailable,), retry=SEVERAL
)
async def send_email(to: str, subject: str, body: str) -> dict[str, Any]:
    """Write to the customer. The sender knows no key and cannot be asked: a person decides."""
    return await vendors().send_email(to, subject, body)


async def find_refund(key: str) -> Found[Refund] | Absent | Pending | Rejected:
    """Ask the payment provider by our own key what became of a refund."""
    said = await vendors().payment_by_key(key)
    match said.state:
        case "succeeded":
            return Found(Refund.model_validate(said.answer))
        case "failed":
            return Rejected(CardDeclined(said.status or 402, said.answer))
        case "in_progress":
            return Pending()
        case "absent":
            return Absent()


@app.step(
    policy=Policy.RESOLVABLE,
    lookup=find_refund,
    key_ttl=PAYMENTS_KEY_TTL,
    settle=timedelta(seconds=1),
    timeout=timedelta(seconds=10),
    not_done=(CardDeclined, Unavailable),
    # The provider replays a decline under its key, so another try needs another key.
    retry=Retry(max_attempts=3, fresh_key_on=(CardDeclined,)),
)
async def issue_refund(fx: Effect, order_id: str, pence: int) -> Refund:
    """Pay money back, under a key that is the same in every attempt."""
    return Refund.model_validate(await vendors().refund(order_id, pence, key=fx.key))


@app.step(
    policy=Policy.KEYED,
    key_ttl=None,
    timeout=timedelta(seconds=10),
    not_done=(Unavailable,),
    retry=SEVERAL,
)
async def put_note(fx: Effect, order_id: str, text: str) -> dict[str, Any]:
    """Write a note on the order, under our key as its name: put again it is the same note."""
    return await vendors().put_note(order_id, fx.key, text)


class Tool(NamedTuple):
    """A step that the model may call, and what its arguments must look like."""

    step: Callable[..., Any]
    takes: type[BaseModel]


TOOLS = {
    "read_order": Tool(read_order, OrderTool),
    "read_customer": Tool(read_customer, CustomerTool),
    "read_policy": Tool(read_policy, PolicyTool),
    "check_fraud": Tool(check_fraud, OrderTool),
    "check_stock": Tool(check_stock, StockTool),
    "open_ticket": Tool(open_ticket, TicketTool),
    "send_email": Tool(send_email, EmailTool),
    "issue_refund": Tool(issue_refund, RefundTool),
    "put_note": Tool(put_note, NoteTool),
}


@app.run(
    "refund-agent",
    plan=[
        decide,
        read_order,
        read_customer,
        open_ticket,
        read_policy,
        check_fraud,
        send_email,
        issue_refund,
        put_note,
        check_stock,
    ],
)
async def refund_agent(ctx: RunContext, case: Case) -> Outcome:
    """Let the model work the case until its budget of turns is used up."""
    text = f"Order {case.order_id}. {case.complaint}"
    messages: list[Message] = [{"role": "user", "content": text}]
    refunded_pence = tool_calls = 0
    closing = ""
    for turn in range(1, case.turns_max + 1):
        answer = await ctx.step(decide, turn, messages)
        messages = [*messages, {"role": "assistant", "content": answer["content"]}]
        closing = "".join(b["text"] for b in answer["content"] if b["type"] == "text")
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        if turn == case.turns_max and not calls:
            break
        # Every call gets exactly one result, directly behind it and in its order: the provider
        # refuses a conversation in which one is missing.
        results = [await use_tool(ctx, call) for call in calls]
        messages = [*messages, {"role": "user", "content": results or "Please go on."}]
        tool_calls += len(calls)
        for call, result in zip(calls, results, strict=True):
            if call["name"] == "issue_refund" and not result["is_error"]:
                refunded_pence += json.loads(result["content"])["pence"]
    return Outcome(
        order_id=case.order_id,
        refunded_pence=refunded_pence,
        turns=case.turns_max,
        tool_calls=tool_calls,
        closing=closing,
        messages=messages,
    )


async def use_tool(ctx: RunContext, call: Message) -> Message:
    """Do what the model asked for; what it asked wrongly, or what was refused, it is told."""
    tool = TOOLS.get(call["name"])
    if tool is None:
        return tool_result(call, f"there is no tool {call['name']}", is_error=True)
    try:
        given = tool.takes.model_validate(call["input"])
        done = await ctx.step(tool.step, **dict(given))
    except ValidationError as error:
        return tool_result(call, str(error), is_error=True)
    except (CardDeclined, Unavailable, StepError, StepAbsent) as error:
        # All of these say that nothing was done. A step whose outcome is unknown never comes here:
        # it waits until its policy, or a person, has settled it.
        return tool_result(call, f"{call['name']} was not done: {error}", is_error=True)
    told = done.model_dump(mode="json") if isinstance(done, BaseModel) else done
    return tool_result(call, json.dumps(told, ensure_ascii=False))


def tool_result(call: Message, content: str, *, is_error: bool = False) -> Message:
    """The block that answers `call`, under the id that the model gave to it."""
    return {
        "type": "tool_result",
        "tool_use_id": call["id"],
        "content": content,
        "is_error": is_error,
    }
