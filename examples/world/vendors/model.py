"""The model endpoint: never the same answer twice, however often it is asked the same thing.

What it *does* can be scripted, so that an example agent takes the same turns on every machine;
what it *says* is one of eighty wordings that begin alike for the first hundred words or so. Samples
of one prompt at temperature zero have been measured to come out of a busy server in that way.
"""

import json
import string
from collections.abc import Iterable
from random import Random
from typing import Any

from world.messages import Answer, Json, Request, Route, refusal
from world.vendors.base import Vendor
from world.vendors.fields import BadField
from world.vendors.pairing import complaint

INPUT_USD_MICROS_PER_1K = 3_000
OUTPUT_USD_MICROS_PER_1K = 15_000

OPENING = (
    "Here is where the case stands. The customer wrote that the kettle from the order arrived with "
    "a cracked base, and asked for the money back rather than for another one. The order is on "
    "file, it was paid by card, and the parcel was handed over within the window that the refund "
    "policy sets, so nothing on our side speaks against the request. Before anything is paid out "
    "the amount has to agree with what was charged, the stock has to be looked at in case a "
    "replacement would be quicker, and whatever is done has to be written down where the next "
    "person can find it. With that in mind,"
)
_VIEWS = (
    "the most useful thing to do now is to go one step further",
    "I would rather settle the open point first",
    "the facts we have are enough to carry on",
    "it is worth being careful with the next move",
    "there is one thing left to find out here",
    "the short road is also the right one",
    "I see no reason to keep the customer waiting",
    "let us take the points in the order in which they came",
)
_REASONS = (
    "because the record should be complete before anybody is paid",
    "since each further day makes the customer less patient",
    "so that the numbers can be checked by somebody else",
    "as the policy asks for exactly that",
    "given that the amount is well below the limit for approval",
    "for the warehouse has nothing to add",
    "because it can be explained in one sentence later",
    "as long as the parcel number still agrees",
    "since the earlier replies point the same way",
    "and I will say so in the closing note",
)
VARIANT_COUNT = len(_VIEWS) * len(_REASONS)


class Model(Vendor):
    """`POST /model/chat` with `messages`, and for scripted agents `turn` and `script`.

    `script` is what to do on this turn: `{"calls": [{"name": …, "input": {…}}, …]}` calls these
    tools, with fresh ids; no calls ends the turn. `{"message": {…}}` is a recorded assistant
    message, answered as it stands. An unpaired tool call or result is a 400, as with the real ones.
    """

    name = "model"

    def routes(self) -> Iterable[Route]:
        """The endpoint's one address."""
        yield Route(self.name, "POST", "/model/chat", self._chat, writes=True)

    def _chat(self, request: Request) -> Answer:
        messages, script = request.body.get("messages"), request.body.get("script") or {}
        if not isinstance(messages, list) or not messages:
            raise BadField("messages", "a list with at least one message", messages)
        calls = script.get("calls", []) if isinstance(script, dict) else None
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise BadField("script", "an object whose calls are a list of objects", script)
        wrong = complaint(messages)
        if wrong is not None:
            self._books.count("model", "refused")
            return refusal(400, "invalid_request", wrong)
        number = self._books.count("model_answers", "chat")
        dice = Random(f"{self._books.settings.seed}/model/{number}")
        content = self._content(script, number, dice)
        usage = {
            "input_tokens": _tokens(messages),
            "output_tokens": _tokens(script.get("message", content)),
        }
        self._books.count("model", "calls")
        for name, tokens in usage.items():
            self._books.count("model", name, tokens)
        self._books.count("model_turns", str(request.body.get("turn", "none")))
        said: Json = {
            "id": f"msg_{_id(dice)}",
            "model": self._books.settings.model_snapshot,
            "role": "assistant",
            "content": content,
            "stop_reason": "tool_use" if script.get("calls") else "end_turn",
            "usage": usage,
            "price": {
                "input_usd_micros_per_1k": INPUT_USD_MICROS_PER_1K,
                "output_usd_micros_per_1k": OUTPUT_USD_MICROS_PER_1K,
            },
        }
        if "message" in script:
            said["message"] = script["message"]
        return Answer(200, said)

    def _content(self, script: Json, number: int, dice: Random) -> list[Json]:
        if "message" in script:
            return []
        calls = [
            {
                "type": "tool_use",
                "id": f"toolu_{_id(dice)}",
                "name": call.get("name"),
                "input": call.get("input", {}),
            }
            for call in script.get("calls", [])
        ]
        return [{"type": "text", "text": wording(number)}, *calls]


def wording(number: int) -> str:
    """What call `number` (from 1) says: eighty calls in a row all differ, and no text comes twice.

    The step of 33 through the eighty variants has no factor in common with them, so neighbours
    differ early and each variant comes once a round.
    """
    lap, place = divmod(number - 1, VARIANT_COUNT)
    variant = place * 33 % VARIANT_COUNT
    view, reason = _VIEWS[variant % len(_VIEWS)], _REASONS[variant // len(_VIEWS)]
    again = "" if lap == 0 else f" (Looked at {lap + 1} times over.)"
    return f"{OPENING} {view}, {reason}.{again}"


def _tokens(value: Any) -> int:
    """Words and punctuation-free pieces of the JSON text: near enough to count with."""
    return len((value if isinstance(value, str) else json.dumps(value)).split())


def _id(dice: Random) -> str:
    return "".join(dice.choices(string.ascii_letters + string.digits, k=22))
