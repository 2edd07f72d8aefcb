"""`refold commands`: which commands were rejected, and publishing one of them again."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from refold_tools.cli.inputs import check_one_of, zone_of
from refold_tools.cli.options import JsonOption, LogOption, TimeZoneOption

if TYPE_CHECKING:
    from refold.client import Client
    from refold.client.orders import OrderRecord
    from refold_projections.fold import RunState
    from refold_schemas.commands import Command
    from refold_schemas.errors.cli import CommandNotRejected
    from refold_schemas.events import CommandRejected

commands = typer.Typer(
    help="List rejected commands, or publish one again.",
    no_args_is_help=True,
    add_completion=False,
)


REASONS = (
    *("duplicate", "run_exists", "run_exists_other_input", "unknown_run", "run_ended"),
    *("unknown_function", "input_invalid", "not_in_doubt", "other_attempt", "too_early"),
    *("nothing_to_retry", "undecodable", "too_large", "misplaced", "gone", "unknown_slot"),
    "nothing_to_settle",
)
"""What `CommandRejected.reason` may be."""


@commands.command("rejected")
def rejected(
    reason: Annotated[
        list[str] | None,
        typer.Option("--reason", help="Only rejections with this reason (may be repeated)."),
    ] = None,
    run: Annotated[
        str | None, typer.Option("--run-id", metavar="RUN_ID", help="Only those of this run.")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also those that lost nothing: duplicate, run_exists."),
    ] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="At most so many, the latest first.")
    ] = 100,
    time_zone: TimeZoneOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """List commands that were rejected: where they are, when, why, what they were, for which run.

    Exit 0, whether or not there are any.
    """
    from refold_tools.cli.asking import ask, now

    zone = zone_of(time_zone)
    for one in reason or ():
        check_one_of("--reason", one, REASONS, "refold commands rejected")

    async def work(client: "Client") -> int:
        from refold_projections.fold import moment_near
        from refold_schemas.errors.base import told
        from refold_schemas.events import CommandRejected
        from refold_tools.cli.output import print_json, say, table
        from refold_tools.cli.plain import iso

        found = await _rejections(client, reason, run, everything=everything)
        shown = found[:limit]
        events = [one.event for one in shown if isinstance(one.event, CommandRejected)]
        both = list(zip(shown, events, strict=True))
        begun = {one.run_id for one, event in both if await _begun_since(client, one, event)}
        if as_json:
            print_json(
                {
                    "rejected": [
                        {
                            "partition": one.partition,
                            "offset": event.command_offset,
                            "at": iso(one.at_ms, zone),
                            "reason": event.reason,
                            "detail": event.detail,
                            "command_type": event.command_type or None,
                            "command_id": event.command_id or None,
                            "run_id": one.run_id,
                            "event_offset": one.offset,
                            "run_exists_now": one.run_id in begun if _starts(event) else None,
                        }
                        for one, event in both
                    ],
                    "total": len(found),
                }
            )
            return 0
        if not found:
            archived = await _is_archived(client)
            say("no command was rejected" + (", in what the log still holds" if archived else ""))
            return 0
        now_ms = now()
        table(
            ["PARTITION", "OFFSET", "AT", "COMMAND", "RUN", "REASON", "WHY"],
            (
                [
                    str(one.partition),
                    str(event.command_offset),
                    moment_near(one.at_ms, zone, now_ms),
                    event.command_type or "unreadable",
                    one.run_id or "",
                    event.reason,
                    ("the run exists now: " if _starts(event) and one.run_id in begun else "")
                    + told(event.detail).brief,
                ]
                for one, event in both
            ),
            {},
            prose=True,
        )
        if len(found) > len(shown):
            say(f"{len(found) - len(shown)} earlier ones are not shown: --limit {len(found)}")
        return 0

    return ask(log, work)


async def _is_archived(client: "Client") -> bool:
    """Whether events are in the log no more."""
    from refold.log import Topic

    for partition in range(client.log.facts.partition_count):
        if (await client.log.bounds(Topic.EVENTS, partition))[0] > 0:
            return True
    return False


def _starts(event: "CommandRejected") -> bool:
    """Whether it was to start a run, and was refused for another reason than that there is one."""
    return event.command_type == "StartRun" and not event.reason.startswith("run_exists")


async def _begun_since(client: "Client", one: "OrderRecord", event: "CommandRejected") -> bool:
    """Whether a run that was not started then exists by now: nothing is to be repaired."""
    from refold_schemas.errors import BadRunId

    if one.run_id is None or not _starts(event):
        return False
    try:
        return await client.find(one.run_id) is not None
    except BadRunId:
        return False


async def _rejections(
    client: "Client", reasons: list[str] | None, run_id: str | None, *, everything: bool
) -> "list[OrderRecord]":
    """The latest first."""
    from refold_projections.fold.orders import APPLIED_BEFORE
    from refold_schemas.events import CommandRejected

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


@commands.command("republish")
def republish(
    partition: Annotated[
        int, typer.Argument(metavar="PARTITION", min=0, help="Where it was found.")
    ],
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Its offset there.")],
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Publish a rejected command again, to the partition of its run.

    With a command id of its own where the run remembers that the first one was refused. What would
    surely be refused again is not sent.
    """
    from refold_tools.cli.asking import ask

    async def work(client: "Client") -> int:
        from refold.client.outbox import Outbox
        from refold_tools.cli.output import print_json, say

        data = await _rejected_bytes(client, partition, offset)
        command = await _readable(client, data, partition, offset)
        state = await client.find(command.run_id)
        problem = _problem(state, command)
        if problem is not None:
            from refold_schemas.errors.cli import CommandHopeless

            raise CommandHopeless(partition, offset, problem)
        fresh = state is not None and command.command_id in state.commands
        if fresh:
            import uuid

            command = replace(command, command_id=str(uuid.uuid4()))
        place = client.partition_of(command.run_id)
        outbox = Outbox(client.log, client.codec, place)
        try:
            await outbox.send(command)
        finally:
            await outbox.close()
        kind = type(command).__name__
        if as_json:
            print_json(
                {
                    "command_type": kind,
                    "command_id": command.command_id,
                    "run_id": command.run_id,
                    "partition": place,
                    "fresh_id": fresh,
                }
            )
            return 0
        under = f" under the new id {command.command_id}" if fresh else ""
        say(f"{kind} for run {command.run_id} is published again, to partition {place}{under}")
        say(f"its owner decides it: `refold history {command.run_id}`")
        return 0

    return ask(log, work)


async def _rejected_bytes(client: "Client", partition: int, offset: int) -> bytes:
    """The whole command there, which was rejected.

    Raises CommandNotRejected, CommandGone, UsageRefused for a partition that there is not.
    """
    from refold.client.orders import letters_of, raw_of, rejected_at
    from refold_schemas.errors.cli import CommandGone, UsageRefused
    from refold_schemas.events import CommandRejected

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


async def _not_rejected(client: "Client", partition: int, offset: int) -> "CommandNotRejected":
    from refold.client.orders import decided_before
    from refold.log import Topic
    from refold_schemas.errors.cli import CommandNotRejected

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


async def _readable(client: "Client", data: bytes, partition: int, offset: int) -> "Command":
    """The command itself. Raises CommandHopeless, SchemaUnavailable."""
    from refold_schemas.commands import CancelRun, ResolveStep, RetryRun, StartRun
    from refold_schemas.errors import BadRunId, SchemaUnavailable, UndecodableRecord
    from refold_schemas.errors.cli import CommandHopeless
    from refold_schemas.values import check_run_id

    try:
        try:
            command = client.codec.decode(data)
        except SchemaUnavailable as error:
            await client.codec.learn(error.schema_id)
            command = client.codec.decode(data)
        if not isinstance(command, StartRun | ResolveStep | CancelRun | RetryRun):
            raise UndecodableRecord(f"{type(command).__name__} is no command")
        check_run_id(command.run_id)
    except (UndecodableRecord, BadRunId) as error:
        raise CommandHopeless(partition, offset, error.message) from error
    return command


def _problem(state: "RunState | None", command: "Command") -> str | None:
    """Why every worker would refuse it; None where one may take it."""
    from refold.engine.intake import too_long
    from refold_schemas.commands import StartRun
    from refold_schemas.events import CommandRejected
    from refold_tools.cli.pending import decided, is_certain

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
