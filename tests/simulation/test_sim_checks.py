"""The checkers themselves: each planted lie is found, and the two folds agree on any log."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from refold.log.memory import MemoryBroker
from refold.log.port import Entry, Topic
from refold.testing.sim_app import SERVICES
from refold.testing.sim_checks import Sent, Watch
from refold.testing.sim_codec import shared_codec
from refold.testing.sim_loop import SimProcess, Universe
from refold.testing.sim_readers import Readers
from refold.testing.sim_report import Journal
from refold.testing.sim_shadow import Shadow, differences
from refold.testing.sim_world import Call, SimVendor, VendorRates, receipt
from refold_projections.fold import PartitionFold
from refold_schemas.codec import KIND_CLAIM, KIND_EVENT, KIND_REPORT, RecordHeader
from refold_schemas.commands import CancelRun
from refold_schemas.events import (
    AttemptReported,
    CommandRejected,
    EvidenceConflict,
    PartitionClaimed,
    RunCompleted,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
    TimerFired,
    TimerScheduled,
)
from refold_schemas.values import ErrorInfo, encode_value

ERROR = ErrorInfo("NotDone", "refold:NotDone", "no capacity", None)
CLAIMED = PartitionClaimed("w", "p", "app", "0", (), (), 1, 1)
NULL = encode_value(None)


class Stage:
    """A log that a test writes by hand, with the watch and the far system beside it."""

    def __init__(self) -> None:
        self.universe = Universe(Random(1))
        self.journal = Journal(lambda: self.universe.now_us)
        self.codec = shared_codec()
        self.broker = MemoryBroker("t", now_ms=lambda: self.universe.now_us // 1000)
        self.watch = Watch(self.universe, self.broker, self.codec, self.journal)
        self.vendor = SimVendor(self.universe, Random(1), self.journal, SERVICES, VendorRates())
        self.watch.attach(self.vendor)
        self.process = SimProcess(self.universe, "w0")
        self.epoch, self.n, self.claim_id = 0, 0, bytes(16)

    def claim(self) -> None:
        self.epoch, self.n = self.epoch + 1, 0
        self.claim_id = bytes([self.epoch]) * 16
        self._put(None, CLAIMED, KIND_CLAIM, 0)

    def event(self, event: Any, *, n: int | None = None, at_ms: int = 0, next_: int = 0) -> int:
        number = self.n if n is None else n
        self.n = number + 1
        return self._put(b"run-1", event, KIND_EVENT, number, at_ms=at_ms, command_next=next_)

    def _put(
        self,
        key: bytes | None,
        event: Any,
        kind: int,
        n: int,
        *,
        at_ms: int = 0,
        command_next: int = 0,
    ) -> int:
        header = RecordHeader(kind, self.claim_id, self.epoch, n, at_ms, command_next)
        entry = Entry(key, self.codec.encode(event), header.pack())
        offset = self.broker.put(Topic.EVENTS, 0, [entry])
        self.watch.look()
        return offset

    def start(self) -> None:
        self.claim()
        self.event(RunStarted("order", "1", encode_value(1), bytes(32), "start", "test"))

    def intend(self, step: str = "charge", attempt: int = 1, *, told: bool = True) -> str:
        slot = f"{step}#1"
        policy = {"mail": "escalate", "reserve": "keyed"}.get(step, "resolvable")
        offset = self.event(
            StepIntended(slot, step, attempt, 0, None, b"f", "key-1", policy, 2_000, 1_000, None)
        )
        if told:
            self.watch.batch_told(self.process, 0, offset, 1, self.process.boot_us())
        return slot

    def call(self, slot: str, attempt: int = 1, *, key: str = "key-1", late: bool = False) -> Call:
        service = slot.split("#", maxsplit=1)[0]
        call = Call(
            self.process, service, "run-1", slot, attempt, key, 5, self.universe.now_us, late
        )
        self.watch.called(call)
        return call

    def act(self, slot: str, attempt: int = 1, *, key: str = "key-1", late: bool = False) -> None:
        call = self.call(slot, attempt, key=key, late=late)
        self.vendor.arrive(call, "ok", lambda value, error: None)
        call.ended_us = self.universe.now_us

    def complete(self, slot: str, attempt: int = 1) -> None:
        result = encode_value(receipt("charge", 5))
        self.event(StepCompleted(slot, attempt, result, None, None, None, None, None))

    def end(self) -> None:
        self.event(RunCompleted(NULL))
        self.watch.settle_accounts()

    def violated(self, words: str) -> None:
        assert self.journal.violation is not None, f"not found: {words}"
        assert words in self.journal.violation


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_an_honest_run_violates_nothing(stage: Stage) -> None:
    stage.start()
    slot = stage.intend()
    stage.act(slot)
    stage.complete(slot)
    stage.end()
    assert stage.journal.violation is None


def test_acting_without_an_intent_is_found(stage: Stage) -> None:
    stage.start()
    stage.call("charge#1")
    stage.violated("without an intent that counts")


def test_acting_before_the_acknowledgement_is_found(stage: Stage) -> None:
    stage.start()
    stage.call(stage.intend(told=False))
    stage.violated("not acknowledged to that process")


def test_acting_on_the_intent_of_a_fenced_claim_is_found(stage: Stage) -> None:
    stage.start()
    fenced = stage.claim_id
    stage.claim()
    stage.claim_id = fenced
    stage.call(stage.intend())
    stage.violated("without an intent that counts")


def test_acting_twice_for_one_attempt_is_found(stage: Stage) -> None:
    stage.start()
    slot = stage.intend()
    stage.call(slot)
    stage.call(slot)
    stage.violated("did before")


def test_acting_after_the_deadline_is_found(stage: Stage) -> None:
    stage.start()
    slot = stage.intend()
    stage.universe.now_us += 2_100_000
    stage.call(slot)
    stage.violated("its deadline was 2000 ms")


def test_another_key_than_the_recorded_one_is_found(stage: Stage) -> None:
    stage.start()
    stage.call(stage.intend(), key="made-up")
    stage.violated("under a key that its intent does not name")


def test_an_effect_that_happens_twice_is_found(stage: Stage) -> None:
    stage.start()
    slot = stage.intend("book")
    stage.act(slot)
    stage.event(StepInDoubt(slot, 1, "504", False))
    stage.intend("book", 2)
    stage.act(slot, 2)
    stage.violated("happened 2 times")


def test_repeating_an_escalated_effect_without_a_person_is_found(stage: Stage) -> None:
    stage.start()
    slot = stage.intend("mail")
    stage.act(slot)
    stage.event(StepInDoubt(slot, 1, "504", True))
    stage.intend("mail", 2)
    stage.act(slot, 2)
    stage.violated("again without a person's word")


def test_done_without_an_effect_is_found(stage: Stage) -> None:
    stage.start()
    slot = stage.intend()
    stage.complete(slot)
    stage.violated("the far system never saw it")


def test_failed_with_an_effect_is_found(stage: Stage) -> None:
    stage.start()
    slot = stage.intend()
    stage.act(slot)
    stage.event(StepFailed(slot, 1, ERROR, True, False, None, None, None))
    stage.violated("is recorded as failed, but the far system has it")


def test_an_early_absent_is_found(stage: Stage) -> None:
    stage.start()
    slot = stage.intend()
    call = stage.call(slot)
    call.ended_us = stage.universe.now_us
    stage.event(StepInDoubt(slot, 1, "504", False))
    stage.universe.now_us += 500_000
    stage.event(StepResolved(slot, 1, "absent", "lookup", None, None, False, None, None, None))
    stage.violated("1000 ms is the least")


def test_an_early_absent_after_a_takeover_is_found(stage: Stage) -> None:
    stage.start()
    slot = stage.intend()
    stage.universe.now_us += 60_000_000
    stage.claim()
    stage.universe.now_us += 1_500_000
    stage.event(StepResolved(slot, 1, "absent", "lookup", None, None, False, None, None, None))
    stage.violated("3000 ms is the least")


def test_an_effect_after_absent_is_found_unless_it_was_sent_late(stage: Stage) -> None:
    stage.start()
    slot = stage.intend()
    call = stage.call(slot)
    call.ended_us = 0
    stage.universe.now_us += 9_000_000
    stage.event(StepResolved(slot, 1, "absent", "lookup", None, None, True, None, None, None))
    call.late = True
    stage.vendor.arrive(call, "ok", lambda value, error: None)
    assert stage.journal.violation is None
    assert stage.journal.counts["late deeds"] == 1
    call.late = False
    call.key = "key-2"
    stage.vendor.ledger.clear()
    stage.vendor.by_slot.clear()
    stage.vendor.arrive(call, "ok", lambda value, error: None)
    stage.violated("happened after the log said it was absent")


def test_a_conflict_without_a_contradiction_is_found(stage: Stage) -> None:
    stage.start()
    slot = stage.intend()
    stage.act(slot)
    stage.complete(slot)
    stage.event(EvidenceConflict(slot, 1, "done", "failed"))
    stage.end()
    stage.violated("EvidenceConflict without a contradiction")


def test_never_started_of_a_call_that_began_is_found(stage: Stage) -> None:
    stage.start()
    slot = stage.intend()
    stage.call(slot)
    reported = AttemptReported(slot, 1, "key-1", "never_started", None, None, "w0")
    stage._put(b"run-1", reported, KIND_REPORT, stage.n - 1)
    stage.violated("had begun it")


def test_a_timer_that_is_early_or_fires_twice_is_found() -> None:
    for fired_ms, words in (((4_999,), "1 ms early"), ((5_000, 5_001), "fired twice")):
        stage = Stage()
        stage.start()
        stage.event(TimerScheduled("sleep:sleep#1", 1, "sleep", "sleep#1", 5_000))
        for at_ms in fired_ms:
            stage.event(TimerFired("sleep:sleep#1", 1), at_ms=at_ms)
        stage.violated(words)


def test_a_missing_n_is_found(stage: Stage) -> None:
    stage.start()
    stage.event(RunCompleted(NULL), n=stage.n + 1)
    stage.violated("an owner left out an n")


def test_a_command_without_decision_and_one_applied_twice_are_found(stage: Stage) -> None:
    command = CancelRun("c-1", "run-1", "test", "")
    stage.start()
    stage.broker.put(Topic.COMMANDS, 0, [Entry(b"run-1", stage.codec.encode(command))])
    stage.watch.sent["c-1"] = Sent("CancelRun", "run-1", 1, [0])
    stage.watch.settle_accounts()
    stage.violated("commands up to 1 were published, those up to 0 are decided")
    stage.journal.violation = None
    stage.event(CommandRejected("c-1", "CancelRun", 0, "run_ended", "", None), next_=1)
    stage.watch.settle_accounts()
    assert stage.journal.violation is None
    stage.watch.answers["c-1"] = ["applied", "applied"]
    stage.watch.settle_accounts()
    stage.violated("was applied 2 times")


def test_a_command_position_that_jumps_is_found(stage: Stage) -> None:
    stage.start()
    stage.event(RunCompleted(NULL), next_=2)
    stage.violated("the next command goes from 0 to 2")


class LyingOwner:
    def __init__(self, stage: Stage, states: dict[str, Any]) -> None:
        self.position = stage.watch.partitions[0].fold.position
        self.states = states
        self.books = SimpleNamespace(
            is_durable=lambda _: True, states=SimpleNamespace(packed=lambda _: None)
        )

    def runs(self) -> list[str]:
        return list(self.states)

    def state(self, run_id: str) -> Any:
        return self.states[run_id]


def test_an_owner_whose_state_differs_from_the_log_is_found(stage: Stage) -> None:
    stage.start()
    before = dict(stage.watch.partitions[0].fold.runs)
    stage.intend()
    readers = Readers(stage.watch)
    readers.compare_owners(
        [("w0", 0, LyingOwner(stage, dict(stage.watch.partitions[0].fold.runs)))]
    )
    assert stage.journal.violation is None
    readers.compare_owners([("w0", 0, LyingOwner(stage, before))])
    stage.violated("its durable state of run-1 at offset 3")


def random_log(seed: int) -> Stage:
    """Claims, stored copies, late claims, gaps and reports in any order."""
    rng = Random(seed)
    stage = Stage()
    stage.watch.vendor = None  # nobody acts: only the claim rule is looked at
    stage.start()
    slots: list[str] = []
    for number in range(rng.randint(5, 40)):
        # Nobody decides a second outcome for a slot, whatever the log has lost meanwhile.
        run = stage.watch.partitions[0].shadow.runs.get("run-1")
        undecided = [s for s in slots if run and s in run.slots and not run.slots[s].outcome]
        match rng.randrange(9):
            case 0:
                stage.claim()
            case 1:  # a stored copy of something
                records = stage.broker.records(Topic.EVENTS, 0)
                copy = rng.choice(records)
                stage.broker.put(Topic.EVENTS, 0, [Entry(*copy[1:4])])
                stage.watch.look()
            case 2 if rng.random() < 0.3:
                stage.event(RunCompleted(NULL), n=stage.n + rng.randint(0, 2))
            case 3:
                claim, stage.claim_id = stage.claim_id, bytes([rng.randint(1, 9)]) * 16
                stage.event(StepInDoubt(rng.choice(slots or ["x#1"]), 1, "lost", False))
                stage.claim_id = claim
            case 4 if slots:
                reported = AttemptReported(
                    rng.choice(slots),
                    1,
                    "key",
                    rng.choice(("completed", "failed", "never_started")),
                    None,
                    None,
                    "w",
                )
                stage._put(b"run-1", reported, KIND_REPORT, rng.randint(0, 9))
            case 5 if undecided:
                slot = rng.choice(undecided)
                stage.event(StepFailed(slot, 1, ERROR, rng.random() < 0.5, False, None, None, None))
            case 6 if undecided:
                verdict, evidence = rng.choice(
                    (("done", "person"), ("absent", "lookup"), ("never_started", "late_report"))
                )
                stage.event(
                    StepResolved(
                        rng.choice(undecided),
                        1,
                        verdict,
                        evidence,
                        None,
                        None,
                        True,
                        None,
                        None,
                        None,
                    )
                )
            case 7 if undecided:
                stage.complete(rng.choice(undecided))
            case _:
                slots.append(stage.intend(f"step-{number}", told=False))
    return stage


@pytest.mark.parametrize("seeds", [range(at, at + 25) for at in range(0, 150, 25)], ids=str)
def test_the_two_folds_agree_on_any_log_and_for_any_reader(seeds: range) -> None:
    for seed in seeds:
        stage = random_log(seed)
        told = stage.journal.violation
        assert told is None or "left out an n" in told, f"log {seed}: {told}"
        stage.journal.violation = None
        Readers(stage.watch).compare_all()
        assert stage.journal.violation is None, f"log {seed}"


def test_a_fold_that_counts_a_stored_copy_is_found() -> None:
    stage = random_log(3)
    shadow, fold = Shadow(stage.codec), PartitionFold(stage.codec)
    for record in stage.broker.records(Topic.EVENTS, 0):
        shadow.feed(record)
        fold.apply(record)
    run, state = shadow.runs["run-1"], fold.runs["run-1"]
    assert differences(run, state) is None
    run.events += 1
    assert "events" in (differences(run, state) or "")
