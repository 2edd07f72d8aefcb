"""The kill matrix: the refund agent dies at each moment of each step, and meets each lost answer.

Forty model steps and ten tool calls on the memory log, in virtual time. Every case says which
moment it is about, shows from the record and the world that this moment was reached, and then that
nothing was done twice or lost, that all else came from the record, and that a person was asked
where only a person can know.
"""

import asyncio
import functools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import pytest

from refold import Absent, Found
from refold.testing.explore import EPOCH_MS, CrashExplorer, CrashPoint, Explored, Moment
from refold.testing.sim_loop import SimLoop, current_process
from refold_projections.fold.sentence import count_words
from refold_schemas.values import decode_value
from refund_agent.app import app
from refund_agent.script import TOOL_TURNS
from refund_agent.values import Case, Outcome
from world import Settings, World
from world.access import using
from world.faults import Fault, FaultMode
from world.local import LocalClient
from world.messages import Request

pytestmark = pytest.mark.untraced

RUN = "refund-agent"
CASE = Case(order_id="48211")
KINDS = {
    "open_ticket": "ticket",
    "send_email": "email",
    "issue_refund": "refund",
    "put_note": "note",
}
EFFECTS = {"ticket": 1, "email": 1, "refund": 1, "note": 1}
PATHS = {
    "decide": "/model/chat",
    "read_order": "/orders/",
    "read_customer": "/customers/",
    "read_policy": "/policies/",
    "check_fraud": "/fraud/",
    "check_stock": "/stock/",
    "open_ticket": "/tickets",
    "send_email": "/email/messages",
    "issue_refund": "/payments/refunds",
    "put_note": "/notes/",
}
LIVE = (FaultMode.TIMEOUT_AFTER, FaultMode.RESET_AFTER, FaultMode.SILENT_AFTER)
DOUBTFUL = (Moment.INTENT_STORED, Moment.BEFORE_EFFECT, Moment.AFTER_EFFECT)
WITHOUT_INTENT = (Moment.BEFORE_EFFECT, Moment.AFTER_EFFECT, Moment.AFTER_OUTCOME)


class Turn(NamedTuple):
    """A step of the run: its slot, and its place among the run's steps from 0 on."""

    slot: str
    step: str
    place: int

    @property
    def policy(self) -> str:
        return app.steps[self.step].policy.value

    @property
    def moments(self) -> tuple[Moment, ...]:
        """A step that changes nothing writes no intent, so it passes no moment of one."""
        return WITHOUT_INTENT if self.policy == "re_executable" else tuple(Moment)


def all_turns() -> tuple[Turn, ...]:
    names: list[str] = []
    for turn in range(1, CASE.turns_max + 1):
        names.append("decide")
        if turn in TOOL_TURNS:
            names.append(TOOL_TURNS[turn]["name"])
    return tuple(
        Turn(f"{name}#{names[: i + 1].count(name)}", name, i) for i, name in enumerate(names)
    )


TURNS = all_turns()
KILLS = [(turn, moment) for turn in TURNS for moment in turn.moments]


class Around:
    """The world around one pass, and the person who looks at its ledger and tells the truth."""

    def __init__(self) -> None:
        self.fault_at: tuple[int, FaultMode] | None = None
        self.answers = True
        self.asked: list[tuple[str, str]] = []
        self.requests: list[Request] = []
        self.now = EPOCH_MS
        self.world = World(settings=Settings(seed=1), now_ms=self.now_ms, fault_hook=self.fault)
        self.client = LocalClient(self.world)

    def now_ms(self) -> int:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self.now
        assert isinstance(loop, SimLoop)
        self.now = current_process().wall_ms()
        return self.now

    def fault(self, request: Request) -> Fault | None:
        """The n-th call of the run without faults is that of its n-th step."""
        self.requests.append(request)
        if self.fault_at is None or len(self.requests) - 1 != self.fault_at[0]:
            return None
        return Fault(self.fault_at[1], vendor="any")

    def person(self, slot: str, key: str) -> Found[Any] | Absent | None:
        self.asked.append((slot, key))
        if not self.answers:
            return None
        sent = self.world.effects("email")
        return Found(sent[0].body) if sent else Absent()

    def counters(self) -> dict[str, Any]:
        return dict(self.world.counters())

    def explorer(self) -> CrashExplorer:
        return CrashExplorer(app, RUN, CASE, effects=self.counters, person=self.person)


@pytest.fixture
def around() -> Iterator[Around]:
    around = Around()
    with around.world, using(around.client):
        yield around


@functools.cache
def calm() -> tuple[Explored, tuple[CrashPoint, ...]]:
    around = Around()
    with around.world, using(around.client):
        return around.explorer().calm()


def outcome_of(explored: Explored) -> Outcome:
    assert explored.status == "completed"
    assert explored.result is not None
    outcome = decode_value(explored.result)
    assert isinstance(outcome, Outcome)
    return outcome


def check_finished(explored: Explored, around: Around) -> None:
    """It came to its end, and everything was done in the world exactly once."""
    outcome = outcome_of(explored)
    assert (outcome.turns, outcome.tool_calls, outcome.refunded_pence) == (40, 10, 4160)
    assert explored.effects["effects"] == EFFECTS
    assert [entry.slot for entry in explored.after.done] == [turn.slot for turn in TURNS]
    # Every keyed call of a slot went out under the one key of its record.
    keys = {
        slot.effect_key
        for slot in explored.state.slots.values()
        if slot.step in ("issue_refund", "open_ticket")
    }
    assert set(explored.effects["calls_by_key"]) == keys
    assert not explored.after.conflicts
    (refund,) = around.world.effects("refund")
    assert (refund.body["order_id"], refund.body["pence"]) == ("48211", 4160)


def check_calls(explored: Explored, again: Iterable[str]) -> None:
    """In its second life it ran what is named in `again` and what nobody had reached before."""
    first = explored.calls_before
    fresh = [turn.slot for turn in TURNS if turn.slot not in first]
    assert explored.calls == {**first, **dict.fromkeys(fresh, 1), **dict.fromkeys(again, 2)}


def said(done: int, at_risk: Turn | None) -> str:
    """The sentence that is true at this boundary, put together by hand."""
    finished = {turn.step for turn in TURNS[:done]}
    remaining = len([name for name in app.runs[RUN].plan or () if name not in finished])
    parts = [f"{count_words(done, 'step')} complete"]
    if done == len(TURNS):
        return f"{parts[0]}, the run completed"
    if at_risk is not None:
        parts.append(f"{at_risk.step} in doubt since 00:00")
    return ", ".join([*parts, f"{count_words(remaining, 'step')} remaining"])


# ---- the matrix knows what it covers


def test_the_matrix_covers_every_moment_that_the_run_passes() -> None:
    explored, points = calm()
    assert [(t.slot, t.step) for t in TURNS if t.step == "decide"] == [
        (f"decide#{n}", "decide") for n in range(1, 41)
    ]
    assert (len(TURNS), len([t for t in TURNS if t.step != "decide"])) == (50, 10)
    assert {t.policy for t in TURNS} == {"re_executable", "keyed", "resolvable", "escalate"}
    passed = [(point.slot, point.moment) for point in points]
    assert sorted(passed) == sorted((turn.slot, moment) for turn, moment in KILLS)
    assert [slot for slot, moment in passed if moment is Moment.AFTER_EFFECT] == [
        turn.slot for turn in TURNS
    ]
    assert explored.calls == {turn.slot: 1 for turn in TURNS}
    assert explored.effects["effects"] == EFFECTS
    assert explored.sentence_after == "50 steps complete, the run completed"


# ---- the process dies


@pytest.mark.parametrize(("turn", "moment"), KILLS, ids=lambda one: getattr(one, "slot", one))
def test_a_process_dies(turn: Turn, moment: Moment, around: Around) -> None:
    point = CrashPoint(turn.slot, turn.step, 1, moment)
    explored = around.explorer().crash(point)
    before = explored.before
    assert before is not None

    # The moment was reached: what stood in the record and in the world when the process was gone.
    first = explored.calls_before
    acted = moment in (Moment.AFTER_EFFECT, Moment.AFTER_OUTCOME)
    assert first.get(turn.slot, 0) == acted
    if turn.step in KINDS:
        assert explored.effects_before["effects"].get(KINDS[turn.step], 0) == acted
    done = [entry.slot for entry in before.done]
    assert done == [other.slot for other in TURNS[: len(done)]]
    assert (turn.slot in done) == (moment is Moment.AFTER_OUTCOME)
    doubtful = [entry.slot for entry in before.in_doubt]
    if turn.policy != "re_executable":
        assert doubtful == ([turn.slot] if moment in DOUBTFUL else [])

    # One step with an effect at most is at risk, and all before it was durable. It may be a
    # neighbour: an intent travels in one batch with the outcome before it, and a step that changes
    # nothing does not wait for the outcome of the one before.
    assert len(doubtful) <= 1
    at_risk = TURNS[len(done)] if doubtful else None
    assert doubtful == ([at_risk.slot] if at_risk else [])
    lost = [other for other in TURNS[len(done) :] if other.slot in first]
    assert {other for other in lost if other.policy != "re_executable"} <= {at_risk}
    assert len(lost) <= 2

    # The sentence said so before any work.
    assert before.under_way == ()
    assert explored.sentence == said(len(done), at_risk)

    # A person is asked where only a person can know, with the key to look for, and nowhere else.
    if at_risk is not None and at_risk.policy == "escalate":
        assert set(around.asked) == {(at_risk.slot, before.in_doubt[0].effect_key)}
    else:
        assert around.asked == []

    # What the record has is never run again; nor is what the far system, or a person, can tell.
    check_calls(explored, [o.slot for o in lost if o.policy in ("re_executable", "keyed")])
    check_finished(explored, around)
    tried = {slot.name: [a.status for a in slot.attempts] for slot in explored.state.slots.values()}
    for other in TURNS:
        if other.policy == "re_executable":
            assert tried[other.slot] == []
        elif other != at_risk or (other in lost and other.policy in ("resolvable", "escalate")):
            assert tried[other.slot] == ["done"]
        else:
            assert (len(tried[other.slot]), tried[other.slot][-1]) == (2, "done")


@pytest.mark.parametrize(
    "moment", [Moment.INTENT_STORED, Moment.BEFORE_EFFECT, Moment.AFTER_EFFECT]
)
def test_an_escalated_step_stops_the_run_until_somebody_speaks(
    moment: Moment, around: Around
) -> None:
    around.answers = False
    explored = around.explorer().crash(CrashPoint("send_email#1", "send_email", 1, moment))
    assert explored.calls.get("send_email#1", 0) == (moment is Moment.AFTER_EFFECT)
    assert (explored.status, explored.after.needs) == ("in_doubt", "person")
    assert "send_email in doubt since 00:00" in explored.sentence_after
    assert explored.sentence_after == explored.sentence
    assert [entry.escalated for entry in explored.after.in_doubt] == [True]
    assert "decide#15" not in explored.calls


# ---- the answer is lost, the process lives


@pytest.mark.parametrize("mode", LIVE, ids=str)
@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.slot)
def test_an_answer_is_lost(turn: Turn, mode: FaultMode, around: Around) -> None:
    around.fault_at = (turn.place, mode)
    explored, _ = around.explorer().calm()

    # It was this step's call, once, and the vendor acted.
    assert around.requests[turn.place].path.startswith(PATHS[turn.step])
    routes = explored.effects["calls"]
    slot = explored.state.slots[turn.slot]
    repeated = turn.policy in ("re_executable", "keyed")

    check_calls(explored, [turn.slot] if repeated else [])
    check_finished(explored, around)
    assert [asked for asked, _ in around.asked] == (
        [turn.slot] if turn.policy == "escalate" else []
    )
    match turn.policy:
        case "re_executable":
            # Nothing outside depends on it, so any exception is a failure: the retry was declared.
            assert (slot.failures, slot.attempts) == (1, ())
        case "keyed":
            assert [a.status for a in slot.attempts] == ["in_doubt", "done"]
        case "resolvable":
            assert [a.status for a in slot.attempts] == ["done"]
            assert routes["GET /payments/by-key/{key}"] == 1
        case "escalate":
            assert [a.status for a in slot.attempts] == ["done"]
    if slot.attempts:
        told = {
            FaultMode.TIMEOUT_AFTER: "WorldError: 504 gateway_timeout",
            FaultMode.RESET_AFTER: "ConnectionResetError: ",
            FaultMode.SILENT_AFTER: "no answer within 10 s",
        }
        reason = slot.attempts[0].reason
        assert reason is not None
        assert reason.startswith(told[mode])


@pytest.mark.parametrize("mode", LIVE, ids=str)
def test_a_lost_answer_of_an_escalated_step_stops_the_run(mode: FaultMode, around: Around) -> None:
    (turn,) = [turn for turn in TURNS if turn.policy == "escalate"]
    around.fault_at, around.answers = (turn.place, mode), False
    explored, _ = around.explorer().calm()
    assert (explored.status, explored.after.needs) == ("in_doubt", "person")
    assert explored.calls[turn.slot] == 1
    assert explored.effects["effects"] == {"ticket": 1, "email": 1}
    assert "send_email in doubt since 00:00" in explored.sentence_after
    assert [entry.slot for entry in explored.after.done] == [o.slot for o in TURNS[: turn.place]]
