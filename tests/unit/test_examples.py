"""The example applications on the memory log against the example world, in virtual time."""

import asyncio
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from purchase_order.app import app as purchasing
from purchase_order.values import Ordered, OrderRequest
from recorded_agent.app import app as recorded
from recorded_agent.conversation import Conversation, FileUnusable, read_conversations
from refold import Effect, Found
from refold.app import App
from refold.testing.sim_loop import current_process
from refold_schemas.events import (
    PartitionClaimed,
    StepCompleted,
    StepInDoubt,
    StepIntended,
    StepResolved,
)
from refund_agent.app import app as refunds
from refund_agent.app import find_refund, issue_refund
from refund_agent.script import EMAIL_TURN, REFUND_TURN, TOOL_TURNS
from refund_agent.values import Case, Outcome
from support.stage import BeforeRecordOf, Stage
from world import Answer, Json, World
from world.access import using, vendors
from world.local import LocalClient
from world.vendors.pairing import complaint

OWN = Path(__file__).parents[2] / "examples" / "recorded_agent" / "conversations.jsonl"
CASE = Case(order_id="48211")
REFUND_EFFECTS = {"ticket": 1, "email": 1, "refund": 1, "note": 1}
PURCHASE_EFFECTS = {
    "charge": 1,
    "credit_check": 1,
    "email": 1,
    "erp_lock": 1,
    "erp_reference": 1,
    "erp_release": 1,
    "pallet": 1,
    "portal_order": 1,
    "shipment": 1,
}


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world, using(LocalClient(world)):
        yield world


def policies(app: App) -> dict[str, str]:
    return {step.name: step.policy.value for step in app.steps.values()}


# The refund agent


def test_the_refund_agent_takes_forty_turns_and_ten_calls() -> None:
    stage = Stage(refunds)
    played = stage.play("refund-agent", CASE)
    assert played.error == ""
    outcome = played.result
    assert isinstance(outcome, Outcome)
    assert (outcome.turns, outcome.tool_calls, outcome.refunded_pence) == (40, 10, 4160)
    assert stage.effects() == REFUND_EFFECTS
    assert stage.world.counters()["model"]["calls"] == 40
    (refund,) = stage.world.effects("refund")
    assert (refund.body["order_id"], refund.body["pence"]) == ("48211", 4160)
    done = [event for event in played.events(StepCompleted) if event.model is not None]
    assert len(done) == 40
    assert {use.model.snapshot for use in done} == {"harbour-2-20260514"}


def test_the_refund_agents_script_has_its_calls_where_the_story_has_them() -> None:
    before = [turn for turn in TOOL_TURNS if turn < 31]
    assert (len(TOOL_TURNS), len(before)) == (10, 8)
    writing = {"open_ticket", "send_email", "issue_refund", "put_note"}
    assert sum(TOOL_TURNS[turn]["name"] in writing for turn in before) == 4
    assert TOOL_TURNS[EMAIL_TURN]["name"] == "send_email"
    assert TOOL_TURNS[REFUND_TURN]["name"] == "issue_refund"
    assert (EMAIL_TURN, REFUND_TURN) == (14, 22)


def test_the_refund_agents_messages_are_what_a_model_takes() -> None:
    messages = Stage(refunds).play("refund-agent", CASE).result.messages
    assert [message["role"] for message in messages[:2]] == ["user", "assistant"]
    roles = [message["role"] for message in messages]
    assert all(one != other for one, other in pairwise(roles))
    for length in range(1, len(messages) + 1, 2):
        assert complaint(messages[:length]) is None
    texts = [block["text"] for m in messages[1::2] for block in m["content"] if "text" in block]
    assert len(set(texts)) == 40


def test_the_refund_agents_policies_are_declared() -> None:
    assert policies(refunds) == {
        "decide": "re_executable",
        "read_order": "re_executable",
        "read_customer": "re_executable",
        "read_policy": "re_executable",
        "check_fraud": "re_executable",
        "check_stock": "re_executable",
        "open_ticket": "keyed",
        "send_email": "escalate",
        "issue_refund": "resolvable",
        "put_note": "keyed",
    }


def test_a_refund_that_is_not_taken_in_is_told_to_the_model() -> None:
    stage = Stage(refunds)
    stage.world.add_fault("503_before", route="POST /payments/refunds", times=None)
    played = stage.play("refund-agent", CASE)
    assert played.error == ""
    assert played.result.refunded_pence == 0
    assert "refund" not in stage.effects()
    (answer,) = [
        block
        for message in played.result.messages
        if message["role"] == "user" and isinstance(message["content"], list)
        for block in message["content"]
        if block["is_error"]
    ]
    assert "issue_refund was not done" in answer["content"]


def test_a_step_can_be_called_directly(world: World) -> None:
    async def main() -> None:
        fx = Effect.for_test(key="k-1")
        refund = await issue_refund(fx, "48211", 4160)
        assert await issue_refund(fx, "48211", 4160) == refund
        assert await find_refund("k-1") == Found(refund)

    asyncio.run(main())
    assert world.counters()["effects"] == {"refund": 1}
    assert isinstance(vendors(), LocalClient)


# The purchase order


def test_the_purchase_order_has_one_reference_and_one_pallet() -> None:
    stage = Stage(purchasing)
    played = stage.play("purchase-order", OrderRequest())
    assert played.error == ""
    ordered = played.result
    assert isinstance(ordered, Ordered)
    assert (ordered.lines, ordered.cents) == (240, 1_420_000)
    assert stage.effects() == PURCHASE_EFFECTS
    references = {
        effect.body["reference"]
        for kind in ("erp_reference", "portal_order", "charge", "shipment")
        for effect in stage.world.effects(kind)
    }
    assert references == {ordered.reference}
    quotes = [event for event in played.events(StepCompleted) if "/quote#" in event.slot]
    assert [event.slot for event in quotes][:2] == ["map#1[0..24]/quote#1", "map#1[25..49]/quote#1"]
    assert len(quotes) == 10


def test_the_purchase_orders_policies_are_those_of_the_table() -> None:
    declared = policies(purchasing)
    assert list(purchasing.runs["purchase-order"].plan or ()) == [
        "parse_request",
        "resolve_supplier",
        "open_order",
        "quote",
        "credit_check",
        "submit_order",
        "charge",
        "book_shipment",
        "notify_buyer",
    ]
    assert {
        "parse_request": "re_executable",
        "quote": "re_executable",
        "credit_check": "resolvable",
        "charge": "resolvable",
        "book_shipment": "resolvable",
        "notify_buyer": "escalate",
    }.items() <= declared.items()
    assert declared["submit_order"] == "escalate"
    lock = purchasing.steps["lock_account"]
    assert lock.release is not None
    assert lock.release.name == "unlock_account"


def test_a_crash_at_item_173_reads_at_most_25_prices_again() -> None:
    reads: list[str] = []
    stage = Stage(purchasing)

    class Reading(LocalClient):
        async def send(
            self, method: str, target: str, body: Json | None = None, *, key: str | None = None
        ) -> Answer:
            if target.startswith("/prices/"):
                reads.append(target.rpartition("/")[2])
                if len(reads) == 173:
                    await current_process().kill_here()
            return await super().send(method, target, body, key=key)

    stage.client = Reading(stage.world)
    played = stage.play("purchase-order", OrderRequest())
    assert played.error == ""
    assert stage.lives == 2
    assert reads[172] == "item-173"
    assert len(reads) - 240 == 23
    assert reads[173] == "item-151"
    assert played.result.cents == 1_420_000
    assert stage.effects() == PURCHASE_EFFECTS


@pytest.mark.parametrize(
    "step", ["open_order", "credit_check", "charge", "book_shipment", "lock_account"]
)
def test_a_purchase_order_that_dies_before_a_record_does_nothing_twice(step: str) -> None:
    deadly = BeforeRecordOf(f"{step}#1")
    stage = Stage(purchasing, deadly=deadly)
    played = stage.play("purchase-order", OrderRequest())
    assert played.error == ""
    assert deadly.struck
    assert stage.effects() == PURCHASE_EFFECTS
    if purchasing.steps[step].policy.value == "resolvable":
        (resolved,) = played.events(StepResolved)
        assert (resolved.slot, resolved.verdict, resolved.evidence) == (
            f"{step}#1",
            "done",
            "lookup",
        )


@pytest.mark.parametrize(
    ("step", "kind"), [("submit_order", "portal_order"), ("notify_buyer", "email")]
)
def test_a_purchase_order_stops_and_asks_where_nobody_can_look(step: str, kind: str) -> None:
    deadly = BeforeRecordOf(f"{step}#1")

    def person(world: World, slot: str) -> tuple[bool, object]:
        assert slot == f"{step}#1"
        done = world.effects(kind)
        return bool(done), done[0].body if done else None

    stage = Stage(purchasing, deadly=deadly)
    played = stage.play("purchase-order", OrderRequest(), person=person)
    assert played.error == ""
    assert stage.resolved == [f"{step}#1"]
    assert [event.escalated for event in played.events(StepInDoubt)] == [True]
    assert stage.effects() == PURCHASE_EFFECTS


# The recorded agent


@pytest.mark.parametrize("conversation", read_conversations(OWN), ids=lambda one: one.id)
def test_a_recorded_conversation_comes_out_as_it_went_in(conversation: Conversation) -> None:
    stage = Stage(recorded)
    played = stage.play("recorded-agent", conversation, run_id=conversation.id)
    assert played.error == ""
    assert json.dumps(played.result.messages) == json.dumps(conversation.messages)
    intents = played.events(StepIntended)
    assert len({intent.effect_key for intent in intents}) == len(intents)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no conversation in it"),
        ("{", "line 1: "),
        ('{"id": "x"}', "line 1: messages: "),
        (
            '{"id": "x", "messages": [{"role": "assistant", "tool_calls": '
            '[{"id": "c", "function": {"name": "t"}}]}]}',
            "line 1: messages[0].tool_calls[0] (t) has no result at messages[1]",
        ),
        (
            '{"id": "x", "messages": [{"role": "tool", "tool_call_id": "c", "content": ""}]}',
            "messages[0]: a message of role 'tool' answers no call",
        ),
    ],
)
def test_a_file_that_cannot_be_played_is_refused_with_its_line(
    text: str, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    with pytest.raises(FileUnusable) as refused:
        read_conversations(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileUnusable, match="No such file"):
        read_conversations(tmp_path / "nothing.jsonl")


def test_every_worker_of_a_stage_claims_anew() -> None:
    """The stage itself: a death is a new claim, or the tests above would show nothing."""
    deadly = BeforeRecordOf("issue_refund#1")
    stage = Stage(refunds, deadly=deadly)
    played = stage.play("refund-agent", CASE)
    claims = stage.claims()
    assert (stage.lives, len(claims)) == (2, 2)
    assert all(isinstance(claim, PartitionClaimed) for claim in claims)
    assert [event.evidence for event in played.events(StepResolved)] == ["lookup"]
    assert stage.effects() == REFUND_EFFECTS
    (lookup,) = (n for route, n in stage.world.counters()["calls"].items() if "by-key" in route)
    assert lookup == 1
