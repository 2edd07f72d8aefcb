"""Plays recorded conversations as durable runs: each assistant message and each call is a step.

`refold worker recorded_agent.app:app` hosts it, `refold demo recorded-agent --file FILE` plays a
file. The desk of the example world does what was called and answers what the recording has.
"""

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any

from recorded_agent.conversation import (
    Conversation,
    Message,
    Transcript,
    arguments_of,
    turns_of,
)
from refold import Absent, App, Effect, Found, Pending, Policy, Rejected, Retry, RunContext
from world.access import vendors
from world.calls import Unavailable, WorldError

app = App("recorded")

SEVERAL = Retry(max_attempts=4, first_wait=timedelta(milliseconds=500))
CALL_TIMEOUT = timedelta(seconds=10)

READS = (
    "get_user_details",
    "get_reservation_details",
    "get_order_details",
    "search_direct_flight",
    "search_onestop_flight",
    "list_all_airports",
    "calculate",
    "think",
)
"""Tools that change nothing: read again after a crash."""

KEYED = ("cancel_reservation", "update_reservation_baggages", "issue_voucher")
"""Tools whose system knows our key for ever: sent again after a crash, done once."""

RESOLVABLE = (
    "book_reservation",
    "update_reservation_flights",
    "update_reservation_passengers",
    "send_certificate",
)
"""Tools that move money or seats: the system is asked by our key before anything is sent again."""

ESCALATE = ("transfer_to_human_agents",)
"""Tools that ring somebody up: no key, nothing to ask; whether it rang, a person knows."""


@app.model(retry=SEVERAL)
async def say(turn: int, messages: list[Message], recorded: Message) -> Message:
    """Ask the model, which says what it said in the recording; the whole answer is kept."""
    return await vendors().chat(messages, turn=turn, script={"message": recorded})


async def find_done(key: str) -> Found[Any] | Absent | Pending | Rejected:
    """Ask the desk by our own key what it did, in the words of the call's result."""
    answered = await vendors().desk_by_key(key)
    match answered.state:
        case "succeeded":
            return Found(answered.answer["result"])
        case "failed":
            return Rejected(WorldError(answered.status or 400, answered.answer))
        case "in_progress":
            return Pending()
        case "absent":
            return Absent()


Tool = Callable[..., Coroutine[Any, Any, Any]]


def reading(name: str) -> Tool:
    """Register a tool that reads."""

    @app.step(name=name, policy=Policy.RE_EXECUTABLE, retry=SEVERAL)
    async def tool(arguments: Any, result: Any) -> Any:
        return (await vendors().desk_look(name, arguments, result))["result"]

    return tool


def keyed(name: str) -> Tool:
    """Register a tool whose system does one thing a key, for ever."""

    @app.step(
        name=name,
        policy=Policy.KEYED,
        key_ttl=None,
        timeout=CALL_TIMEOUT,
        not_done=(Unavailable,),
        retry=SEVERAL,
    )
    async def tool(fx: Effect, arguments: Any, result: Any) -> Any:
        return (await vendors().desk(name, arguments, result, key=fx.key))["result"]

    return tool


def resolvable(name: str) -> Tool:
    """Register a tool whose system can be asked by our key."""

    @app.step(
        name=name,
        policy=Policy.RESOLVABLE,
        lookup=find_done,
        key_ttl=None,
        settle=timedelta(seconds=1),
        timeout=CALL_TIMEOUT,
        not_done=(Unavailable,),
        retry=SEVERAL,
    )
    async def tool(fx: Effect, arguments: Any, result: Any) -> Any:
        return (await vendors().desk(name, arguments, result, key=fx.key))["result"]

    return tool


def escalated(name: str) -> Tool:
    """Register a tool that only a person can speak for."""

    @app.step(
        name=name,
        policy=Policy.ESCALATE,
        timeout=CALL_TIMEOUT,
        not_done=(Unavailable,),
        retry=SEVERAL,
    )
    async def tool(arguments: Any, result: Any) -> Any:
        return (await vendors().desk(name, arguments, result))["result"]

    return tool


TOOLS: dict[str, Tool] = {
    **{name: reading(name) for name in READS},
    **{name: keyed(name) for name in KEYED},
    **{name: resolvable(name) for name in RESOLVABLE},
    **{name: escalated(name) for name in ESCALATE},
}


@app.step(policy=Policy.ESCALATE, timeout=CALL_TIMEOUT, not_done=(Unavailable,), retry=SEVERAL)
async def other_tool(name: str, arguments: Any, result: Any) -> Any:
    """Do what a tool does of which nothing is known: so nothing is assumed of it either."""
    return (await vendors().desk(name, arguments, result))["result"]


@app.run("recorded-agent")
async def recorded_agent(ctx: RunContext, conversation: Conversation) -> Transcript:
    """Play the conversation; its messages come out as they went in."""
    messages: list[Message] = []
    answers = tool_calls = 0
    for turn in turns_of(conversation.messages):
        if turn.said["role"] != "assistant":
            messages = [*messages, turn.said]
            continue
        answers += 1
        answer = await ctx.step(say, answers, messages, turn.said)
        results = await play_calls(ctx, answer["message"], turn.results)
        # The message and its results come together, so that no list without a result is ever seen.
        messages = [*messages, answer["message"], *results]
        tool_calls += len(results)
    return Transcript(id=conversation.id, messages=messages, tool_calls=tool_calls)


async def play_calls(ctx: RunContext, said: Message, recorded: list[Message]) -> list[Message]:
    """Do the calls of one message, several at the same time. Results in the calls' own order.

    Two equal calls are two intents: each has a slot of its own, hence an effect key of its own.
    """
    pairs = list(zip(said.get("tool_calls") or [], recorded, strict=True))
    if len(pairs) == 1:
        return [await play_call(ctx, *pairs[0])]
    return list(await ctx.gather(*(play_call(ctx, call, result) for call, result in pairs)))


async def play_call(ctx: RunContext, call: Message, recorded: Message) -> Message:
    """Do one call, and answer it as the recording did."""
    name, arguments = call["function"]["name"], arguments_of(call)
    tool = TOOLS.get(name)
    if tool is None:
        content = await ctx.step(other_tool, name, arguments, recorded.get("content"))
    else:
        content = await ctx.step(tool, arguments, recorded.get("content"))
    return {**recorded, "tool_call_id": call["id"], "content": content}
