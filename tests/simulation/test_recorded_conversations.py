"""Recorded conversations, crashed at every tool call between act and record, in virtual time.

The hundred recordings are not part of the project: `REFOLD_OUTSIDE_DATA` names their folder,
by default the folder `shared/data` beside the project. Where it is absent those tests say so.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recorded_agent.app import TOOLS, app
from recorded_agent.conversation import Conversation, Message, read_conversations
from refold_schemas.events import Event, StepCompleted, StepFailed, StepIntended
from support.stage import BeforeRecordOf, Played, Stage
from world import World

pytestmark = pytest.mark.untraced

ROOT = Path(__file__).parents[2]
OWN = ROOT / "examples" / "recorded_agent" / "conversations.jsonl"
OUTSIDE = ROOT / Path(os.environ.get("REFOLD_OUTSIDE_DATA", "../shared/data"))
AIRLINE = OUTSIDE / "tau-bench" / "airline.jsonl"
PARTS = 4
CALLS_BETWEEN = 1 if "REFOLD_SEEDS" in os.environ else 13
"""The long form (`make test-all`) dies alone at each of the 572 calls, the short one at 44."""

needs_recordings = pytest.mark.skipif(
    not AIRLINE.is_file(),
    reason=f"{AIRLINE} is not here: the 100 recorded conversations were NOT played. "
    "Set REFOLD_OUTSIDE_DATA to the folder that holds tau-bench/airline.jsonl",
)


def is_say(slot: str) -> bool:
    return slot.rpartition("/")[2].startswith("say#")


class BeforeEachRecord:
    """Dies in front of the record of each tool call's outcome, once a call."""

    def __init__(self) -> None:
        self.struck: list[str] = []

    def __call__(self, event: Event) -> bool:
        """Whether this outcome is one that nobody has died for."""
        if not isinstance(event, StepCompleted) or is_say(event.slot):
            return False
        if event.slot in self.struck:
            return False
        self.struck.append(event.slot)
        return True


class Operator:
    """A person who reads the desk's ledger: what it shows beyond what was settled did happen."""

    def __init__(self) -> None:
        self.settled: dict[str, int] = {}

    def __call__(self, world: World, slot: str) -> tuple[bool, object]:
        """Whether the call of `slot` happened, and the result it had."""
        step = slot.rpartition("/")[2].partition("#")[0]
        shown = [effect for effect in world.effects() if _step_of(effect.kind) == step]
        number = self.settled.get(step, 0)
        if len(shown) <= number:
            return False, None
        self.settled[step] = number + 1
        return True, shown[number].body["result"]


def _step_of(kind: str) -> str:
    """The step that does what the desk's ledger calls `desk:ACTION`."""
    action = kind.removeprefix("desk:")
    return action if action in TOOLS else "other_tool"


def play(conversation: Conversation, deadly: Callable[[Event], bool] | None = None) -> Any:
    """Play to the end; returns the stage and what came of the run."""
    stage = Stage(app, deadly=deadly)
    played = stage.play("recorded-agent", conversation, run_id=conversation.id, person=Operator())
    assert played.error == ""
    return stage, played


def as_bytes(played: Played) -> bytes:
    """The message list as the next model call would be sent it."""
    return json.dumps(played.result.messages, ensure_ascii=False).encode()


def check_pairs(messages: list[Message]) -> int:
    """Each call has exactly one result, directly behind it and in its order; how many there are."""
    count = place = 0
    while place < len(messages):
        calls = messages[place].get("tool_calls") or []
        assert messages[place]["role"] != "tool", f"messages[{place}] answers nobody"
        results = messages[place + 1 : place + 1 + len(calls)]
        assert [r["role"] for r in results] == ["tool"] * len(calls)
        assert [r["tool_call_id"] for r in results] == [c["id"] for c in calls]
        assert [r["name"] for r in results] == [c["function"]["name"] for c in calls]
        count += len(calls)
        place += 1 + len(calls)
    return count


def check_conversation(conversation: Conversation) -> int:
    """Play it whole and crashed at every call; everything must be equal. Returns the crashes."""
    calm_stage, calm = play(conversation)
    deadly = BeforeEachRecord()
    stage, crashed = play(conversation, deadly)
    call_count = check_pairs(crashed.result.messages)
    assert len(deadly.struck) == call_count == crashed.result.tool_calls
    assert as_bytes(crashed) == as_bytes(calm)
    assert as_bytes(calm) == json.dumps(conversation.messages, ensure_ascii=False).encode()
    assert stage.effects() == calm_stage.effects()
    # The model refuses a list in which a call has no result, or another one's.
    assert stage.world.counters()["model"]["calls"] >= calm_stage.world.counters()["model"]["calls"]
    return call_count


@needs_recordings
@pytest.mark.parametrize("part", range(PARTS))
def test_a_hundred_recorded_conversations_survive_a_crash_at_every_call(part: int) -> None:
    conversations = read_conversations(AIRLINE)
    assert len(conversations) == 100
    mine = conversations[part::PARTS]
    crashes = sum(check_conversation(one) for one in mine)
    assert crashes == sum(
        len(message.get("tool_calls") or []) for one in mine for message in one.messages
    )


@needs_recordings
def test_a_single_crash_at_a_call_leaves_no_trace() -> None:
    """One death a run. After two in a row an owner is more careful, so this is another road."""
    place = crashes = 0
    for conversation in read_conversations(AIRLINE):
        calm_stage, calm = play(conversation)
        for record in calm.history:
            if not isinstance(record.event, StepCompleted) or is_say(record.event.slot):
                continue
            place += 1
            if place % CALLS_BETWEEN:
                continue
            deadly = BeforeRecordOf(record.event.slot)
            stage, crashed = play(conversation, deadly)
            assert (deadly.struck, stage.lives) == (True, 2)
            assert as_bytes(crashed) == as_bytes(calm)
            assert stage.effects() == calm_stage.effects()
            crashes += 1
    assert (place, crashes) == (572, 572 // CALLS_BETWEEN)


@needs_recordings
def test_the_recordings_repeat_ids_and_have_every_policy() -> None:
    repeating = 0
    policies = set()
    for one in read_conversations(AIRLINE):
        calls = [call for message in one.messages for call in message.get("tool_calls") or []]
        repeating += len({call["id"] for call in calls}) < len(calls)
        policies |= {app.steps[call["function"]["name"]].policy.value for call in calls}
    assert repeating == 24
    assert policies == {"re_executable", "keyed", "resolvable", "escalate"}


@pytest.mark.parametrize("conversation", read_conversations(OWN), ids=lambda one: one.id)
def test_conversations_with_several_calls_in_one_message(conversation: Conversation) -> None:
    most = max(len(message.get("tool_calls") or []) for message in conversation.messages)
    assert most == 3
    assert check_conversation(conversation) > most


ORDER = "48212"


def call(call_id: str, name: str, **arguments: object) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def answered(*calls: Message) -> list[Message]:
    """An assistant message with these calls, and their results."""
    results = [
        {
            "role": "tool",
            "tool_call_id": one["id"],
            "name": one["function"]["name"],
            "content": f"done {number}",
        }
        for number, one in enumerate(calls)
    ]
    return [{"role": "assistant", "content": None, "tool_calls": list(calls)}, *results]


def conversation_of(*messages: Message, name: str = "own") -> Conversation:
    first = {"role": "user", "content": "Please."}
    last = {"role": "assistant", "content": "Done."}
    return Conversation(id=name, messages=[first, *messages, last])


class Once:
    """Dies once, in front of the first batch with an event that `wanted` picks."""

    def __init__(self, wanted: Callable[[Event], bool]) -> None:
        self.wanted = wanted
        self.struck: list[Event] = []

    def __call__(self, event: Event) -> bool:
        """Whether this is the moment."""
        if self.struck or not self.wanted(event):
            return False
        self.struck.append(event)
        return True


def voucher(call_id: str) -> Message:
    return call(call_id, "issue_voucher", customer="C-2044", pounds=10)


def test_equal_calls_are_one_intent_each_f03() -> None:
    """Two equal calls in one message and the same call a turn later: three vouchers, three keys."""
    conversation = conversation_of(
        *answered(
            voucher("call_1"), call("call_2", "get_order_details", id=ORDER), voucher("call_3")
        ),
        {"role": "user", "content": "And one for the third parcel."},
        *answered(voucher("call_1")),
    )
    check_conversation(conversation)
    vouchers = ("gather#1[0]/issue_voucher#1", "gather#1[2]/issue_voucher#1", "issue_voucher#1")
    for slot in vouchers:
        deadly = Once(lambda event, slot=slot: getattr(event, "slot", "") == slot)  # type: ignore[misc]
        after_act = Once(
            lambda event, slot=slot: isinstance(event, StepCompleted) and event.slot == slot  # type: ignore[misc]
        )
        for moment in (deadly, after_act):
            stage, played = play(conversation, moment)
            assert moment.struck
            assert stage.lives == 2
            effects = stage.world.effects("desk:issue_voucher")
            assert len({effect.key for effect in effects}) == len(effects) == 3
            # A repeat of one call goes out under that call's key, and under no other.
            keys: dict[str, set[str]] = {}
            for intent in played.events(StepIntended):
                if intent.step == "issue_voucher":
                    keys.setdefault(intent.slot, set()).add(intent.effect_key)
            assert sorted(keys) == sorted(vouchers)
            assert all(len(of_one) == 1 for of_one in keys.values())


@pytest.mark.parametrize("results_before", [0, 1, 2])
def test_a_crash_among_three_calls_leaves_no_call_without_its_result_f04(
    results_before: int,
) -> None:
    """Killed before any of three tools has started, and after one and two of three results."""
    conversation = conversation_of(
        *answered(
            call("call_a", "get_order_details", id=ORDER),
            call("call_b", "cancel_reservation", id="R-1"),
            call("call_c", "send_certificate", pounds=25),
        ),
        {"role": "user", "content": "Thank you. What did you do?"},
    )
    outcomes: set[str] = set()

    def is_next(event: Event) -> bool:
        if results_before == 0:
            return isinstance(event, StepIntended)
        if not isinstance(event, StepCompleted) or is_say(event.slot):
            return False
        outcomes.add(event.slot)
        return len(outcomes) > results_before

    deadly = Once(is_next)
    stage, played = play(conversation, deadly)
    assert deadly.struck
    assert stage.lives == 2
    assert check_pairs(played.result.messages) == 3
    assert played.result.messages == conversation.messages
    # Every list that the model was sent was whole: it would have answered 400, and that would show.
    assert not played.events(StepFailed)
    assert stage.effects() == {"desk:cancel_reservation": 1, "desk:send_certificate": 1}


def test_fifty_turns_of_three_tools_survive_a_clean_stop_f05() -> None:
    """Ids of calls equal to each other, to ids of messages and to slots: nothing gets mixed up."""
    turns = [
        answered(
            call("say#1", "get_order_details", turn=turn),
            call("msg_1", "issue_voucher", turn=turn),
            call(f"call_{turn}", "get_order_details", turn=turn),
        )
        for turn in range(50)
    ]
    conversation = conversation_of(*(message for turn in turns for message in turn))
    stop_at = {f"gather#{number}[1]/issue_voucher#1" for number in (10, 25, 40)}
    stage = Stage(
        app, stops=lambda event: isinstance(event, StepCompleted) and event.slot in stop_at
    )
    played = stage.play("recorded-agent", conversation)
    assert played.error == ""
    assert stage.lives == 4
    assert played.result.messages == conversation.messages
    assert check_pairs(played.result.messages) == 150
    assert stage.effects() == {"desk:issue_voucher": 50}
    assert stage.hand_overs == 3
