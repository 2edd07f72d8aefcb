"""Rejected commands: which there are, and publishing one of them again."""

import uuid
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from refold.client.client import Client
from refold.client.orders import OrderRecord, decided_before, letters_of, raw_of, rejected_at
from refold.client.outbox import Outbox
from refold.client.pending import decided, is_certain
from refold.log import Topic
from refold_projections.fold import RunState
from refold_projections.fold.orders import APPLIED_BEFORE
from refold_schemas.commands import Command, StartRun, check_texts, too_long
from refold_schemas.errors import BadRunId, SchemaUnavailable, UndecodableRecord
from refold_schemas.errors.cli import (
    CommandGone,
    CommandHopeless,
    CommandNotRejected,
    UsageRefused,
)
from refold_schemas.events import CommandRejected
from refold_schemas.values import check_run_id

REASONS = (
    *("duplicate", "run_exists", "run_exists_other_input", "unknown_run", "run_ended"),
    *("unknown_function", "input_invalid", "not_in_doubt", "other_attempt", "too_early"),
    *("nothing_to_retry", "undecodable", "too_large", "misplaced", "gone", "unknown_slot"),
    *("nothing_to_settle", "unsigned", "bad_signature"),
)
"""What `CommandRejected.reason` may be."""


class Again(NamedTuple):
    """A command that was published again: what, where to, and whether under a new id."""

    command: Command
    partition: int
    fresh: bool


async def publish_again(client: Client, partition: int, offset: int, *, by: str | None) -> Again:
    """Publish the rejected command that stands there to the partition of its run.

    With a command id of its own where the run remembers that the first one was refused, and with
    `by` instead of who sent it first: whoever publishes it speaks for it now. None leaves who sent
    it, which is for those alone who sign nothing and have verified nobody. Raises
    CommandNotRejected, CommandGone, CommandHopeless, UsageRefused, SchemaUnavailable,
    BadCommandText.
    """
    data = await _rejected_bytes(client, partition, offset)
    command = await _readable(client, data, partition, offset)
    state = await client.find(command.run_id)
    problem = _problem(state, command)
    if problem is not None:
        raise CommandHopeless(partition, offset, problem)
    fresh = state is not None and command.command_id in state.commands
    if fresh:
        command = replace(command, command_id=str(uuid.uuid4()))
    if by is not None:
        command = replace(command, by=by)
    check_texts(command)
    place = client.partition_of(command.run_id)
    outbox = Outbox(client.log, client.codec, place, client.signer)
    try:
        await outbox.send(command)
        client.sent[type(command).__name__] += 1
    finally:
        await outbox.close()
    return Again(command, place, fresh)


async def is_archived(client: Client) -> bool:
    """Whether events are in the log no more."""
    for partition in range(client.log.facts.partition_count):
        if (await client.log.bounds(Topic.EVENTS, partition))[0] > 0:
            return True
    return False


def is_start(event: CommandRejected) -> bool:
    """Whether it was to start a run, and was refused for another reason than that there is one."""
    return event.command_type == "StartRun" and not event.reason.startswith("run_exists")


async def begun_since(client: Client, one: OrderRecord, event: CommandRejected) -> bool:
    """Whether a run that was not started then exists by now: nothing is to be repaired."""
    if one.run_id is None or not is_start(event):
        return False
    try:
        return await client.find(one.run_id) is not None
    except BadRunId:
        return False


async def rejections(
    client: Client, reasons: Collection[str] | None, run_id: str | None, *, everything: bool
) -> list[OrderRecord]:
    """The latest first."""
    found = []
    for partition in range(client.log.facts.partition_count):
        async for one in client.orders(partition):
            if not isinstance(one.event, CommandRejected):
                continue
            why = one.event.reason
            if reasons and why not in reasons:
                continue
            if why in APPLIED_BEFORE and not everything and not reasons:
                continue
            if run_id is None or one.run_id == run_id:
                found.append(one)
    return sorted(found, key=lambda one: (-one.at_ms, one.partition, -one.offset))


async def _rejected_bytes(client: Client, partition: int, offset: int) -> bytes:
    """The whole command there, which was rejected.

    Raises CommandNotRejected, CommandGone, UsageRefused for a partition that there is not.
    """

    log, count = client.log, client.log.facts.partition_count
    if partition >= count:
        raise UsageRefused(
            f"there is no partition {partition}: {log.facts.namespace} has {count}, from 0 on",
            "refold commands republish",
        )
    found = await rejected_at(log, client.codec, partition, offset)
    event = None if found is None else found.event
    if event is None and not await letters_of(log, partition, offset):
        raise await _not_rejected(client, partition, offset)
    assert event is None or isinstance(event, CommandRejected)
    data = await raw_of(log, partition, offset, event)
    if data is None:
        raise CommandGone(partition, offset)
    return data


async def _not_rejected(client: Client, partition: int, offset: int) -> CommandNotRejected:

    start, end = await client.log.bounds(Topic.COMMANDS, partition)
    fold = await client.fold_of(partition)
    if offset >= end:
        known = f"the partition's commands end at {end}"
    elif offset in fold.parked:
        known = "it is parked, and is decided once its schema is known"
    elif offset >= fold.position.command_next:
        known = "it is not decided yet"
    elif offset < await decided_before(client.log, client.codec, partition):
        known = "it was applied, or its rejection is archived and there is no dead letter of it"
    elif offset < start:
        known = "whatever stood there is not kept any more, nor is a rejection of it"
    else:
        known = "it was applied"
    return CommandNotRejected(partition, offset, known)


async def _readable(client: Client, data: bytes, partition: int, offset: int) -> Command:
    """The command itself. Raises CommandHopeless, SchemaUnavailable."""
    try:
        try:
            command = client.codec.decode(data)
        except SchemaUnavailable as error:
            await client.codec.learn(error.schema_id)
            command = client.codec.decode(data)
        if not isinstance(command, Command):
            raise UndecodableRecord(f"{type(command).__name__} is no command")
        check_run_id(command.run_id)
    except (UndecodableRecord, BadRunId) as error:
        raise CommandHopeless(partition, offset, error.message) from error
    return command


def _problem(state: RunState | None, command: Command) -> str | None:
    """Why every worker would refuse it; None where one may take it."""
    problem = too_long(command)
    if problem is not None or state is None:
        return problem
    if isinstance(command, StartRun):
        return f"run {command.run_id} exists"
    # As another command: that the run remembers the id of this one is no reason.
    event = decided(state, replace(command, command_id=""))
    if isinstance(event, CommandRejected) and is_certain(state, command, event):
        return event.detail
    return None
