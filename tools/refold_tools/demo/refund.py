"""The refund agent's story: forty turns, and by default a death at turn 22 and one at turn 31."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from refold_projections.fold import Boundary, Slot
from refold_schemas.errors.cli import UsageRefused
from refold_tools.demo.counting import MODEL
from refold_tools.demo.stories import Moment, Story, Verdict

KILL_AT = (22, 31)

ROUTES = {
    "decide": MODEL,
    "read_order": "GET /orders/{id}",
    "read_customer": "GET /customers/{id}",
    "read_policy": "GET /policies/{id}",
    "check_fraud": "GET /fraud/{id}",
    "check_stock": "GET /stock/{id}",
    "open_ticket": "POST /tickets",
    "send_email": "POST /email/messages",
    "issue_refund": "POST /payments/refunds",
    "put_note": "PUT /notes/{order_id}/{note}",
}
EFFECTS = {
    "open_ticket": "ticket",
    "send_email": "email",
    "issue_refund": "refund",
    "put_note": "note",
}
VENDORS = {
    "decide": "the model",
    "open_ticket": "the ticket system",
    "send_email": "the e-mail sender",
    "issue_refund": "the bank",
    "put_note": "the notebook",
}
TOLD = {
    "read_order": "reads the order",
    "read_customer": "reads who the customer is",
    "read_policy": "reads the shop's own rules",
    "check_fraud": "looks at the fraud score",
    "check_stock": "looks at the stock",
    "open_ticket": "opens a ticket",
    "send_email": "writes to the customer: your refund of £41.60 is approved",
    "issue_refund": "pays £41.60 back",
    "put_note": "writes a note on the order",
}
ACTED = {
    "open_ticket": "the ticket system has opened the ticket; its answer is on the way",
    "send_email": "the e-mail is sent; the sender's answer is on the way",
    "issue_refund": "the bank has paid £41.60 back; its answer is on the way",
    "put_note": "the note is written; the answer is on the way",
    "decide": "the model is thinking; its answer is on the way",
}


class RefundStory(Story):
    """Order 48211. `script` is the application's own module of what happens on which turn."""

    name = "refund-agent"
    target = "refund_agent.app:app"
    run = "refund-agent"

    def __init__(self, script: Any, run_id: str, kill_at: Sequence[int]) -> None:
        self.run_id = run_id
        self.given = {"order_id": "48211"}
        self.title = (
            "An agent works a refund: order 48211, forty turns, ten tool calls. Its process is "
            "killed for real, between an act and its record."
        )
        self._turns: dict[int, tuple[str, str]] = {}  # turn -> (step, slot) of its tool
        counts: dict[str, int] = {}
        for turn, call in sorted(script.TOOL_TURNS.items()):
            step = str(call["name"])
            counts[step] = counts.get(step, 0) + 1
            self._turns[turn] = (step, f"{step}#{counts[step]}")
        self._turn_of = {slot: turn for turn, (_, slot) in self._turns.items()}
        self.turn_count = 40
        for turn in kill_at:
            if not 1 <= turn <= self.turn_count:
                raise UsageRefused(
                    f"--kill-at {turn}: the agent has turns 1 to {self.turn_count}", "refold demo"
                )
        self._moments = [self._moment(turn) for turn in sorted(set(kill_at))]

    @property
    def moments(self) -> Sequence[Moment]:
        """At a turn with a tool call in that call, else in the turn's model call."""
        return self._moments

    def _moment(self, turn: int) -> Moment:
        step, slot = self._turns.get(turn, ("decide", f"decide#{turn}"))
        route = ROUTES[step]
        if step == "decide":
            earlier = [f"decide#{one}" for one in range(1, turn)]
        else:
            earlier = [s for t, (other, s) in self._turns.items() if other == step and t < turn]

        def after(done: Collection[str]) -> int:
            return sum(one not in done for one in earlier)

        acted = ACTED.get(step, f"{TOLD.get(step, step)}: the answer is on the way")
        return Moment(turn, slot, step, route, after, EFFECTS.get(step), acted)

    def line(self, slot: str, step: str) -> str | None:
        """Tool calls, with their turn. The model's forty answers would be too many."""
        turn = self._turn_of.get(slot)
        if turn is not None:
            return f"turn {turn:>2}  {TOLD[step]}"
        if slot == f"decide#{self.turn_count}":
            return f"turn {self.turn_count}  closes the case"
        return None

    def vendor(self, step: str) -> str:
        """Who does what the step asks for."""
        return VENDORS.get(step, "the shop")

    def lost(self, seen: Boundary, moment: Moment) -> str:
        """What died with the process."""
        return f"the answer to {moment.step} of turn {moment.turn} with it"

    def expected(self) -> Mapping[str, int]:
        """Each of the four writes once."""
        return dict.fromkeys(EFFECTS.values(), 1)

    def expected_calls(self, slots: Mapping[str, Slot]) -> Mapping[str, Sequence[str]]:
        """One call a slot."""
        due: dict[str, list[str]] = {}
        for slot in slots.values():
            if slot.step in ROUTES:
                due.setdefault(ROUTES[slot.step], []).append(slot.name)
        return due

    def judge(self, step: str, ledger: Sequence[dict[str, Any]], settled: int) -> Verdict | None:
        """The e-mail is the one step that only a person can speak for."""
        if step != "send_email":
            return None
        sent = [effect for effect in ledger if effect["kind"] == "email"]
        if len(sent) > settled:
            said = f"an e-mail to {sent[settled]['body']['to']} is in the outbox: it was sent"
            return Verdict(True, {"accepted": True}, said)
        return Verdict(False, None, "there is no such e-mail in the outbox: it was not sent")

    def holds(self, result: object, ledger: Sequence[dict[str, Any]]) -> str | None:
        """The amount that was paid is the amount that the agent believes it has paid."""
        paid = sum(effect["body"]["pence"] for effect in ledger if effect["kind"] == "refund")
        believed = result.get("refunded_pence") if isinstance(result, dict) else None
        return None if paid == believed == 4160 else f"paid {paid} pence, recorded {believed}"
