"""Commands that are not ours: parked ones, forwarded ones, dead letters, and kills in between.

Field reports: F20 (partitioners differ), F24 (no verdict on one record), F30 (signals to a run that
has ended), F36 (a registry that is away is not bad data).
"""

import base64
from random import Random

import pytest

from refold.log import partition_for
from refold.log.memory import Answer, AppendCall, AppendFault, Faults
from refold.log.port import Topic
from refold.worker import WorkerSettings
from refold_projections.fold import PartitionFold
from refold_schemas.commands import StartRun
from refold_schemas.events import (
    CommandEmitted,
    CommandParked,
    CommandRejected,
    RunCancelRequested,
    RunStarted,
)
from refold_schemas.values import encode_value
from support.anybody import (
    CANCEL,
    LATER,
    START,
    app,
    cancel,
    counted,
    fold_of,
    framed,
    letters,
    of,
    put,
    registry,
    start,
    wait,
    warnings,
)
from support.lab import CODEC, Lab

# ---- parked


def test_commands_of_an_unread_schema_wait_while_the_registry_is_away_f36() -> None:
    """F36: nothing is lost, order is kept for each run, others are not concerned, said once."""
    kept = registry(away=True)
    lab = Lab(codec=kept.codec())
    put(lab, start("a"), schema_id=START)
    put(lab, cancel("a"))  # readable, but behind the start of its run
    put(lab, start("b"))
    for number in range(20):
        put(lab, start(f"c{number}"), schema_id=START)
    lab.worker(app())
    assert wait(lab, 10, until=lambda: lab.ended("b")), "a run of which everything can be read"
    assert list(lab.fold().parked) == [0, 1, *range(3, 23)]
    assert lab.fold().position.command_next == 23
    lab.run(300)
    assert lab.events(run_id="a") == []
    assert len(warnings(lab, "R024")) == 1, "once for each outage"
    assert letters(lab) == []
    kept.away = False
    assert wait(
        lab, 60, until=lambda: lab.ended("a") and all(lab.ended(f"c{n}") for n in range(20))
    )
    assert lab.fold().parked == {}
    assert isinstance(lab.events(run_id="a")[0], RunStarted)
    assert of(RunCancelRequested, lab.events(run_id="a")), "its cancel came after its start"
    assert of(CommandRejected, counted(lab)) == []
    assert len(of(RunStarted, counted(lab))) == 22


def test_a_slow_registry_delays_what_needs_it_and_nothing_else_f36() -> None:
    kept = registry()
    kept.answer_s = 10
    lab = Lab(codec=kept.codec())
    put(lab, start("a"), schema_id=START)
    put(lab, cancel("b"), schema_id=CANCEL)
    put(lab, start("b"))
    lab.worker(app())
    assert wait(lab, 9, until=lambda: len(of(CommandParked, counted(lab))) == 3)
    assert wait(lab, 30, until=lambda: lab.ended("a") and lab.ended("b"))
    assert warnings(lab, "R024") == []
    assert sorted(kept.asked) == [START, CANCEL]
    (refused,) = lab.events(CommandRejected, run_id="b")
    assert isinstance(refused, CommandRejected)
    assert refused.reason == "unknown_run", "the cancel came first, so it was decided first"


def test_what_the_registry_does_not_have_is_refused_after_a_while_across_owners() -> None:
    """The minute is counted in the log: a takeover does not begin it anew."""
    kept = registry()
    lab = Lab(codec=kept.codec())
    put(lab, start("a"), schema_id=LATER)
    put(lab, cancel("a"), schema_id=LATER)
    first = lab.worker(app())
    lab.run(40)
    assert [one.state for one in of(CommandParked, counted(lab))] == [
        "waiting",
        "behind",
        "unknown",
        "unknown",
    ]
    first.kill()
    lab.codec = kept.codec()
    lab.worker(app(), name="second")
    taken_ms = lab.now_ms()
    assert wait(lab, 60, until=lambda: not lab.fold().parked and len(letters(lab)) == 2)
    assert lab.now_ms() - taken_ms < 45_000
    refused = of(CommandRejected, counted(lab))
    assert [(one.command_offset, one.reason) for one in refused] == [
        (0, "undecodable"),
        (1, "undecodable"),
    ]
    assert "schema id 9" in refused[0].detail
    assert refused[0].raw == framed(start("a"), LATER)[:1_024]
    put(lab, start("b"), schema_id=LATER)
    assert wait(lab, 20, until=lambda: len(letters(lab)) == 3), (
        "known to be missing: asked once more"
    )


def test_a_schema_that_is_registered_late_is_found() -> None:
    kept = registry()
    lab = Lab(codec=kept.codec())
    put(lab, start("a"), schema_id=LATER)
    lab.worker(app())
    lab.run(30)
    kept.register(LATER, "refold.commands.StartRun")
    assert wait(lab, 30, until=lambda: lab.ended("a"))
    assert letters(lab) == []


def test_whoever_takes_over_from_a_checkpoint_goes_on_with_what_is_parked() -> None:
    kept = registry(away=True)
    settings = WorkerSettings(checkpoint_ms=2_000)
    lab = Lab(codec=kept.codec(), settings=settings)
    put(lab, start("a"), schema_id=START)
    put(lab, cancel("a"), schema_id=CANCEL)
    put(lab, start("b"))
    first = lab.worker(app())
    assert wait(lab, 20, until=lambda: lab.ended("b"))
    lab.run(10)
    lab.stop(first)
    assert lab.fold().facts.released
    lab.codec = kept.codec()
    kept.away = False
    lab.worker(app(), name="second")
    assert wait(lab, 60, until=lambda: lab.ended("a"))
    assert lab.status("a") == "cancelled"
    assert lab.fold().parked == {}


def test_parked_commands_have_a_limit_and_the_others_stay_in_the_log() -> None:
    kept = registry(away=True)
    lab = Lab(codec=kept.codec(), settings=WorkerSettings(parked_max=3))
    for number in range(5):
        put(lab, start(f"a{number}"), schema_id=START)
    put(lab, start("b"))
    lab.worker(app())
    lab.run(60)
    assert lab.fold().position.command_next == 3
    assert len(warnings(lab, "R025")) == 1
    kept.away = False
    assert wait(lab, 60, until=lambda: all(lab.ended(f"a{n}") for n in range(5)) and lab.ended("b"))


def test_with_the_embedded_registry_an_unknown_id_is_refused_at_once() -> None:
    """ADR 0009: no file appears while the process lives."""
    lab = Lab()
    put(lab, start("a"), schema_id=START)
    put(lab, start("b"))
    lab.worker(app())
    assert wait(lab, 10, until=lambda: lab.ended("b"))
    assert of(CommandParked, counted(lab)) == []
    (refused,) = of(CommandRejected, counted(lab))
    assert (refused.reason, refused.command_offset) == ("undecodable", 0)


# ---- bad ones


def test_each_bad_record_is_one_rejection_and_one_dead_letter_f24() -> None:
    """F24: the valid ones take effect, each bad one is told with reason, offset and raw bytes."""
    lab = Lab()
    truncated = framed(start("cut"), None)[:-4]
    bad: list[bytes] = [
        b"\x05junk",
        framed(start("x"), 999_999),
        truncated,
        framed(start("y"), None) + b"!",
        b"",
    ]
    put(lab, start("good"))
    for data in bad:
        put(lab, data, key=b"good")
    put(lab, StartRun("c-plan", "p", "no-such-run", encode_value(1), None, "them"))
    put(lab, cancel("good"))
    lab.worker(app())
    assert wait(lab, 20, until=lambda: lab.ended("good") and len(letters(lab)) == 6)
    assert lab.status("good") == "cancelled"
    refused = of(CommandRejected, counted(lab))
    assert [(one.command_offset, one.reason) for one in refused] == [
        *((at, "undecodable") for at in range(1, 6)),
        (6, "unknown_function"),
    ]
    told = letters(lab)
    assert [base64.b64decode(one["raw"]) for one in told[:5]] == bad
    assert [one["offset"] for one in told] == list(range(1, 7))
    assert told[5]["run_id"] == "p"
    assert told[5]["command_id"] == "c-plan"
    assert all(one["raw_whole"] and one["namespace"] == "lab" for one in told)


def test_signals_to_a_run_that_has_ended_are_each_answered_f30() -> None:
    """F30: before the end they count, after it each is refused, and the sum is all of them."""
    lab = Lab()
    put(lab, start("a", run="quick"))
    for number in range(100):
        put(lab, cancel("a", f"cancel-{number}"))
    lab.worker(app())
    assert wait(lab, 20, until=lambda: lab.fold().position.command_next == 101 and lab.ended("a"))
    asked = of(RunCancelRequested, lab.events(run_id="a"))
    refused = of(CommandRejected, lab.events(run_id="a"))
    assert len(asked) + len(refused) == 100
    late = put(lab, cancel("a", "too-late"))
    assert wait(lab, 20, until=lambda: any(one["offset"] == late for one in letters(lab)))
    (letter,) = [one for one in letters(lab) if one["offset"] == late]
    ended_at = fold_of(lab).marks["a"].offset - 1
    assert letter["reason"] == "run_ended"
    assert f"at offset {ended_at}" in letter["detail"]


# ---- forwarded


@pytest.mark.parametrize("key", [None, b"", b"a", b"another"], ids=["null", "empty", "own", "odd"])
def test_a_command_on_the_wrong_partition_is_sent_on_whatever_its_key_f20(
    key: bytes | None,
) -> None:
    """F20: what counts is the run_id in the body."""
    lab = Lab(partition_count=2)
    home = partition_for("a", 2)
    put(lab, start("a"), partition=1 - home, key=key)
    lab.worker(app())

    def ended() -> bool:
        runs = fold_of(lab, home).runs
        return "a" in runs and runs["a"].ended is not None

    assert wait(lab, 20, until=ended)
    assert fold_of(lab, 1 - home).runs == {}
    (sent,) = of(CommandEmitted, counted(lab, 1 - home))
    assert (sent.run_id, sent.partition, sent.command_offset) == ("a", home, 0)
    (arrived,) = lab.broker.records(Topic.COMMANDS, home)
    assert (arrived.key, arrived.value) == (b"a", framed(start("a"), None))
    assert [event.run_id for event in lab.told if event.kind == "forwarded"] == ["a"]
    assert letters(lab, 0) + letters(lab, 1) == []


class LosesAnswers(Faults):
    """Gives no answer to what is appended to the commands, `count` times, stored or not."""

    def __init__(self, count: int, *, stored: bool = True) -> None:
        self.count, self.stored = count, stored

    def on_append(self, call: AppendCall) -> AppendFault | None:
        if call.topic is Topic.COMMANDS and self.count > 0:
            self.count -= 1
            return AppendFault((0,) if self.stored else (), Answer.ERROR, 1)
        return None


def test_an_unknown_append_is_repeated_and_its_copies_frighten_nobody() -> None:
    lab = Lab(partition_count=2)
    home = partition_for("a", 2)
    lab.broker.faults = LosesAnswers(3)
    put(lab, start("a"), partition=1 - home)
    lab.worker(app())
    assert wait(
        lab, 30, until=lambda: len(lab.broker.records(Topic.COMMANDS, home)) == 4 and not owed(lab)
    )
    lab.run(5)
    assert len(of(RunStarted, counted(lab, home))) == 1
    assert {one.reason for one in of(CommandRejected, counted(lab, home))} == {"duplicate"}
    assert letters(lab, home) == []
    assert [event for event in lab.told if event.kind == "rejected"] == []
    assert len(warnings(lab, "R026")) == 1


def test_what_was_not_stored_is_sent_again() -> None:
    lab = Lab(partition_count=2)
    home = partition_for("a", 2)
    lab.broker.faults = LosesAnswers(3, stored=False)
    put(lab, start("a"), partition=1 - home)
    lab.worker(app())
    assert wait(lab, 30, until=lambda: len(of(RunStarted, counted(lab, home))) == 1)
    assert len(lab.broker.records(Topic.COMMANDS, home)) == 1


def owed(lab: Lab) -> list[int]:
    """What owners have still to send."""
    return [
        offset
        for worker in lab.workers.values()
        for owner in worker.owners.values()
        for offset in owner.books.orders_durable.outbox
    ]


# ---- kills


@pytest.mark.parametrize("seed", range(6))
def test_through_kills_every_command_is_decided_exactly_once(seed: int) -> None:
    """Whatever is parked, forwarded, doubled or bad, while workers die and the registry is away."""
    rng = Random(f"anybody/{seed}")
    kept = registry(away=True)
    settings = WorkerSettings(
        checkpoint_ms=1_500,
        checkpoint_events=15,
        append_timeout_ms=2_000,
        schema_unknown_ms=8_000,
    )
    lab = Lab(codec=kept.codec(), settings=settings, seed=seed, partition_count=3)
    lab.broker.faults = LosesAnswers(rng.randrange(4))
    run_ids = [f"run-{number}" for number in range(12)]
    for run_id in run_ids:
        schema_id = rng.choice((None, START))
        partition = rng.choice((None, 0, 1, 2))
        key = rng.choice((b"?", b"?", None, b""))
        for _ in range(rng.choice((1, 1, 2))):
            put(lab, start(run_id), schema_id=schema_id, partition=partition, key=key)
    bad = rng.randrange(3)
    for _ in range(bad):
        put(lab, rng.randbytes(9), partition=rng.randrange(3), key=b"run-1")
    place = rng.randrange(3)
    put(lab, start("never"), schema_id=LATER, partition=place)
    processes = [lab.worker(app(), name=f"w{n}") for n in range(2)]
    for _ in range(6):
        lab.run(rng.random() * 6)
        victim = rng.randrange(2)
        processes[victim].kill()
        kept.away = rng.random() < 0.4
        lab.codec = kept.codec()
        processes[victim] = lab.worker(app(), name=f"w{victim}")
    kept.away = False

    def over() -> bool:
        folds = [fold_of(lab, partition) for partition in range(3)]
        runs = {run_id: state for fold in folds for run_id, state in fold.runs.items()}
        return (
            set(run_ids) <= set(runs)
            and all(state.ended is not None for state in runs.values())
            and not any(fold.parked for fold in folds)
            and len(told_in(lab)) == bad + 1
            and all(
                fold.position.command_next == lab.broker.bounds(Topic.COMMANDS, partition)[1]
                for partition, fold in enumerate(folds)
            )
        )

    assert wait(lab, 240, until=over, every_s=2)
    for partition in range(3):
        _each_decided_once(lab, partition)
        assert all(partition_for(run, 3) == partition for run in fold_of(lab, partition).runs)
    started = [event for p in range(3) for event in of(RunStarted, counted(lab, p))]
    assert sorted(event.command_id for event in started) == sorted(f"start-{r}" for r in run_ids)
    reasons = [event.reason for p in range(3) for event in of(CommandRejected, counted(lab, p))]
    assert reasons.count("undecodable") == bad + 1
    assert set(reasons) <= {"undecodable", "duplicate"}


def told_in(lab: Lab) -> set[tuple[int, int]]:
    """The commands of which there is a dead letter, by partition and offset."""
    return {(one["partition"], one["offset"]) for p in range(3) for one in letters(lab, p)}


def _each_decided_once(lab: Lab, partition: int) -> None:
    """By the events alone: each offset of the commands has one decision, parked or not."""
    decisions: dict[int, int] = {}
    positions: list[int] = []
    fold = PartitionFold(CODEC)
    parked: set[int] = set()
    for record in lab.broker.records(Topic.EVENTS, partition):
        before = fold.position.command_next
        applied = fold.apply(record)
        if applied.verdict != 0:
            continue
        after, event = fold.position.command_next, applied.event
        if isinstance(event, CommandParked):
            if event.state == "decided":
                assert event.command_offset in parked, "only what is parked is taken out"
                parked.discard(event.command_offset)
                decisions[event.command_offset] = decisions.get(event.command_offset, 0) + 1
            elif event.state != "unknown":
                assert event.command_offset == before
                parked.add(event.command_offset)
                positions.append(before)
        elif after != before:
            assert after == before + 1
            positions.append(before)
            decisions[before] = decisions.get(before, 0) + 1
    end = lab.broker.bounds(Topic.COMMANDS, partition)[1]
    assert positions == list(range(end))
    assert decisions == dict.fromkeys(range(end), 1)
