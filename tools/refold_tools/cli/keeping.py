"""The commands about a namespace: made, shown and upgraded."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_tools.cli.options import JsonOption, LogOption, asker

if TYPE_CHECKING:
    from refold.client.claims import ClaimSeen
    from refold.log import Log

namespace = typer.Typer(
    help="Make, show or upgrade a namespace of a log.", no_args_is_help=True, add_completion=False
)


@namespace.command("create")
def create(log: LogOption = None, as_json: JsonOption = False) -> int:
    """Make the log and its topics where they are missing; `?partitions=N` in its URL counts."""
    return asyncio.run(_create(log, as_json=as_json))


@namespace.command("show")
def show(log: LogOption = None, as_json: JsonOption = False) -> int:
    """Show a namespace: its topics and their settings, and who owns each partition with what."""
    return asyncio.run(_show(log, as_json=as_json))


@namespace.command("upgrade")
def upgrade(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be changed, and change nothing.")
    ] = False,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Bring a namespace to what this version wants: topics, settings, partitions; says each change.

    Makes missing topics but those of commands and events, corrects settings, and adopts partitions
    that somebody has added: runs stay in those that they are in.
    """
    return asyncio.run(_upgrade(log, dry_run=dry_run, as_json=as_json))


async def _create(given: str | None, *, as_json: bool) -> int:
    from refold.log import open_log
    from refold.settings import log_url
    from refold_tools.cli.output import print_json, say
    from refold_tools.cli.registering import make_ready

    log = open_log(log_url(given))
    made = await log.open(create=True)
    try:
        await make_ready(log.url)
        topics = await _topics(log)
        if as_json:
            print_json({"log": log.url, "made": made, **_said_of(log, topics)})
            return 0
        name = log.facts.namespace
        say(f"{'made' if made else 'there already:'} namespace {name} in {log.url}")
        _say_topics(log, topics)
        return 0
    finally:
        await log.close()


async def _show(given: str | None, *, as_json: bool) -> int:
    from refold.client.client import Client
    from refold.log import open_log
    from refold.settings import log_url
    from refold_tools.cli.output import ReadingProgress, print_json

    log = open_log(log_url(given))
    await log.open(create=False)
    progress = ReadingProgress()
    try:
        async with Client(log, on_progress=progress) as client:
            routed = client.routed
            claims = await client.claims()
        progress.end()
        topics = await _topics(log)
        if as_json:
            print_json(
                {
                    "log": log.url,
                    "made": False,
                    **_said_of(log, topics),
                    "routed": routed,
                    "claims": [_claim_json(one) for one in claims],
                }
            )
            return 0
        _say_topics(log, topics)
        _say_claims(log, routed, claims)
        return 0
    finally:
        progress.end()
        await log.close()


async def _topics(log: "Log") -> dict[str, Any]:
    """Each topic's name with what is known of it."""
    from refold.log import Topic

    facts = log.facts
    counts = facts.partition_counts or (facts.partition_count,) * len(Topic)
    settings = facts.settings or ({},) * len(Topic)
    found: dict[str, Any] = {}
    for topic, id_, count, has in zip(Topic, facts.topic_ids, counts, settings, strict=True):
        bounds = [await log.bounds(topic, partition) for partition in range(count)]
        name = f"{facts.namespace}.{topic.value}"
        found[name] = {
            "id": id_,
            "partitions": count,
            "settings": dict(has),
            "bounds": [list(one) for one in bounds],
        }
    return found


def _said_of(log: "Log", topics: dict[str, Any]) -> dict[str, Any]:
    facts = log.facts
    return {
        "namespace": facts.namespace,
        "partitions": facts.partition_count,
        "batch_size_max": facts.batch_size_max,
        "brokers": facts.broker_count,
        "topics": topics,
        "problems": list(facts.unsafe),
    }


def _say_topics(log: "Log", topics: dict[str, Any]) -> None:
    from refold_tools.cli.output import BAD, say

    facts = log.facts
    say(
        f"namespace {facts.namespace}, {facts.partition_count} partition(s), "
        f"batches up to {facts.batch_size_max} bytes"
    )
    width = max(len(name) for name in topics)
    for name, one in topics.items():
        count = sum(end - start for start, end in one["bounds"])
        say(
            f"  {name:<{width}}  {one['partitions']:>4} partition(s)  {count:>10,} offsets in use  "
            f"id {one['id']}"
        )
        if one["settings"]:
            say("      " + " ".join(f"{k}={v}" for k, v in one["settings"].items()), "dim")
    for problem in facts.unsafe:
        say(f"cannot hold what is promised: {problem} (R316)", BAD)
    if facts.settings and not facts.unsafe:
        say("the settings hold what is promised", "green")


def _claim_json(one: "ClaimSeen") -> dict[str, Any]:
    facts, position, claimed = one.fold.facts, one.fold.position, one.claimed
    return {
        "partition": one.partition,
        "owner": facts.owner,
        "owner_lives": one.owner_lives,
        "released": facts.released,
        "claim": position.claim_id.hex() if position.claim_epoch else "",
        "epoch": position.claim_epoch,
        "app": facts.app,
        "engine": claimed.engine if claimed else None,
        "versions": list(claimed.versions) if claimed else [],
        "format_level": facts.format_level,
        "lag": one.lag,
        "offset": position.offset_next,
    }


def _say_claims(log: "Log", routed: int, claims: "list[ClaimSeen]") -> None:
    from refold_tools.cli.output import BAD, say, table

    facts = log.facts
    if facts.partition_counts and routed != facts.partition_count:
        adopted = claims[-1].fold.position.claim_epoch > 0
        say(
            f"runs are routed over {routed} partitions; what is sent to the others is forwarded"
            if adopted
            else f"runs are routed over {routed} partitions, and nobody has adopted the others: "
            "`refold namespace upgrade` (R320)",
            "" if adopted else BAD,
        )
    rows = []
    for one in claims:
        of = one.fold.facts
        state = "never claimed"
        if one.fold.position.claim_epoch:
            state = {True: "alive", False: "gone", None: "not heard of"}[one.owner_lives]
            state = "released" if of.released else state
        engine = one.claimed.engine if one.claimed else ""
        level = str(of.format_level or "")
        rows.append(
            [
                *(str(one.partition), of.owner, state, str(one.fold.position.claim_epoch)),
                *(str(one.lag), level, engine, of.app),
                ", ".join(one.claimed.versions if one.claimed else ()),
            ]
        )
    columns = ["P", "OWNER", "STATE", "EPOCH", "LAG", "LEVEL", "REFOLD", "APP", "VERSIONS"]
    table(columns, rows, {2: {"gone": "yellow", "not heard of": "bold red"}})


async def _upgrade(given: str | None, *, dry_run: bool, as_json: bool) -> int:
    from refold import __version__
    from refold.client.client import Client
    from refold.engine.adopting import adopt, to_adopt
    from refold.log import open_log
    from refold.settings import log_url
    from refold_schemas.errors import LogMissing
    from refold_tools.cli.output import print_json, say

    url = log_url(given)
    done = await open_log(url).upgrade(dry_run=dry_run)
    log = open_log(url)
    changes, routed = list(done.changes), None
    adopted: tuple[int, ...] = ()
    try:
        await log.open(create=False)
    except LogMissing:
        if not dry_run:
            raise  # else a topic is missing that the upgrade would make: so nothing more is known
    else:
        try:
            async with Client(log) as client:
                routed = client.routed
                if dry_run:
                    adopted = await to_adopt(log, client.codec)
                else:
                    by = f"upgrade by {asker(None)}"
                    adopted = await adopt(log, client.codec, by=by, engine=__version__)
        finally:
            await log.close()
    if adopted:
        changes.append(
            f"partitions {adopted[0]} to {adopted[-1]} are adopted: runs stay routed over "
            f"{routed}, and what is sent to these is forwarded"
        )
    if as_json:
        print_json(
            {
                "log": url,
                "dry_run": dry_run,
                "changes": changes,
                "left": list(done.left),
                "adopted": list(adopted),
                "routed": routed,
            }
        )
        return 0
    for change in changes:
        say(f"{'would change' if dry_run else 'changed'}: {change}")
    for left in done.left:
        say(f"not corrected: {left}", "yellow")
    if not changes:
        say(f"{url} is as this version wants it" if not done.left else "nothing else to change")
    elif not dry_run:
        say("done: workers may start")
    return 0
