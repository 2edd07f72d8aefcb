"""Recorded conversations: JSON lines of `{"id", "messages"}`, checked before they are played.

Messages are those of the `tool_calls` shape: the assistant's message names its calls, and one
message of role `tool` for each of them follows directly behind it, in the same order. Ids of calls
repeat in real recordings, even within one conversation, so a result belongs to its call by place.
"""

import json
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError, model_validator

Message: TypeAlias = dict[str, Any]


class Turn(BaseModel):
    """What somebody said: the user, or the assistant together with what its calls gave back."""

    said: Message
    calls: list[Message] = []
    results: list[Message] = []


class Conversation(BaseModel):
    """One recorded conversation."""

    id: str
    messages: list[Message]

    @model_validator(mode="after")
    def _is_whole(self) -> "Conversation":
        turns_of(self.messages)
        return self


class Transcript(BaseModel):
    """What came of playing one: the messages as the model has seen them, and how many calls."""

    id: str
    messages: list[Message]
    tool_calls: int


class FileUnusable(Exception):
    """A conversation file that cannot be read; the text says where and why."""


def turns_of(messages: list[Message]) -> list[Turn]:
    """The conversation turn by turn. Raises ValueError where a call and its result do not pair."""
    turns: list[Turn] = []
    place = 0
    while place < len(messages):
        said = messages[place]
        role = said.get("role")
        if role not in ("system", "user", "assistant"):
            raise ValueError(f"messages[{place}]: a message of role {role!r} answers no call")
        calls: list[Message] = said.get("tool_calls") or []
        results = messages[place + 1 : place + 1 + len(calls)]
        for number, call in enumerate(calls):
            _check_call(call, f"messages[{place}].tool_calls[{number}]")
            answer = results[number] if number < len(results) else {}
            if answer.get("role") != "tool" or answer.get("tool_call_id") != call["id"]:
                raise ValueError(
                    f"messages[{place}].tool_calls[{number}] ({call['function']['name']}) has no "
                    f"result at messages[{place + 1 + number}]"
                )
        turns.append(Turn(said=said, calls=calls, results=results))
        place += 1 + len(calls)
    return turns


def arguments_of(call: Message) -> Any:
    """The arguments as data; as the model's own text where that is no JSON."""
    text = call["function"].get("arguments", "")
    try:
        return json.loads(text)
    except ValueError:
        return text


def read_conversations(path: Path) -> list[Conversation]:
    """Every conversation of a file, one a line. Raises FileUnusable naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FileUnusable(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    found: list[Conversation] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.append(Conversation.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            said = first["msg"].removeprefix("Value error, ")
            raise FileUnusable(
                f"{path}, line {number}: {where + ': ' if where else ''}{said}"
            ) from (error)
    if not found:
        raise FileUnusable(f"{path}: there is no conversation in it")
    return found


def _check_call(call: Message, where: str) -> None:
    function = call.get("function")
    if not isinstance(call.get("id"), str) or not isinstance(function, dict):
        raise ValueError(f"{where}: a call needs an id and a function")
    if not isinstance(function.get("name"), str):
        raise ValueError(f"{where}: its function has no name")
