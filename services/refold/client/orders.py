"""What became of commands that were not simply applied: rejected, parked or sent on, as events say.

Unlike a run's history this reads whole partitions, since much of it names no run.
"""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from refold.client.judged import judged, position_at
from refold.engine.letters import is_whole
from refold.engine.lookup import Lookup
from refold.log import Log, Topic
from refold.log.port import Record
from refold_projections.fold import Verdict
from refold_schemas.codec import Codec
from refold_schemas.codec.learning import name_of
from refold_schemas.errors import PartitionMissing, UndecodableRecord
from refold_schemas.events import CommandEmitted, CommandParked, CommandRejected

NAMES = frozenset({"CommandRejected", "CommandParked", "CommandEmitted"})


@dataclass(frozen=True, slots=True)
class OrderRecord:
    """One such event that counts. `run_id` is None where none is known; `at_ms`: owner's clock."""

    partition: int
    offset: int
    at_ms: int
    run_id: str | None
    event: CommandRejected | CommandParked | CommandEmitted


async def read_orders(log: Log, codec: Codec, partition: int) -> AsyncIterator[OrderRecord]:
    """The events of a partition that are about such commands, in log order, up to its end now.

    Raises OffsetOutOfRange as `read_history`.
    """
    async for record, header, verdict in judged(log, codec, partition):
        if verdict is not Verdict.COUNTS or header is None:
            continue
        try:
            if await name_of(codec, record.value or b"") not in NAMES:
                continue
            event = codec.decode(record.value or b"")
        except UndecodableRecord:
            continue
        yield OrderRecord(partition, record.offset, header.at_ms, _run_id(record, event), event)


def _run_id(record: Record, event: object) -> str | None:
    if isinstance(event, CommandEmitted):
        return event.run_id
    key = event.key if isinstance(event, CommandParked) else record.key
    return None if key is None else key.decode("utf-8", "replace")


async def rejected_at(
    log: Log, codec: Codec, partition: int, command_offset: int
) -> OrderRecord | None:
    """The rejection of the command at this offset of the partition's commands, if it was rejected.

    One that was parked is found too.
    """
    found = None
    async for record in read_orders(log, codec, partition):
        event = record.event
        if isinstance(event, CommandRejected) and event.command_offset == command_offset:
            found = record
    return found


async def raw_of(
    log: Log, partition: int, command_offset: int, rejection: CommandRejected | None
) -> bytes | None:
    """The whole bytes of a rejected command: from where it was, its rejection, its dead letter.

    None where nobody has them any more. `rejection` is None where that is archived.
    """
    record = await Lookup(log, Topic.COMMANDS, partition).at(command_offset)
    if record is not None:
        return record.value or b""
    if rejection is not None and is_whole(rejection.raw):
        return rejection.raw
    found = await letters_of(log, partition, command_offset)
    return next((raw for raw in found if raw is not None), None)


async def letters_of(log: Log, partition: int, command_offset: int) -> list[bytes | None]:
    """The dead letters of a command: its bytes, None where a letter has not all of them.

    That there is one says that it was rejected, also where the events are archived.
    """
    place = (Topic.DEAD_LETTERS, partition)
    try:
        offset, end = await log.bounds(*place)
    except PartitionMissing:  # their topic may have fewer: such letters are in its first one
        place = (Topic.DEAD_LETTERS, 0)
        offset, end = await log.bounds(*place)
    found: list[bytes | None] = []
    while offset < end:
        letters = await log.read(*place, offset)
        if not letters:
            break
        for letter in letters:
            found += _raw_in(letter.value or b"", partition, command_offset)
        offset = letters[-1].offset + 1
    return found


def _raw_in(letter: bytes, partition: int, command_offset: int) -> list[bytes | None]:
    try:
        said = json.loads(letter)
        if (said["partition"], said["offset"]) != (partition, command_offset):
            return []
        if said["raw_whole"] is not True:
            return [None]
        return [base64.b64decode(said["raw"], validate=True)]
    except (ValueError, KeyError, TypeError):  # no letter of ours
        return []


async def decided_before(log: Log, codec: Codec, partition: int) -> int:
    """What the log's events say nothing of any more: commands before this offset."""
    start, end = await log.bounds(Topic.EVENTS, partition)
    return (await position_at(log, codec, partition, start, end)).command_next
