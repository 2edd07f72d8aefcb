"""What an owner owes to others leaves, whatever the log or the registry shows for a moment."""

import asyncio
from collections.abc import Sequence

import pytest

from refold import App, RunContext
from refold.engine.lookup import Lookup
from refold.log import Entry, entry_size, partition_for
from refold.log.memory import Answer, AppendCall, AppendFault, Faults, MemoryBroker, MemoryLog
from refold.log.port import Record, Topic
from refold.worker import WorkerSettings
from refold_projections.fold import PartitionFold
from refold_projections.fold.orders import NOTHING
from refold_schemas.codec import Codec
from refold_schemas.commands import StartRun
from refold_schemas.errors import LogUnavailable
from refold_schemas.events import CommandParked, CommandRejected
from refold_schemas.values import encode_value
from support.anybody import (
    START,
    app,
    counted,
    fold_of,
    letters,
    of,
    put,
    registry,
    start,
    wait,
    warnings,
)
from support.lab import CODEC, Lab
from support.scripted_registry import ScriptedRegistry
from support.written_log import writer_for

NAMES = [f"run-{number}" for number in range(20)]
EMITTED, EMITTED_NAME = 10, "refold.events.CommandEmitted"


class Behind:
    """A log that shows no more of a topic than `ends` says, as a new leader may (KIP-207)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ends: dict[Topic, int] = {}
        read, bounds = MemoryLog.read, MemoryLog.bounds

        async def read_less(
            log: MemoryLog, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
        ) -> Sequence[Record]:
            records = await read(log, topic, partition, offset, size_max=size_max)
            end = self.ends.get(topic)
            return records if end is None else [one for one in records if one.offset < end]

        async def bounds_less(log: MemoryLog, topic: Topic, partition: int) -> tuple[int, int]:
            first, end = await bounds(log, topic, partition)
            return first, min(end, self.ends.get(topic, end))

        patch.setattr(MemoryLog, "read", read_less)
        patch.setattr(MemoryLog, "bounds", bounds_less)


def test_a_record_that_the_log_does_not_show_yet_is_not_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a parked command is refused, and what stands in the outbox is never sent."""
    behind = Behind(monkeypatch)
    broker = MemoryBroker("lab")
    broker.exists = True
    broker.put(Topic.COMMANDS, 0, [Entry(b"a", b"1"), Entry(b"b", b"2")])

    async def main() -> None:
        log = MemoryLog("memory://lab", broker=broker)
        await log.open(create=True)
        lookup = Lookup(log, Topic.COMMANDS, 0)
        behind.ends[Topic.COMMANDS] = 1
        with pytest.raises(LogUnavailable, match="offset 1 was read"):
            await lookup.at(1)
        behind.ends.clear()
        found = await lookup.at(1)
        assert found is not None
        assert found.value == b"2"
        await log.close()

    asyncio.run(main())


def test_a_parked_command_that_is_not_kept_any_more_is_refused() -> None:
    kept = registry(away=True)
    lab = Lab(codec=kept.codec())
    put(lab, start("a"), schema_id=START)
    put(lab, start("b"), schema_id=START)
    first = lab.worker(app())
    assert wait(lab, 10, until=lambda: len(lab.fold().parked) == 2)
    first.kill()
    kept.away = False
    lab.broker.trim(Topic.COMMANDS, 0, 1)  # a is below the start,
    lab.broker.drop(Topic.COMMANDS, 0, 1)  # b is a hole at the end
    lab.codec = kept.codec()
    lab.worker(app(), name="second")
    assert wait(lab, 20, until=lambda: len(letters(lab)) == 2)
    assert [one.reason for one in of(CommandRejected, counted(lab))] == ["undecodable"] * 2


class Refuses(Faults):
    """Stores nothing that is appended to a topic's partition."""

    def __init__(self, topic: Topic, partition: int) -> None:
        self.place = (topic, partition)

    def on_append(self, call: AppendCall) -> AppendFault | None:
        refused = (call.topic, call.partition) == self.place
        return AppendFault((), Answer.ERROR) if refused else None


class WritesUnderItsIds(ScriptedRegistry):
    """That of a process which knows from its start under which ids it writes forwarded commands."""

    def id_of(self, name: str, version: int | None = None) -> int:
        return EMITTED if name == EMITTED_NAME and version is None else super().id_of(name, version)


def test_what_stands_in_the_outbox_is_read_by_asking_for_its_schema() -> None:
    """Behind a checkpoint nothing but the outbox reads that event again."""
    kept = registry()
    kept.register(EMITTED, EMITTED_NAME)
    theirs = Codec(WritesUnderItsIds(kept))
    asyncio.run(theirs.learn(EMITTED))
    lab = Lab(codec=theirs, partition_count=2)
    home = partition_for("a", 2)
    lab.broker.faults = Refuses(Topic.COMMANDS, home)
    put(lab, start("a"), partition=1 - home)
    first = lab.worker(app())
    assert wait(lab, 10, until=lambda: bool(warnings(lab, "R026")))
    lab.stop(first)
    lab.broker.faults = Faults()
    lab.worker(app(), name="second", codec=kept.codec())
    assert wait(lab, 30, until=lambda: bool(lab.broker.records(Topic.COMMANDS, home)))


def test_a_letter_is_cut_to_what_goes_into_a_batch() -> None:
    """One that is refused as too large would be tried for ever, and hold up all behind it."""
    lab = Lab()
    lab.broker.batch_size_max = 100_000
    put(lab, b"\x05" + bytes(90_000), key=b"a")
    put(lab, b"\x05short", key=b"a")
    lab.worker(app())
    assert wait(lab, 10, until=lambda: len(letters(lab)) == 2)
    assert [one["raw_whole"] for one in letters(lab)] == [False, True]
    assert warnings(lab, "R026") == []


def test_letters_that_go_together_go_into_a_batch() -> None:
    lab = Lab()
    bad = b"\x05" + bytes(9_000)
    put(lab, bad, key=b"a")
    lab.worker(app())
    assert wait(lab, 10, until=lambda: len(letters(lab)) == 1)
    (letter,) = lab.broker.records(Topic.DEAD_LETTERS, 0)
    lab.broker.faults = Refuses(Topic.DEAD_LETTERS, 0)
    lab.broker.batch_size_max = 2 * entry_size(Entry(letter.key, letter.value)) + 1
    for _ in range(2):
        put(lab, bad, key=b"a")
    lab.run(1)
    lab.broker.faults = Faults()
    assert wait(lab, 10, until=lambda: len(letters(lab)) == 3)


def test_a_partition_that_takes_nothing_holds_up_no_other() -> None:
    lab = Lab(partition_count=3)
    stuck, free = (next(n for n in NAMES if partition_for(n, 3) == home) for home in (1, 2))
    lab.broker.faults = Refuses(Topic.COMMANDS, 1)
    put(lab, start(stuck), partition=0)
    put(lab, start(free), partition=0)
    put(lab, b"\x05bad", partition=0)
    lab.worker(app())
    assert wait(lab, 10, until=lambda: free in fold_of(lab, 2).runs and len(letters(lab)) == 1)
    assert wait(lab, 10, until=lambda: len(warnings(lab, "R026")) == 1)
    lab.broker.faults = Faults()
    assert wait(lab, 10, until=lambda: stuck in fold_of(lab, 1).runs)
    assert len(letters(lab)) == 1


def test_the_outbox_has_a_limit_and_the_next_commands_stay_in_the_log() -> None:
    lab = Lab(settings=WorkerSettings(outbox_max=3, queue_bytes_max=1))
    lab.broker.faults = Refuses(Topic.DEAD_LETTERS, 0)
    for _ in range(10):
        put(lab, b"\x05bad", key=b"a")
    put(lab, start("a"))
    lab.worker(app())
    lab.run(60)
    assert lab.fold().position.command_next == 3
    assert ["3 messages" in text for text in warnings(lab, "R026")].count(True) == 1
    lab.broker.faults = Faults()
    assert wait(lab, 30, until=lambda: lab.ended("a") and len(letters(lab)) == 10)


def test_that_a_decision_is_too_large_is_told_once_it_is_durable() -> None:
    talk = App("talk")

    @talk.run("say")
    async def say(ctx: RunContext, text: str) -> str:
        return text

    lab = Lab()
    lab.broker.batch_size_max = 4_000
    lab.worker(talk)
    assert wait(lab, 10, until=lambda: "claimed" in [one.kind for one in lab.told])
    lab.broker.faults = Refuses(Topic.EVENTS, 0)
    put(lab, StartRun("c", "a", "say", encode_value("x" * 5_000), None, "them"))
    lab.run(5)
    assert [one for one in lab.told if one.kind == "rejected"] == []
    lab.broker.faults = Faults()
    assert wait(lab, 20, until=lambda: len(letters(lab)) == 1)
    (told,) = [one.text for one in lab.told if one.kind == "rejected"]
    assert "too_large" in told


def test_what_stands_outside_the_claim_rule_parks_nothing_and_sends_nothing() -> None:
    """Nobody of ours writes it: the owner passes it by, and so does every other reader."""
    broker = MemoryBroker("lab")
    writer = writer_for(broker, "a")
    writer.claim()
    writer.report("a", CommandParked(0, b"a", 7, "waiting", "?"), writer.claim_id, 0)
    writer.report("a", CommandRejected("c", "", 0, "undecodable", "?", None), writer.claim_id, 0)
    fold = PartitionFold(CODEC)
    fold.apply_all(broker.records(Topic.EVENTS, 0))
    assert fold.orders.kept() == NOTHING


def test_parked_commands_with_long_keys_still_go_into_a_checkpoint() -> None:
    kept = registry(away=True)
    settings = WorkerSettings(checkpoint_ms=1_000, parked_bytes_max=10_000)
    lab = Lab(codec=kept.codec(), settings=settings)
    lab.broker.batch_size_max = 16_000
    for number in range(30):
        put(lab, start(f"a{number}"), schema_id=START, key=b"%d" % number + b"k" * 700)
    lab.worker(app())
    lab.run(10)
    assert 10 < lab.fold().position.command_next < 20
    assert len(warnings(lab, "R025")) == 1
    assert warnings(lab, "R016") == [], "checkpoints are written"
    kept.away = False
    assert wait(lab, 60, until=lambda: all(lab.ended(f"a{n}") for n in range(30)))
    assert lab.fold().orders.parked_bytes == 0
