"""`refold doctor`: looks over settings, log, owners, clock, commands and runs, and judges them."""

import asyncio
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from refold_tools.cli.options import JsonOption, LogOption

if TYPE_CHECKING:
    from refold.client import Client
    from refold.log import Log
    from refold_schemas.errors import LogUnavailable, SchemaUnavailable

CLOCK_SKEW_MAX_MS = 5_000
"""What a worker refuses to serve with (design, section 3.1, rule 1)."""

ROOM_MIN_SIZE, ROOM_LOW_SIZE = 8 << 20, 256 << 20
"""Bytes: below the first the next batches may not fit, below the second it is time to make room."""

BROKERS_SAFE = 3
"""From this many on each event is on the disks of two before it is acknowledged."""

ASKED_AT_ONCE = 64
"""Partitions. One whose leader is away takes five seconds to say nothing."""

IDS_SHOWN = 10

TAIL = 64
"""Offsets at the end among which the last record is looked for first."""

OK, WRONG, NOTE = "ok", "wrong", "note"


class Finding(NamedTuple):
    """One thing that was looked at. `verdict`: ok, wrong (exit 1), or note (worth knowing)."""

    verdict: str
    what: str
    said: str
    next: str = ""


class Partition(NamedTuple):
    """What was seen of one partition. `lag` counts commands that nobody has decided yet.

    `parked` counts those that wait for a schema, `parked_since_ms` and `parked_ids` say since when
    and for which; `forwarded` those that were sent on to the partition of their run.
    """

    partition: int
    owner: str
    owner_lives: bool | None
    released: bool
    claim: str
    epoch: int
    claim_broken: bool
    offset: int
    command_next: int
    command_end: int
    skipped: dict[str, int]
    rejected: dict[str, int] | None
    forwarded: int
    parked: int
    parked_since_ms: int | None
    parked_ids: tuple[int, ...]
    dead_letters: int

    @property
    def lag(self) -> int:
        """Offsets between the last decided command and the log's end."""
        return max(0, self.command_end - self.command_next)


class Examined(NamedTuple):
    """The whole look: findings, and what they are drawn from."""

    findings: tuple[Finding, ...]
    partitions: tuple[Partition, ...]
    runs: dict[str, int]
    needs: dict[str, int]
    conflicts: tuple[str, ...]
    open_findings: tuple[dict[str, str], ...] = ()


def doctor(log: LogOption = None, as_json: JsonOption = False) -> int:
    """Look over settings, log, owners, clock, commands and runs. Exit 1 if anything is wrong."""
    from refold.settings import load_settings, log_url
    from refold_tools.cli.output import print_json, say

    settings = load_settings()
    url = log_url(log)
    examined = asyncio.run(_examine(url))
    wrong = any(one.verdict == WRONG for one in examined.findings)
    if as_json:
        print_json(
            {
                "ok": not wrong,
                "log": url,
                "time_zone": settings.time_zone,
                "findings": [one._asdict() for one in examined.findings],
                "partitions": [{**one._asdict(), "lag": one.lag} for one in examined.partitions],
                "runs": examined.runs,
                "needs": examined.needs,
                "conflicts": list(examined.conflicts),
                "open_findings": list(examined.open_findings),
            }
        )
        return int(wrong)
    styles = {OK: "green", WRONG: "bold red", NOTE: "yellow"}
    for one in examined.findings:
        say(f"{one.verdict:<5}  {one.what:<9}  {one.said}", styles[one.verdict])
        if one.next:
            say(f"{'':<18}next: {one.next}")
    say("something is wrong" if wrong else "all is well", "bold")
    return int(wrong)


def _of_settings() -> list[Finding]:
    """What is set was checked before; what is written amiss would have no effect and no error."""
    from refold.settings.environment import misspelt

    return [
        Finding(NOTE, "settings", f"nobody reads {name}", f"if {meant} is meant, write that")
        for name, meant in misspelt(os.environ).items()
    ] or [Finding(OK, "settings", "every REFOLD_ variable can be used")]


async def _examine(url: str) -> Examined:
    from refold.log import free_bytes, open_log
    from refold_schemas.errors import SchemaUnavailable

    log = open_log(url)
    await log.open(create=False)
    try:
        facts = log.facts
        said = f"namespace {facts.namespace}, {facts.partition_count} partition(s)"
        findings = [
            *_of_settings(),
            Finding(OK, "log", f"{log.url} is open: {said}"),
            *_room(free_bytes(log.url)),
            *_of_topics(log),
            *await _of_registry(),
        ]
        try:
            return await _examine_partitions(log, findings)
        except SchemaUnavailable as unknown:
            findings.append(_unread("runs", unknown))
            return Examined(tuple(findings), (), {}, {}, ())
    finally:
        await log.close()


async def _examine_partitions(log: "Log", findings: list[Finding]) -> Examined:
    """What the records say. Raises SchemaUnavailable where not even a claim can be read."""
    from refold.client.client import Client
    from refold_schemas.errors import LogUnavailable, SchemaUnavailable
    from refold_tools.cli.output import ReadingProgress

    progress = ReadingProgress()
    try:
        async with Client(log, on_progress=progress) as client:
            findings.extend(await _of_counts(client))
            partitions: list[Partition] = []
            last_ms = newest_event_ms = 0
            away = await _away(log)
            for number in range(log.facts.partition_count):
                if number in away:
                    findings.append(_unread(f"p{number}", away[number]))
                    continue
                try:
                    partition, newest_ms, event_ms = await _partition(client, number)
                except (SchemaUnavailable, LogUnavailable) as unknown:
                    findings.append(_unread(f"p{number}", unknown))
                    continue
                partitions.append(partition)
                last_ms = max(last_ms, newest_ms)
                newest_event_ms = max(newest_event_ms, event_ms)
                findings.extend(_of_partition(partition))
            findings.append(_clock(last_ms, newest_event_ms))
            if len(partitions) < log.facts.partition_count:  # of the runs nothing would be whole
                return Examined(tuple(findings), tuple(partitions), {}, {}, ())
            found = await client.runs()
            conflicts = await _conflicts(client)
            runs = Counter(one.status for one in found)
            needs = Counter(one.needs for one in found if one.needs)
            findings.extend(_of_runs(runs, needs, conflicts))
            differing = await _open_findings(client)
            findings.extend(_of_findings(differing))
            rejected: Counter[str] = Counter()
            for partition in partitions:
                rejected.update(partition.rejected or {})
            findings.extend(_of_commands(rejected, partitions))
            return Examined(
                tuple(findings), tuple(partitions), dict(runs), dict(needs), conflicts, differing
            )
    finally:
        progress.end()


async def _away(log: "Log") -> "dict[int, LogUnavailable]":
    """Partitions that do not answer: asked side by side, or each would be waited for in turn."""
    from refold.log import Topic
    from refold_schemas.errors import LogUnavailable

    gate = asyncio.Semaphore(ASKED_AT_ONCE)
    away: dict[int, LogUnavailable] = {}

    async def ask(number: int) -> None:
        async with gate:
            try:
                for topic in (Topic.EVENTS, Topic.COMMANDS, Topic.SNAPSHOTS):
                    await log.bounds(topic, number)
            except LogUnavailable as error:
                away[number] = error

    async with asyncio.TaskGroup() as group:
        for number in range(log.facts.partition_count):
            group.create_task(ask(number))
    return away


async def _partition(client: "Client", number: int) -> tuple[Partition, int, int]:
    """What was seen, when its last record was appended, and the latest time of its events."""
    from refold.log import Topic
    from refold_projections.fold import Verdict

    log = client.log
    fold = await client.fold_of(number)
    _, command_end = await log.bounds(Topic.COMMANDS, number)
    rejected, forwarded = await _orders(client, number)
    position, parked = fold.position, fold.parked
    return (
        Partition(
            number,
            fold.facts.owner,
            await client.owner_lives(number),
            fold.facts.released,
            position.claim_id.hex() if position.claim_epoch else "",
            position.claim_epoch,
            position.claim_broken,
            position.offset_next,
            position.command_next,
            command_end,
            {Verdict(kind).name.lower(): count for kind, count in fold.skipped.items()},
            rejected,
            forwarded,
            len(parked),
            min((one.since_ms for one in parked.values()), default=None),
            tuple(sorted({one.schema_id for one in parked.values()})),
            await _letters(log, number),
        ),
        await _newest_ms(log, number),
        position.time_last_ms,
    )


async def _orders(client: "Client", number: int) -> tuple[dict[str, int] | None, int]:
    """How many rejections of each reason, and forwarded commands, the log still tells of.

    None where its beginning is gone without an archive: what counts nobody could say.
    """
    from refold_schemas.errors import OffsetOutOfRange
    from refold_schemas.events import CommandEmitted, CommandRejected

    counts: Counter[str] = Counter()
    forwarded = 0
    try:
        async for one in client.orders(number):
            forwarded += isinstance(one.event, CommandEmitted)
            if isinstance(one.event, CommandRejected):
                counts[one.event.reason] += 1
    except OffsetOutOfRange:
        return None, 0
    return dict(counts), forwarded


async def _newest_ms(log: "Log", number: int) -> int:
    """When the last record of the partition's events was appended; 0 where there is none."""
    from refold.log import Topic

    start, end = await log.bounds(Topic.EVENTS, number)
    back = TAIL
    while True:
        offset = max(start, end - back)
        newest_ms = 0
        while offset < end:
            records = await log.read(Topic.EVENTS, number, offset)
            if not records:
                break
            newest_ms = records[-1].append_ms
            offset = records[-1].offset + 1
        if newest_ms or end - back <= start:
            return newest_ms
        back *= 8  # offsets alone, which hold no record


async def _letters(log: "Log", number: int) -> int:
    """Offsets in use of the partition's dead letters; their topic may have fewer partitions."""
    from refold.log import Topic
    from refold_schemas.errors import PartitionMissing

    try:
        start, end = await log.bounds(Topic.DEAD_LETTERS, number)
    except PartitionMissing:
        return 0
    return end - start


def _of_commands(rejected: "Counter[str]", partitions: list[Partition]) -> list[Finding]:
    """What became of commands that were not simply applied."""
    from refold_projections.fold.orders import APPLIED_BEFORE

    found: list[Finding] = []
    lost = Counter({why: count for why, count in rejected.items() if why not in APPLIED_BEFORE})
    total = lost.total()
    if total:
        by_reason = ", ".join(f"{count} {reason}" for reason, count in lost.most_common())
        were = "1 command was" if total == 1 else f"{total} commands were"
        said = f"{were} rejected (in what the log still holds): {by_reason}"
        found.append(Finding(NOTE, "commands", said, "`refold commands rejected` lists them"))
    cut = [f"p{one.partition}" for one in partitions if one.rejected is None]
    if cut:
        said = f"what was rejected in {', '.join(cut)} cannot be said: something has trimmed events"
        found.append(Finding(NOTE, "commands", said, "docs/errors/R312.md"))
    letters = sum(one.dead_letters for one in partitions)
    if letters:
        found.append(Finding(NOTE, "commands", f"{letters} dead letter(s) hold copies for people"))
    forwarded = sum(one.forwarded for one in partitions)
    if forwarded:
        found.append(
            Finding(
                NOTE,
                "commands",
                f"{forwarded} were found on another partition than their run's and sent on",
                "let their producer hash keys with murmur2 (docs/commands.md): it is faster",
            )
        )
    return found


async def _of_registry() -> list[Finding]:
    """Whether the schema registry answers, and has what this version writes; none: nothing."""
    from refold_schemas.errors import RegistryUnavailable
    from refold_tools.cli.schemas import subject_problems, survey

    try:
        subjects = await survey()
    except RegistryUnavailable as error:
        said = f"registry unreachable: {error.message}"
        then = "see that it runs; workers go on with the schemas that they know, none can start"
        return [Finding(WRONG, "registry", said, then)]
    if subjects is None:
        return []
    problems = subject_problems(subjects)
    if not problems:
        return [Finding(OK, "registry", f"it answers and has all {len(subjects)} subjects")]
    then = "`refold schemas check`, then `refold schemas register`"
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    return [Finding(WRONG, "registry", f"{problems[0]}{more}", then)]


def _unread(what: str, unknown: "SchemaUnavailable | LogUnavailable") -> Finding:
    return Finding(WRONG, what, f"it cannot be read: {unknown.message}", unknown.next)


def _of_partition(one: Partition) -> list[Finding]:
    name = f"p{one.partition}"
    found: list[Finding] = []
    if not one.claim:
        found.append(Finding(OK, name, "never claimed: no worker has served it yet"))
    elif one.released:
        found.append(
            Finding(OK, name, f"released by {one.owner}; events up to offset {one.offset}")
        )
    elif one.owner_lives is False:
        found.append(
            Finding(
                NOTE,
                name,
                f"its owner {one.owner} has ended without releasing it (claim {one.claim[:6]})",
                "start a worker: it takes over and settles what is in doubt",
            )
        )
    elif one.owner_lives is None:
        found.append(
            Finding(
                WRONG,
                name,
                f"its owner {one.owner} has stopped its heartbeat without ending "
                f"(claim {one.claim[:6]})",
                "see what its process says: it is frozen, or it cannot write to the log; end it if "
                "it does not go on, and start a worker",
            )
        )
    else:
        found.append(
            Finding(OK, name, f"owned by {one.owner}, claim {one.claim[:6]}, epoch {one.epoch}")
        )
    if one.claim_broken:
        found.append(
            Finding(
                WRONG,
                name,
                "its claim is broken: a record of it is missing, so nothing behind it counts",
                "restart the worker: it claims anew and folds what counts",
            )
        )
    unserved = one.released or one.owner_lives is False or not one.claim
    if one.lag and unserved:
        found.append(
            Finding(
                WRONG,
                name,
                f"{one.lag} command(s) wait and no live worker owns the partition",
                "start a worker: `refold worker MODULE:APP`",
            )
        )
    elif one.lag:
        found.append(Finding(NOTE, name, f"{one.lag} command(s) are not decided yet"))
    if one.parked and one.parked_since_ms is not None:
        from refold_projections.fold.calendar import on_calendar

        since = on_calendar(one.parked_since_ms)
        ids = ", ".join(str(schema_id) for schema_id in one.parked_ids[:IDS_SHOWN])
        found.append(
            Finding(
                WRONG,
                name,
                f"{one.parked} command(s) are parked since {since:%Y-%m-%d %H:%M:%S} UTC: no "
                f"worker could read their schemas ({ids})",
                "see that the schema registry answers and has them (R024)",
            )
        )
    if one.skipped:
        said = ", ".join(f"{count} {kind}" for kind, count in sorted(one.skipped.items()))
        verdict = WRONG if "foreign" in one.skipped else NOTE
        found.append(
            Finding(
                verdict,
                name,
                f"records that do not count: {said}",
                "find out what else writes to this topic" if verdict is WRONG else "",
            )
        )
    return found


def _room(size: int | None) -> list[Finding]:
    """A log that cannot grow stops every run, whoever owns them."""
    if size is None:
        return []
    said = f"{size / (1 << 20):,.0f} MiB are free where the log is"
    if size >= ROOM_LOW_SIZE:
        return [Finding(OK, "room", said)]
    verdict = WRONG if size < ROOM_MIN_SIZE else NOTE
    return [Finding(verdict, "room", said, "make room on its disk: nothing is lost meanwhile")]


def _of_topics(log: "Log") -> list[Finding]:
    """Settings of topics that cannot hold the promises; only a log on a cluster has any."""
    problems, brokers = log.facts.unsafe, log.facts.broker_count
    found = [
        Finding(WRONG, "topics", said, "correct the setting (R316); no worker serves it meanwhile")
        for said in problems
    ]
    if brokers and not problems:
        found.append(Finding(OK, "topics", "their settings hold what is promised"))
    if 0 < brokers < BROKERS_SAFE:
        said = f"{brokers} broker(s): an acknowledged event survives a killed process, not a disk"
        found.append(Finding(NOTE, "brokers", said))
    return found


async def _of_counts(client: "Client") -> list[Finding]:
    """Partitions that somebody has added, and whether anybody has adopted them."""
    from refold.log.routing import check_adopted
    from refold_schemas.errors import PartitionsRaised

    routed, count = client.routed, client.log.facts.partition_count
    try:
        await check_adopted(client.log, client.codec, routed)
    except PartitionsRaised as error:
        said = f"their partition count was changed: {error.counts}; {error.known}"
        return [Finding(WRONG, "topics", said, error.next)]
    if routed == count:
        return []
    said = f"runs are routed over {routed} of {count} partitions; what comes to others is forwarded"
    return [Finding(NOTE, "topics", said)]


def _clock(last_append_ms: int, last_event_ms: int) -> Finding:
    """A record of the future means that this clock, or the log's, is wrong, or that it was."""
    now_ms = time.time_ns() // 1_000_000
    ahead_ms = last_append_ms - now_ms
    if ahead_ms > CLOCK_SKEW_MAX_MS:
        return Finding(
            WRONG,
            "clock",
            f"this machine's clock is {ahead_ms / 1000:.1f} s behind the log's last record",
            "set it, or workers refuse to serve; if it is right, see docs/errors/R015.md",
        )
    ahead_ms = last_event_ms - now_ms
    if ahead_ms > 2 * CLOCK_SKEW_MAX_MS:  # an event's time may be off the log's by as much again
        said = f"a clock was set back: the log holds times up to {ahead_ms / 1000:.1f} s from now"
        then = (
            "set it if it is wrong now; timers that were set before the change wait for the time "
            "that they were set to (docs/errors/R015.md)"
        )
        return Finding(NOTE, "clock", said, then)
    return Finding(OK, "clock", "not behind the log's last record")


async def _conflicts(client: "Client") -> tuple[str, ...]:
    """Runs with evidence that contradicts what was settled, as `run_id slot`."""
    found: list[str] = []
    for number in range(client.log.facts.partition_count):
        fold = await client.fold_of(number)
        for state in fold.runs.values():
            found.extend(
                f"{state.run_id} {slot.name}"
                for slot in state.slots.values()
                if slot.conflicted or any(name == slot.name for name, _ in state.red)
            )
    return tuple(sorted(found))


async def _open_findings(client: "Client") -> tuple[dict[str, str], ...]:
    """What reconciliations found and nobody has settled, the oldest first."""
    found: list[tuple[int, dict[str, str]]] = []
    for number in range(client.log.facts.partition_count):
        fold = await client.fold_of(number)
        for state in fold.runs.values():
            for one in state.findings.values():
                if one.is_open:
                    told = {
                        "finding_id": one.finding_id,
                        "kind": one.kind,
                        "run_id": state.run_id,
                        "slot": one.slot,
                        "command": one.command,
                    }
                    found.append((one.at_ms, told))
    found.sort(key=lambda one: (one[0], one[1]["finding_id"]))
    return tuple(told for _, told in found)


def _of_findings(differing: tuple[dict[str, str], ...]) -> list[Finding]:
    if not differing:
        return []
    named = [f"{one['kind']} {one['run_id']} {one['slot']}" for one in differing[:3]]
    more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    said = f"record and far systems differ ({len(differing)} open): {', '.join(named)}{more}"
    return [Finding(WRONG, "findings", said, "`refold why RUN_ID` says what settles each")]


def _of_runs(
    runs: "Counter[str]", needs: "Counter[str]", conflicts: tuple[str, ...]
) -> list[Finding]:
    said = ", ".join(f"{count} {status}" for status, count in sorted(runs.items()))
    found = [Finding(OK, "runs", said or "none")]
    if needs["person"]:
        found.append(
            Finding(
                WRONG,
                "runs",
                f"{needs['person']} wait for a person",
                "`refold runs --needs person`, then `refold why RUN_ID`",
            )
        )
    if needs["code"]:
        found.append(
            Finding(
                WRONG,
                "runs",
                f"{needs['code']} wait for other code (diverged or blocked)",
                "`refold runs --needs code`, then `refold why RUN_ID`",
            )
        )
    doubtful = runs["in_doubt"] - needs["person"]
    if doubtful > 0:
        found.append(
            Finding(NOTE, "runs", f"{doubtful} in doubt, which their policies settle by themselves")
        )
    if conflicts:
        found.append(
            Finding(
                WRONG,
                "runs",
                f"evidence contradicts the record of {', '.join(conflicts[:3])}"
                + (f" and {len(conflicts) - 3} more" if len(conflicts) > 3 else ""),
                "`refold why RUN_ID`, and compare the far system with the record",
            )
        )
    return found
