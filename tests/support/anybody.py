"""Commands as anybody publishes them, and what a log then says: for tests in the laboratory."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from refold import App, RunContext
from refold.log import partition_for
from refold.log.port import Entry, Topic
from refold_projections.fold import PartitionFold
from refold_schemas.commands import CancelRun, Command, StartRun
from refold_schemas.values import encode_value
from support.lab import CODEC, Lab
from support.scripted_registry import Kept

START, CANCEL, LATER = 7, 8, 9
"""Ids of a registry: of StartRun, CancelRun, and of one that is registered late or never."""
SCHEMAS = {START: "refold.commands.StartRun", CANCEL: "refold.commands.CancelRun"}


def app() -> App:
    made = App("anybody")

    @made.run("order")
    async def order(ctx: RunContext, pence: int) -> int:
        await ctx.sleep(timedelta(seconds=1))
        return pence

    @made.run("quick")
    async def quick(ctx: RunContext, pence: int) -> int:
        return pence

    return made


def start(run_id: str, command_id: str = "", *, run: str = "order") -> StartRun:
    return StartRun(command_id or f"start-{run_id}", run_id, run, encode_value(5), None, "them")


def cancel(run_id: str, command_id: str = "") -> CancelRun:
    return CancelRun(command_id or f"cancel-{run_id}", run_id, "them", "enough")


def framed(command: Command, schema_id: int | None) -> bytes:
    """The command's bytes, under an id of the registry's where one is given."""
    data = CODEC.encode(command)
    return data if schema_id is None else b"\0" + schema_id.to_bytes(4, "big") + data[5:]


def put(
    lab: Lab,
    command: Command | bytes,
    *,
    schema_id: int | None = None,
    partition: int | None = None,
    key: bytes | None = b"?",
) -> int:
    """Publish as anybody does; the key is the run_id unless another one is given."""
    count = lab.broker.partition_count
    data = command if isinstance(command, bytes) else framed(command, schema_id)
    if not isinstance(command, bytes):
        key = command.run_id.encode() if key == b"?" else key
        partition = partition_for(command.run_id, count) if partition is None else partition
    return lab.broker.put(Topic.COMMANDS, partition or 0, [Entry(key, data)])


def counted(lab: Lab, partition: int = 0) -> list[Any]:
    """The events of a partition that count, in log order, those of runs and of the partition."""
    fold = PartitionFold(CODEC)
    applied = [fold.apply(record) for record in lab.broker.records(Topic.EVENTS, partition)]
    return [one.event for one in applied if one.event is not None and one.verdict <= 2]


def of(kind: type, events: list[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def fold_of(lab: Lab, partition: int = 0) -> PartitionFold:
    fold = PartitionFold(CODEC)
    fold.apply_all(lab.broker.records(Topic.EVENTS, partition))
    return fold


def letters(lab: Lab, partition: int = 0) -> list[dict[str, Any]]:
    records = lab.broker.records(Topic.DEAD_LETTERS, partition)
    return [json.loads(record.value or b"") for record in records]


def warnings(lab: Lab, code: str) -> list[str]:
    return [event.text for event in lab.told if event.kind == "warning" and code in event.text]


def wait(lab: Lab, seconds: float, until: Callable[[], bool], *, every_s: float = 0.25) -> bool:
    """Look now and then: what is looked at is folded anew each time."""
    for _ in range(int(seconds / every_s)):
        if until():
            return True
        lab.run(every_s)
    return until()


def registry(*, away: bool = False) -> Kept:
    kept = Kept()
    kept.away = away
    for schema_id, name in SCHEMAS.items():
        kept.register(schema_id, name)
    return kept
