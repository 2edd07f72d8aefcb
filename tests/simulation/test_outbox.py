"""What an owner owes to others leaves, whatever the log or the registry shows for a moment."""

from collections.abc import Sequence

import pytest

from refold.log.memory import MemoryLog
from refold.log.port import Record, Topic
from refold_schemas.events import CommandRejected
from simulation.test_commands_from_anybody import (
    START,
    app,
    counted,
    letters,
    of,
    put,
    registry,
    start,
    wait,
    warnings,
)
from support.lab import Lab


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


def test_a_parked_command_that_the_log_does_not_show_yet_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behind = Behind(monkeypatch)
    kept = registry(away=True)
    lab = Lab(codec=kept.codec())
    put(lab, start("a"), schema_id=START)
    first = lab.worker(app())
    assert wait(lab, 10, until=lambda: bool(lab.fold().parked))
    first.kill()
    kept.away = False
    behind.ends[Topic.COMMANDS] = 0
    lab.codec = kept.codec()
    lab.worker(app(), name="second")
    lab.run(20)
    assert list(lab.fold().parked) == [0]
    behind.ends.clear()
    assert wait(lab, 30, until=lambda: lab.ended("a"))
    assert of(CommandRejected, counted(lab)) == []
    assert len(warnings(lab, "R024")) == 2, "the registry's outage, and the log's"


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
