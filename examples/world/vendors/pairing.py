"""The model provider's rule about tools: each call has one result, directly behind its message.

Two shapes are read, as the two large providers have them: content blocks (`tool_use` answered by
`tool_result` in the next user message) and `tool_calls` (answered by messages of role `tool`).
Ids are compared within one assistant message only: recorded conversations repeat them.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any


def complaint(messages: Sequence[Any]) -> str | None:
    """What is wrong with the conversation, naming the message and the id; None if nothing is."""
    index = 0
    while index < len(messages):
        message = messages[index]
        if not isinstance(message, dict) or "role" not in message:
            return f"messages.{index}: not an object with a role"
        orphans = _result_ids(message)
        if orphans:
            return (
                f"messages.{index}: tool result {orphans[0]} has no tool call "
                "in the message directly before it"
            )
        calls = _call_ids(message)
        end = _end_of_results(messages, index + 1)
        if not calls:
            index += 1
            continue
        results = [one for later in messages[index + 1 : end] for one in _result_ids(later)]
        for wanted, times in Counter(calls).items():
            found = results.count(wanted)
            if found < times:
                return f"messages.{index}: tool call {wanted} has no result directly after it"
            if found > times:
                return (
                    f"messages.{index}: tool call {wanted} has {found} results instead of {times}"
                )
        for one in results:
            if one not in calls:
                return (
                    f"messages.{index + 1}: tool result {one} has no tool call "
                    "in the message directly before it"
                )
        index = end
    return None


def _end_of_results(messages: Sequence[Any], start: int) -> int:
    """Where the results that follow a message end: all `tool` messages, or one user message."""
    end = start
    while end < len(messages) and _role(messages[end]) == "tool":
        end += 1
    if end == start and end < len(messages) and _result_ids(messages[end]):
        end += 1
    return end


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _call_ids(message: Any) -> list[str]:
    if _role(message) != "assistant":
        return []
    calls = _objects(message.get("tool_calls"))
    calls += [
        block for block in _objects(message.get("content")) if block.get("type") == "tool_use"
    ]
    return [str(call.get("id")) for call in calls]


def _result_ids(message: Any) -> list[str]:
    if _role(message) == "tool":
        return [str(message.get("tool_call_id"))]
    if _role(message) != "user":
        return []
    blocks = _objects(message.get("content"))
    return [str(b.get("tool_use_id")) for b in blocks if b.get("type") == "tool_result"]


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
