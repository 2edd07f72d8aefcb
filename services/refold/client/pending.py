"""Commands of a run that stand in the log: what waits for a worker, what was or will be refused."""

import time
from collections.abc import Callable, Sequence
from datetime import tzinfo
from typing import NamedTuple

from refold.client.client import Client
from refold.engine import decide
from refold.log import Topic
from refold_projections.fold import ParkedCommand, RunState, moment_near
from refold_schemas.codec.learning import decode
from refold_schemas.commands import (
    CancelRun,
    Command,
    RecordFinding,
    ResolveStep,
    RetryRun,
)
from refold_schemas.errors import SchemaUnavailable, UndecodableRecord
from refold_schemas.errors.base import told
from refold_schemas.errors.cli import REFUSALS, CommandRefused, RunUnknown
from refold_schemas.errors.shell import shell_arguments
from refold_schemas.events import CommandRejected

CERTAIN = frozenset({"unknown_run", "run_ended"})
"""Reasons that no worker's work can take away any more."""

MENDED_BY_CODE = frozenset({"unknown_function", "input_invalid"})
"""Reasons of a refused start that a worker with other code may not have."""


class Waiting(NamedTuple):
    """A command that nobody has decided, and when it was appended."""

    command: Command
    at_ms: int


class Refused(NamedTuple):
    """The last refusal that the run's record holds."""

    event: CommandRejected
    at_ms: int


async def waiting_for(client: Client, run_id: str, command_next: int) -> list[Waiting]:
    """The run's commands from that offset on, in log order."""
    partition = client.partition_of(run_id)
    start, end = await client.log.bounds(Topic.COMMANDS, partition)
    offset, found = max(start, command_next), []
    while offset < end:
        records = await client.log.read(Topic.COMMANDS, partition, offset)
        if not records:
            break
        for record in records:
            try:
                command = await decode(client.codec, record.value or b"")
            except (UndecodableRecord, SchemaUnavailable):
                continue  # its owner will say so, or park it
            if isinstance(command, Command) and command.run_id == run_id:
                found.append(Waiting(command, record.append_ms))
        offset = records[-1].offset + 1
    return found


async def last_refused(client: Client, run_id: str, kind: str = "") -> Refused | None:
    """The latest refusal of a command for the run, or of that kind; reads its whole history."""
    found = None
    async for record in client.history(run_id):
        event = record.event
        if not record.counted or not isinstance(event, CommandRejected):
            continue
        if kind in ("", event.command_type):
            found = Refused(event, record.at_ms)
    return found


def waiting_words(one: Waiting, zone: tzinfo, now_ms: int) -> str:
    """`ResolveStep charge#1 (happened, by ada, 14:07:09) waits for a worker`."""
    command = one.command
    name = type(command).__name__
    said = ""
    if isinstance(command, ResolveStep):
        name += f" {command.slot}"
        said = "happened, " if command.happened else "did not happen, "
    at = moment_near(one.at_ms, zone, now_ms)
    return f"{name} ({said}by {command.by}, {at}) waits for a worker"


def parked_words(found: Sequence[ParkedCommand], zone: tzinfo, now_ms: int) -> list[str]:
    """`1 command with its key is parked since 14:07:09, for schema id 7 (R024)`, or nothing."""
    if not found:
        return []
    since = moment_near(min(one.since_ms for one in found), zone, now_ms)
    count = len(found)
    what = "1 command with its key is" if count == 1 else f"{count} commands with its key are"
    return [f"{what} parked since {since}, until schema id {found[0].schema_id} is known (R024)"]


async def orders_of(client: Client, run_id: str, zone: tzinfo) -> tuple[str, ...]:
    """Sentences on commands for the run: those that wait, and the last one that was refused.

    Raises RunUnknown, which says what waits to start it, or why its start was refused.
    """

    now_ms = time.time_ns() // 1_000_000
    state = await client.find(run_id)
    if state is None:
        raise await _unknown(client, run_id, zone, now_ms)
    seen = await client.boundary_at(run_id)
    waiting = await waiting_for(client, run_id, seen.command_next) if seen.commands_waiting else []
    said = [f"{one}." for one in parked_words(seen.commands_parked, zone, now_ms)]
    said += [f"{waiting_words(one, zone, now_ms)}." for one in waiting]
    if state.ended is not None and state.ended.status != "failed":
        return tuple(said)
    refused = await last_refused(client, run_id)
    if refused is not None:
        event = refused.event
        at = moment_near(refused.at_ms, zone, now_ms)
        said.append(
            f"The last command for it that was refused: {event.command_type} at {at} "
            f"({event.reason}): {told(event.detail).brief}."
        )
    return tuple(said)


async def _unknown(client: Client, run_id: str, zone: tzinfo, now_ms: int) -> RunUnknown:
    """Of a run that is not there: what waits to start it, or why its start was refused."""
    partition = client.partition_of(run_id)
    fold = await client.fold_of(partition)
    waiting = await waiting_for(client, run_id, fold.position.command_next)
    held = [one for one in fold.parked.values() if one.key == run_id.encode()]
    named = [waiting_words(one, zone, now_ms) for one in waiting]
    then, said = RunUnknown.compare, ""
    refused = await last_refused(client, run_id, "StartRun")
    if refused is not None:
        event = refused.event
        at = moment_near(refused.at_ms, zone, now_ms)
        said = f"its StartRun was rejected at {at} ({event.reason}): {told(event.detail).brief}"
        kind = REFUSALS.get(event.reason, CommandRefused)
        then = kind.advice_other.get(event.reason, kind.advice)
        then = then.replace("RUN_ID", shell_arguments(run_id))
        if event.reason in MENDED_BY_CODE:
            again = f"`refold commands republish {partition} {event.command_offset}`"
            then += f"; or, if the worker's code was wrong, deploy it and {again}"
    if held or named:
        lives = await client.owner_lives(partition)
        start = "start a worker: `refold worker MODULE:APP`"
        then = "wait: a live worker owns its partition; `refold doctor` says more if it stays so"
        if held:
            then = f"see that the registry answers and has schema id {held[0].schema_id}"
            then += "; it is decided by itself then (docs/errors/R024.md)"
            then += "" if lives else f"; and {start}"
        elif not lives:
            then = start
    waits = "; ".join([*parked_words(held, zone, now_ms), *named])
    return RunUnknown(run_id, client.log.facts.namespace, waiting=waits, refused=said, next=then)


async def refuse_in_advance(
    client: Client,
    command: ResolveStep | RetryRun | CancelRun,
    note: Callable[[str], None] | None = None,
) -> None:
    """Where no worker lives, refuse at once what every worker will refuse, without sending it.

    What may change before it is decided (a command waits before it, a step goes on) is told to
    `note` and sent. Raises RunUnknown, RunOver, StepNotInDoubt.
    """

    partition = client.partition_of(command.run_id)
    if await client.owner_lives(partition) is not False:
        return
    state = await client.find(command.run_id)
    event = decided(state, command)
    if not isinstance(event, CommandRejected) or event.reason == "duplicate":
        return
    fold = await client.fold_of(partition)
    before = await waiting_for(client, command.run_id, fold.position.command_next)
    if not before and is_certain(state, command, event):
        raise client.refusal(command, event, sent=False)
    if note is not None:
        note(f"at the log's end {event.detail}; a worker will refuse it if it stays so")


def decided(
    state: RunState | None, command: ResolveStep | RetryRun | CancelRun | RecordFinding
) -> object:
    """What an owner would decide now."""
    if isinstance(command, CancelRun):
        return decide.cancel_run(state, command, 0)[0]
    if isinstance(command, RetryRun):
        return decide.retry_run(state, command, 0)[0]
    if isinstance(command, RecordFinding):
        return decide.record_finding(state, command, 0)[0]
    return decide.resolve_step(state, command, 0, under_way=False, believe_in_ms=0)[0]


def is_certain(state: RunState | None, command: Command, event: CommandRejected) -> bool:
    """Whether no worker's work can take a refusal away any more."""
    if event.reason in CERTAIN:
        return True
    if event.reason != "not_in_doubt" or state is None or not isinstance(command, ResolveStep):
        return False
    slot = state.slots.get(command.slot)
    return slot is None or slot.outcome is not None
