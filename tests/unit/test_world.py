"""The world's promises, vendor by vendor, on a clock that the test sets."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from world import Answer, Fault, FaultMode, Json, Lost, Request, Settings, World
from world.calls import CardDeclined, LockHeld, Unavailable, WorldError
from world.ledger import LedgerUnusable
from world.local import LocalClient
from world.vendors.model import OPENING, VARIANT_COUNT

HOUR_MS = 3_600_000
REFUND = {"order_id": "48211", "pence": 4160}


class Clock:
    """Time that stands still until the test moves it."""

    def __init__(self) -> None:
        self.ms = 1_780_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def world(clock: Clock) -> Iterator[World]:
    with World(now_ms=clock) as opened:
        yield opened


def say(
    world: World, method: str, target: str, body: Json | None = None, key: str | None = None
) -> Answer:
    reply = world.call(method, target, body, key=key)
    assert reply.answer is not None
    return reply.answer


def refund(world: World, key: str | None = None, **more: Any) -> Answer:
    return say(world, "POST", "/payments/refunds", {**REFUND, **more}, key)


def count(world: World, kind: str) -> int:
    value: int = world.counters()["effects"].get(kind, 0)
    return value


# Keys


@pytest.mark.parametrize(
    ("kind", "target", "body", "lookup"),
    [
        ("refund", "/payments/refunds", REFUND, "/payments/by-key/k"),
        ("charge", "/payments/charges", {"reference": "PO-1", "cents": 5}, "/payments/by-key/k"),
        (
            "shipment",
            "/carrier/shipments",
            {"reference": "PO-1", "pallets": 1},
            "/carrier/by-key/k",
        ),
        ("erp_reference", "/erp/references", {}, "/erp/by-key/k"),
        ("erp_lock", "/erp/locks", {"resource": "budget"}, "/erp/by-key/k"),
        ("ticket", "/tickets", {"subject": "cracked base"}, "/tickets/by-key/k"),
        ("desk:cancel", "/desk/cancel", {"arguments": {}, "result": "ok"}, "/desk/by-key/k"),
    ],
)
def test_a_repeat_under_a_key_gets_the_first_answer_and_the_lookup_has_it(
    world: World, kind: str, target: str, body: Json, lookup: str
) -> None:
    assert say(world, "GET", lookup).status == 404
    first = say(world, "POST", target, body, "k")
    assert first.status == 201
    assert say(world, "POST", target, body, "k") == first
    found = say(world, "GET", lookup).body
    assert (found["state"], found["status"], found["answer"]) == ("succeeded", 201, first.body)
    assert count(world, kind) == 1
    assert world.counters()["duplicates"] == {kind: 1}
    assert world.counters()["calls_by_key"] == {"k": 2}
    assert [e.key for e in world.effects(kind)] == ["k"]
    say(world, "POST", target, body | {"resource": "other"}, "another key")
    assert count(world, kind) == 2


def test_without_a_key_every_call_acts(world: World) -> None:
    assert refund(world).body["id"] != refund(world).body["id"]
    assert count(world, "refund") == 2


def test_another_body_or_route_under_a_used_key_is_refused(world: World) -> None:
    refund(world, "k")
    assert refund(world, "k", pence=4610).status == 422
    assert (
        say(world, "POST", "/payments/charges", {"reference": "r", "cents": 1}, "k").status == 422
    )
    assert world.counters()["effects"] == {"refund": 1}


def test_a_payment_key_deduplicates_for_its_life_time_and_is_found_after_it(
    world: World, clock: Clock
) -> None:
    first = refund(world, "k")
    clock.ms += 24 * HOUR_MS - 1
    assert refund(world, "k") == first
    clock.ms += 1
    assert say(world, "GET", "/payments/by-key/k").body["answer"] == first.body
    assert refund(world, "k").body["id"] != first.body["id"]
    assert count(world, "refund") == 2


def test_the_life_time_of_payment_keys_can_be_set(world: World, clock: Clock) -> None:
    world.change(payment_key_ttl_ms=1000)
    refund(world, "k")
    clock.ms += 1000
    refund(world, "k")
    assert count(world, "refund") == 2


def test_a_decline_is_replayed_under_its_key_though_the_card_would_be_accepted_by_now(
    world: World,
) -> None:
    say(world, "PUT", "/payments/cards/card-9", {"declines": 1})
    declined = refund(world, "k1", card="card-9")
    assert (declined.status, declined.body["error"]) == (402, "card_declined")
    assert refund(world, "k1", card="card-9") == declined
    found = say(world, "GET", "/payments/by-key/k1").body
    assert (found["state"], found["answer"]) == ("failed", declined.body)
    assert refund(world, "k2", card="card-9").status == 201
    assert refund(world, "k1", card="card-9") == declined
    assert count(world, "refund") == 1


def test_a_concurrent_repeat_is_a_409_and_the_lookup_says_in_progress(world: World) -> None:
    first = world.begin(Request.of("POST", "/payments/refunds", REFUND, key="k"))
    assert refund(world, "k").status == 409
    assert say(world, "GET", "/payments/by-key/k").body["state"] == "in_progress"
    assert refund(world, "other key").status == 201
    done = first.run().answer
    assert done is not None
    assert done.status == 201
    assert refund(world, "k") == done
    first.close()
    assert count(world, "refund") == 2


def test_a_malformed_request_stores_nothing_under_its_key(world: World) -> None:
    wrong = refund(world, "k", pence=41.6)
    assert (wrong.status, wrong.body["field"]) == (400, "pence")
    assert refund(world, "k").status == 201


# The other vendors


def test_the_carrier_counts_pallets(world: World) -> None:
    body = {"reference": "PO-2026-0041", "pallets": 3}
    say(world, "POST", "/carrier/shipments", body, "k")
    say(world, "POST", "/carrier/shipments", body, "k")
    assert world.counters()["effects"] == {"shipment": 1, "pallet": 3}


def test_the_credit_bureau_repeats_its_decision_and_its_lookup_lags(
    world: World, clock: Clock
) -> None:
    body = {"request_id": "q1", "buyer": "buyer-17", "cents": 1_420_000}
    first = say(world, "POST", "/credit/checks", body)
    assert first.body["approved"] is True
    assert say(world, "POST", "/credit/checks", body) == first
    assert say(world, "POST", "/credit/checks", body | {"cents": 1}).status == 422
    assert count(world, "credit_check") == 1
    clock.ms += 2_999
    assert say(world, "GET", "/credit/checks/q1").status == 404
    clock.ms += 1
    assert say(world, "GET", "/credit/checks/q1").body["answer"] == first.body


def test_erp_references_are_minted_in_sequence_and_anew_at_each_call(world: World) -> None:
    minted = [say(world, "POST", "/erp/references").body["reference"] for _ in range(3)]
    assert minted == ["PO-2026-0041", "PO-2026-0042", "PO-2026-0043"]


def test_an_erp_lock_is_held_until_released_or_expired(world: World, clock: Clock) -> None:
    lock = {"resource": "budget-7", "ttl_ms": 500}
    first = say(world, "POST", "/erp/locks", lock, "k1").body
    assert say(world, "POST", "/erp/locks", lock, "k2").status == 423
    assert say(world, "DELETE", f"/erp/locks/{first['handle']}").body["released"] is True
    assert say(world, "DELETE", f"/erp/locks/{first['handle']}").status == 200
    assert count(world, "erp_release") == 1
    second = say(world, "POST", "/erp/locks", lock, "k2").body
    clock.ms += 500
    assert say(world, "GET", f"/erp/locks/{second['handle']}").body["valid"] is False
    # The old key gives the old handle, which is of no use: a new lock needs a new key.
    assert say(world, "POST", "/erp/locks", lock, "k2").body == second
    assert say(world, "POST", "/erp/locks", lock, "k3").body["handle"] != second["handle"]
    assert say(world, "DELETE", "/erp/locks/lock-999999").status == 404


def test_an_erp_order_is_one_for_its_reference_and_wants_a_valid_lock(
    world: World, clock: Clock
) -> None:
    order = {"reference": "PO-2026-0041", "lines": 240, "cents": 1_420_000}
    handle = say(world, "POST", "/erp/locks", {"resource": "b", "ttl_ms": 10}).body["handle"]
    clock.ms += 10
    assert say(world, "POST", "/erp/orders", order | {"lock": handle}).status == 409
    assert say(world, "GET", "/erp/orders/PO-2026-0041").status == 404
    assert say(world, "POST", "/erp/orders", order).status == 201
    assert say(world, "POST", "/erp/orders", order).status == 200
    assert say(world, "POST", "/erp/orders", order | {"cents": 1}).status == 409
    assert count(world, "erp_order") == 1


def test_the_portal_takes_a_reference_twice(world: World) -> None:
    order = {"reference": "PO-2026-0041", "lines": 240, "cents": 1_420_000}
    say(world, "POST", "/portal/orders", order, "k")
    say(world, "POST", "/portal/orders", order, "k")
    assert count(world, "portal_order") == 2
    assert say(world, "GET", "/portal/by-key/k").status == 404


def test_the_portal_search_lags_up_to_five_seconds_and_is_empty_one_time_in_twenty(
    world: World, clock: Clock
) -> None:
    order = {"reference": "PO-2026-0041", "lines": 240, "cents": 1_420_000}
    say(world, "POST", "/portal/orders", order)

    def hits() -> int:
        found = [say(world, "GET", "/portal/orders?ref=PO-2026-0041") for _ in range(400)]
        return sum(bool(answer.body["orders"]) for answer in found)

    assert hits() == 0
    clock.ms += 2_500
    half = hits()
    clock.ms += 2_500
    late = hits()
    assert 120 < half < 280
    assert 360 < late < 400
    assert say(world, "GET", "/portal/orders?ref=PO-2026-0042").body["orders"] == []


def test_the_same_seed_gives_the_same_searches_and_another_seed_others() -> None:
    def seen(seed: int) -> list[bool]:
        clock = Clock()
        world = World(settings=Settings(seed=seed), now_ms=clock)
        say(world, "POST", "/portal/orders", {"reference": "r", "lines": 1, "cents": 1})
        clock.ms += 2_500
        return [bool(say(world, "GET", "/portal/orders").body["orders"]) for _ in range(60)]

    assert seen(1) == seen(1)
    assert seen(1) != seen(2)


def test_an_email_has_no_key_and_no_lookup(world: World) -> None:
    message = {"to": "c-1709@example.com", "subject": "Refund", "body": "Approved."}
    with_key = world.begin(Request.of("POST", "/email/messages", message, key="k"))
    assert say(world, "POST", "/email/messages", message, "k") == Answer(202, {"accepted": True})
    with_key.run()
    assert count(world, "email") == 2
    assert say(world, "GET", "/email/by-key/k").status == 404
    assert say(world, "GET", "/email/messages").status == 404


def test_a_note_is_an_effect_only_where_it_changes_something(world: World) -> None:
    for text in ("checked", "checked", "checked twice"):
        assert say(world, "PUT", "/notes/48211/agent", {"text": text}).status == 200
    assert count(world, "note") == 2
    assert say(world, "GET", "/notes/48211/agent").body["text"] == "checked twice"


def test_the_shop_has_the_order_and_240_prices_that_add_up(world: World) -> None:
    assert say(world, "GET", "/orders/48211").body["total_pence"] == 4160
    asked = say(world, "GET", "/purchase-requests/R-1").body["lines"]
    prices = [say(world, "GET", f"/prices/{line['item']}").body["cents"] for line in asked]
    assert (len(prices), sum(prices)) == (240, 1_420_000)
    say(world, "PUT", "/prices/item-001", {"cents": 6000})
    assert say(world, "GET", "/prices/item-001").body["cents"] == 6000
    assert say(world, "GET", "/prices/item-241").status == 404
    for path in ("/stock/KETTLE-17", "/policies/refunds", "/fraud/48211", "/suppliers/sup-881"):
        assert say(world, "GET", path).status == 200
    assert world.counters()["effects"] == {}


# Faults


def faulty(world: World, mode: FaultMode, **more: Any) -> Any:
    world.add_fault(mode, route="POST /payments/refunds", **more)
    return world.call("POST", "/payments/refunds", REFUND, key="k")


@pytest.mark.parametrize(
    ("mode", "acted", "lost", "status"),
    [
        (FaultMode.RESET_AFTER, True, Lost.RESET, None),
        (FaultMode.TIMEOUT_AFTER, True, None, 504),
        (FaultMode.SILENT_AFTER, True, Lost.SILENT, None),
        (FaultMode.SLOW_AFTER, True, None, 201),
        (FaultMode.SLOW, True, None, 201),
        (FaultMode.LATE, False, Lost.SILENT, None),
        (FaultMode.FAIL_BEFORE, False, None, 503),
        (FaultMode.SILENT_BEFORE, False, Lost.SILENT, None),
        (FaultMode.RESET_BEFORE, False, Lost.RESET, None),
    ],
)
def test_each_fault_acts_or_not_and_hides_it_or_not(
    world: World, mode: FaultMode, acted: bool, lost: Lost | None, status: int | None
) -> None:
    reply = faulty(world, mode, delay_ms=50)
    assert reply.lost == lost
    assert (reply.answer.status if reply.answer else None) == status
    assert count(world, "refund") == int(acted)
    assert say(world, "GET", "/payments/by-key/k").status == (200 if acted else 404)
    # The fault is used up, and the key tells a repeat what happened.
    assert refund(world, "k").status == 201
    assert count(world, "refund") == 1


def test_every_mode_has_a_case_above() -> None:
    assert len(FaultMode) == 9


def test_a_late_call_acts_when_its_time_has_come_and_not_before(world: World, clock: Clock) -> None:
    began_ms = clock.ms
    faulty(world, FaultMode.LATE, delay_ms=2_000)
    clock.ms += 1_999
    assert say(world, "GET", "/payments/by-key/k").status == 404
    clock.ms += 10_000
    assert say(world, "GET", "/payments/by-key/k").body["at_ms"] == began_ms + 2_000
    assert [e.at_ms for e in world.effects("refund")] == [began_ms + 2_000]


def test_a_late_call_and_its_repeat_are_one_effect_under_the_key(
    world: World, clock: Clock
) -> None:
    faulty(world, FaultMode.LATE, delay_ms=2_000)
    refund(world, "k")
    clock.ms += 2_000
    assert count(world, "refund") == 1


def test_faults_are_counted_down_after_the_calls_they_spare(world: World) -> None:
    world.add_fault("503_before", vendor="tickets", times=2, after=1)
    answers = [say(world, "POST", "/tickets", {"subject": "s"}).status for _ in range(5)]
    assert answers == [201, 503, 503, 201, 201]
    world.add_fault("503_before", vendor="tickets", times=None)
    assert [say(world, "POST", "/tickets", {"subject": "s"}).status for _ in range(3)] == [503] * 3
    world.faults.clear()
    assert say(world, "POST", "/tickets", {"subject": "s"}).status == 201


def test_a_fault_hook_sees_the_request_and_goes_first(clock: Clock) -> None:
    def on_the_order(request: Request) -> Fault | None:
        wanted = request.body.get("order_id") == "48211"
        return Fault(FaultMode.RESET_AFTER) if wanted else None

    world = World(now_ms=clock, fault_hook=on_the_order)
    assert world.call("POST", "/payments/refunds", REFUND).lost is Lost.RESET
    assert refund(world, order_id="48212").status == 201


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "explode", "vendor": "email"},
        {"mode": "slow"},
        {"mode": "slow", "vendor": "email", "route": "/email/messages"},
        {"mode": "slow", "vendor": "email", "times": 0},
        {"mode": "slow", "vendor": "email", "delay_ms": "5"},
        {"mode": "slow", "vendor": "nobody"},
        {"mode": "slow", "vendor": "email", "delay": 5},
    ],
)
def test_a_fault_that_could_never_strike_is_refused(world: World, wrong: Json) -> None:
    with pytest.raises(ValueError, match=r"."):
        world.plan(wrong)
    assert world.faults.pending() == ()


# The model


def chat(world: World, messages: list[Any], **more: Any) -> Answer:
    return say(world, "POST", "/model/chat", {"messages": messages, **more})


ASK = [{"role": "user", "content": "The kettle from order 48211 is cracked."}]
LOOK = {"calls": [{"name": "read_order", "input": {"order_id": "48211"}}]}


def test_the_model_says_the_same_thing_in_eighty_ways_that_begin_alike(world: World) -> None:
    texts = [chat(world, ASK).body["content"][0]["text"] for _ in range(2 * VARIANT_COUNT)]
    assert VARIANT_COUNT == 80
    assert len(set(texts)) == len(texts)
    words = [text.split() for text in texts]
    assert len({tuple(w[:100]) for w in words}) == 1
    assert len({tuple(w[100:130]) for w in words}) >= 80
    assert all(text.startswith(OPENING) for text in texts)


def test_a_script_leads_the_agent_while_ids_are_fresh(world: World) -> None:
    first, second = (chat(world, ASK, turn=3, script=LOOK).body for _ in range(2))
    calls = [answer["content"][1] for answer in (first, second)]
    assert [(c["name"], c["input"]) for c in calls] == [("read_order", {"order_id": "48211"})] * 2
    assert calls[0]["id"] != calls[1]["id"]
    assert (first["stop_reason"], first["id"] != second["id"]) == ("tool_use", True)
    assert chat(world, ASK).body["stop_reason"] == "end_turn"
    world.reset()
    again = chat(world, ASK, turn=3, script=LOOK).body
    assert again["content"][1]["id"] not in {c["id"] for c in calls}


def test_the_model_names_its_snapshot_and_counts_tokens(world: World) -> None:
    first = chat(world, ASK, turn=1).body
    world.change(model_snapshot="harbour-3-20261101")
    second = chat(world, ASK, turn=1).body
    assert [first["model"], second["model"]] == ["harbour-2-20260514", "harbour-3-20261101"]
    model = world.counters()["model"]
    assert (model["calls"], model["calls_by_turn"]) == (2, {"1": 2})
    for name in ("input_tokens", "output_tokens"):
        assert model[name] == first["usage"][name] + second["usage"][name] > 0
    assert first["price"]["input_usd_micros_per_1k"] > 0


def test_a_recorded_message_is_answered_as_it_stands(world: World) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]}
    assert chat(world, ASK, script={"message": message}).body["message"] == message


def blocks(*ids: str) -> Json:
    uses = [{"type": "tool_use", "id": i, "name": "t", "input": {}} for i in ids]
    return {"role": "assistant", "content": [{"type": "text", "text": "…"}, *uses]}


def results(*ids: str) -> Json:
    found = [{"type": "tool_result", "tool_use_id": i, "content": "ok"} for i in ids]
    return {"role": "user", "content": found}


def calls(*ids: str) -> Json:
    listed = [{"id": i, "type": "function", "function": {"name": "t"}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": listed}


def tool(call_id: str) -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": "ok"}


@pytest.mark.parametrize(
    "messages",
    [
        [*ASK, blocks("a"), results("a")],
        [*ASK, blocks("a", "b", "c"), results("c", "a", "b"), blocks(), *ASK],
        [*ASK, calls("a", "b"), tool("a"), tool("b"), *ASK],
        [*ASK, calls("a"), tool("a"), calls("a"), tool("a")],
    ],
)
def test_paired_tool_calls_are_accepted(world: World, messages: list[Json]) -> None:
    assert chat(world, messages).status == 200


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([*ASK, results("a")], "result a has no tool call"),
        ([*ASK, blocks("a"), results("b")], "call a has no result"),
        ([*ASK, blocks("a")], "call a has no result"),
        ([*ASK, blocks("a", "b"), results("a")], "call b has no result"),
        ([*ASK, blocks("a"), *ASK, results("a")], "call a has no result"),
        ([*ASK, blocks("a"), results("a", "a")], "call a has 2 results"),
        ([*ASK, blocks("a"), results("a"), results("a")], "result a has no tool call"),
        ([*ASK, blocks("a"), results("a", "x")], "result x has no tool call"),
        ([*ASK, calls("a", "b"), tool("a"), *ASK, tool("b")], "call b has no result"),
        ([*ASK, calls("a"), tool("a"), tool("z")], "result z has no tool call"),
        ([*ASK, tool("a")], "result a has no tool call"),
        ([*ASK, "hello"], "not an object"),
    ],
)
def test_an_unpaired_tool_call_or_result_is_a_400_that_names_it(
    world: World, messages: list[Any], words: str
) -> None:
    answer = chat(world, messages)
    assert answer.status == 400
    assert words in answer.body["message"]
    assert world.counters()["model"]["calls"] == 0


JSON = st.recursive(
    st.none() | st.integers() | st.sampled_from(["assistant", "user", "tool", "tool_use", "id"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "tool_calls", "id", "type", "tool_use_id", "calls"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@settings(deadline=None)
@given(JSON, JSON)
def test_the_model_answers_any_json_with_200_or_400(messages: Any, script: Any) -> None:
    body = {"messages": messages, "script": script}
    assert say(World(), "POST", "/model/chat", body).status in (200, 400)


# The ledger and the in-process client


def test_a_world_opened_again_remembers_what_it_answered(tmp_path: Path, clock: Clock) -> None:
    with World(now_ms=clock, ledger=tmp_path / "ledger.db") as world:
        first = refund(world, "k")
        text = chat(world, ASK).body
        counters, effects = world.counters(), world.effects()
        with pytest.raises(LedgerUnusable, match="locked"):
            World(now_ms=clock, ledger=tmp_path / "ledger.db")
    with World(now_ms=clock, ledger=tmp_path / "ledger.db") as world:
        assert (world.counters(), world.effects()) == (counters, effects)
        assert refund(world, "k") == first
        assert chat(world, ASK).body["content"] != text["content"]
        world.reset()
        assert world.counters()["effects"] == {}
    with World(now_ms=clock, ledger=tmp_path / "ledger.db") as world:
        assert world.effects() == ()
        assert say(world, "GET", "/payments/by-key/k").status == 404


def test_a_file_that_is_no_ledger_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("this is not a database, it is a text of some length" * 9)
    with pytest.raises(LedgerUnusable, match="not a database"):
        World(ledger=tmp_path / "notes.txt")


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(FaultMode)), max_size=12))
def test_whatever_goes_wrong_a_keyed_refund_happens_at_most_once_a_key(
    calls: list[tuple[str, FaultMode]],
) -> None:
    clock = Clock()
    world = World(now_ms=clock)
    for key, mode in calls:
        world.add_fault(mode, vendor="payments", delay_ms=30)
        world.call("POST", "/payments/refunds", REFUND, key=key)
        clock.ms += 20
    clock.ms += 30
    keys = [effect.key for effect in world.effects("refund")]
    assert len(keys) == len(set(keys)) == count(world, "refund")
    for key in {key for key, _ in calls}:
        assert (say(world, "GET", f"/payments/by-key/{key}").status == 200) == (key in keys)


def test_answers_share_nothing_with_the_ledger(world: World) -> None:
    refund(world, "k").body["id"] = "changed by the caller"
    assert refund(world, "k").body["id"] == "refund-000001"


def test_the_in_process_client_raises_what_a_client_over_http_would(world: World) -> None:
    async def act() -> None:
        client = LocalClient(world)
        with pytest.raises(CardDeclined) as declined:
            await client.refund("48211", 4160, key="k1", card="card-declined")
        again = type(declined.value)(*declined.value.args)
        assert (again.status, again.body) == (402, declined.value.body)
        assert (await client.payment_by_key("k1")).state == "failed"
        await client.acquire_lock("budget")
        with pytest.raises(LockHeld):
            await client.acquire_lock("budget")
        world.add_fault("503_before", vendor="tickets")
        with pytest.raises(Unavailable):
            await client.create_ticket("s", key="k")
        world.add_fault("504_after", vendor="tickets")
        with pytest.raises(WorldError, match="504") as timeout:
            await client.create_ticket("s", key="k")
        assert type(timeout.value) is WorldError
        assert (await client.ticket_by_key("k")).state == "succeeded"
        world.add_fault("reset_after", vendor="email")
        with pytest.raises(ConnectionResetError):
            await client.send_email("a@example.com", "s", "b")
        assert (await client.payment_by_key("nobody's")).state == "absent"
        assert (await client.erp_order("PO-1")).state == "absent"

    asyncio.run(act())


def test_a_silent_vendor_holds_the_key_until_the_caller_gives_up(world: World) -> None:
    async def act() -> None:
        client = LocalClient(world)
        world.add_fault("silent_before", vendor="payments")
        waiting = asyncio.create_task(client.refund("48211", 4160, key="k"))
        await asyncio.sleep(0)
        assert (await client.payment_by_key("k")).state == "in_progress"
        with pytest.raises(WorldError, match="key_in_progress"):
            await client.refund("48211", 4160, key="k")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await client.refund("48211", 4160, key="k")

    asyncio.run(act())
    assert count(world, "refund") == 1


def test_a_vendor_with_a_queue_takes_a_repeat_at_once_while_the_first_caller_waits(
    world: World, clock: Clock
) -> None:
    async def act() -> None:
        client = LocalClient(world)
        world.add_fault("late", vendor="payments", delay_ms=2_000)
        waiting = asyncio.create_task(client.refund("48211", 4160, key="k"))
        await asyncio.sleep(0)
        await client.refund("48211", 4160, key="k")
        waiting.cancel()

    asyncio.run(act())
    clock.ms += 2_000
    assert count(world, "refund") == 1


def test_a_slow_vendor_sleeps_on_the_clock_it_is_given(world: World, clock: Clock) -> None:
    async def sleep(seconds: float) -> None:
        clock.ms += round(seconds * 1000)

    async def act() -> None:
        began_ms = clock.ms
        client = LocalClient(world, sleep=sleep)
        for mode in ("slow", "slow_after"):
            world.add_fault(mode, vendor="payments", delay_ms=700)
            await client.refund("48211", 4160, key=mode)
        acted = [effect.at_ms - began_ms for effect in world.effects("refund")]
        assert (acted, clock.ms - began_ms) == ([700, 700], 1400)

    asyncio.run(act())


def test_settings_that_do_not_exist_or_make_no_sense_are_refused(world: World) -> None:
    for wrong in ({"credit_lag": 5}, {"credit_lag_ms": "5"}, {"credit_lag_ms": -1}):
        with pytest.raises(ValueError, match="credit_lag"):
            world.change(**wrong)
    assert world.settings == Settings()
