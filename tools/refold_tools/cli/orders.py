"""`refold commands`: which commands were rejected, and publishing one of them again."""

from typing import TYPE_CHECKING, Annotated

import typer

from refold_schemas.errors.shell import shell_line
from refold_tools.cli.inputs import check_one_of, zone_of
from refold_tools.cli.options import (
    LIMIT,
    JsonOption,
    LimitOption,
    LogOption,
    TimeZoneOption,
    asker,
)

if TYPE_CHECKING:
    from refold.client import Client

commands = typer.Typer(
    help="List rejected commands, or publish one again.",
    no_args_is_help=True,
    add_completion=False,
)


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
    limit: LimitOption = LIMIT,
    time_zone: TimeZoneOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """List commands that were rejected: where they are, when, why, what they were, for which run.

    Exit 0, whether or not there are any.
    """
    from refold.client.rejected import REASONS
    from refold_tools.cli.asking import ask, now

    zone = zone_of(time_zone)
    for one in reason or ():
        check_one_of("--reason", one, REASONS, "refold commands rejected")

    async def work(client: "Client") -> int:
        from refold.client.rejected import begun_since, is_archived, is_start, rejections
        from refold_projections.fold import moment_near
        from refold_projections.fold.plain import iso
        from refold_schemas.errors.base import told
        from refold_schemas.events import CommandRejected
        from refold_tools.cli.output import print_json, say, table

        found = await rejections(client, reason, run, everything=everything)
        shown = found[:limit]
        events = [one.event for one in shown if isinstance(one.event, CommandRejected)]
        both = list(zip(shown, events, strict=True))
        begun = {one.run_id for one, event in both if await begun_since(client, one, event)}
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
                            "run_exists_now": one.run_id in begun if is_start(event) else None,
                        }
                        for one, event in both
                    ],
                    "total": len(found),
                }
            )
            return 0
        if not found:
            archived = await is_archived(client)
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
                    (
                        "the run exists now; refused then: "
                        if is_start(event) and one.run_id in begun
                        else ""
                    )
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
        from refold.client.rejected import publish_again
        from refold_tools.cli.output import print_json, say

        # Who signs it speaks for it: no longer who sent it first, whoever that said to be.
        by = asker(None) if client.signer is not None else None
        again = await publish_again(client, partition, offset, by=by)
        command, place, fresh = again.command, again.partition, again.fresh
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
        say(f"its owner decides it: `{shell_line('refold history', command.run_id)}`")
        return 0

    return ask(log, work)


@commands.command("make-key")
def make_key(
    key_id: Annotated[
        str, typer.Argument(metavar="ID", help="Its name: letters, digits, dots, dashes.")
    ],
    speaks_for: Annotated[
        str,
        typer.Option(
            "--speaks-for",
            metavar="WHO",
            help="Who is recorded for its commands; * for a gateway, which verifies callers.",
        ),
    ],
    algorithm: Annotated[
        str, typer.Option("--algorithm", help="ed25519, or hmac-sha256.")
    ] = "ed25519",
    as_json: JsonOption = False,
) -> int:
    """Make a key for signing commands: what its holder keeps, and the line for the workers' file.

    Both are shown this once and kept nowhere.
    """
    import json

    from refold.settings.signing import KEYS_VARIABLE, SIGNING_VARIABLE
    from refold.settings.signing import make_key as make
    from refold_schemas.errors.cli import UsageRefused
    from refold_tools.cli.output import print_json, say

    try:
        kept, line = make(key_id, algorithm, speaks_for)
    except ValueError as error:
        raise UsageRefused(str(error), "refold commands make-key") from None
    if as_json:
        print_json({"signing_key": kept, "command_keys_line": line})
        return 0
    say(f"for its holder, the file that {SIGNING_VARIABLE} names:", "bold", error=True)
    print(json.dumps(kept))
    say(f'for workers, in the "keys" of the file that {KEYS_VARIABLE} names:', "bold", error=True)
    print(json.dumps(line))
    return 0
