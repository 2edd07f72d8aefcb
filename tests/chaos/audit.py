"""What must hold at the end, read from the log and from the far systems' own ledgers."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from chaos.linear import faults_of_set, register_is_linearizable
from chaos.load import Load
from chaos.stage import Stage
from refold.engine import checkpoints
from refold.log import Log, Record, Topic
from refold_projections.fold import PartitionFold, Verdict, from_snapshot, state_hash, to_snapshot
from refold_schemas.codec import Codec
from refold_schemas.events import (
    EvidenceConflict,
    PartitionClaimed,
    RunCompleted,
    RunResumed,
    StepInDoubt,
    StepIntended,
    StepResolved,
)
from refold_schemas.registry import FileRegistry

STALL_MS = 1_000


@dataclass
class Seen:
    """What the log holds of a namespace, all partitions together."""

    runs: dict[str, Any] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)
    attempts: Counter[str] = field(default_factory=Counter)
    """Slots by the number of their attempts: `{"1": 80, "2": 3}`."""
    keys: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    """The effect keys of each slot."""
    doubts: int = 0
    resolved: Counter[str] = field(default_factory=Counter)
    conflicts: int = 0
    claims: int = 0
    owners: set[str] = field(default_factory=set)
    skipped: Counter[str] = field(default_factory=Counter)
    reports: int = 0
    pause_ms: int = 0
    pause_run: str = ""
    times_ms: list[int] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    readers: int = 0

    @property
    def stalled_ms(self) -> int:
        """The time in which nothing at all was recorded for longer than a second at a stretch."""
        times = sorted(self.times_ms)
        gaps = (after - before for before, after in pairwise(times))
        return sum(gap for gap in gaps if gap > STALL_MS)


async def read_all(log: Log, topic: Topic, partition: int) -> list[Record]:
    found: list[Record] = []
    offset, end = await log.bounds(topic, partition)
    while offset < end:
        records = await log.read(topic, partition, offset, size_max=4 << 20)
        if not records:
            break
        found += records
        offset = records[-1].offset + 1
    return found


async def look_at(log: Log) -> Seen:
    """Read the whole namespace with three readers, and compare them."""
    codec = Codec(FileRegistry())
    seen = Seen()
    latest: dict[str, tuple[int, bool]] = {}
    tries: Counter[tuple[str, str]] = Counter()
    for partition in range(log.facts.partition_count):
        for record in await read_all(log, Topic.COMMANDS, partition):
            if record.key is not None:
                latest.setdefault(record.key.decode(), (record.append_ms, False))
        records = await read_all(log, Topic.EVENTS, partition)
        fold = PartitionFold(codec)
        claims: list[int] = []
        for record in records:
            applied = fold.apply(record)
            seen.times_ms.append(record.append_ms)
            event, run_id = applied.event, applied.run_id
            if applied.verdict > Verdict.REPORT:
                seen.skipped[applied.verdict.name] += 1
            elif applied.verdict is Verdict.REPORT:
                seen.reports += 1
            if isinstance(event, PartitionClaimed) and applied.verdict is Verdict.CLAIM:
                claims.append(record.offset)
                seen.owners.add(event.process)
            if run_id is None or event is None:
                continue
            by_person = isinstance(event, RunResumed) or (
                isinstance(event, StepResolved) and event.evidence == "person"
            )
            before = latest.get(run_id)
            if (
                before is not None
                and not by_person
                and record.append_ms - before[0] > seen.pause_ms
            ):
                seen.pause_ms, seen.pause_run = record.append_ms - before[0], run_id
            latest[run_id] = (record.append_ms, by_person)
            match event:
                case StepIntended(slot=slot):
                    tries[run_id, slot] += 1
                    seen.keys.setdefault((run_id, slot), set()).add(event.effect_key)
                case StepInDoubt():
                    seen.doubts += 1
                case StepResolved(evidence=evidence):
                    seen.resolved[evidence] += 1
                case EvidenceConflict():
                    seen.conflicts += 1
                case RunCompleted():
                    seen.completed.add(run_id)
        seen.claims += len(claims)
        seen.runs.update(fold.runs)
        seen.differing += await differences(log, codec, partition, records, fold, claims)
        seen.readers += 3
    seen.attempts = Counter(str(count) for count in tries.values())
    return seen


async def differences(
    log: Log,
    codec: Codec,
    partition: int,
    records: list[Record],
    first: PartitionFold,
    claims: list[int],
) -> list[str]:
    """Where an owner's takeover, or a reader from a claim in the middle, sees other states."""
    takeover = (await checkpoints.load(log, partition, codec)).fold
    start = takeover.position.offset_next
    takeover.apply_all(record for record in records if record.offset >= start)
    others = {f"a takeover from offset {start}": takeover}
    if claims:
        middle = claims[len(claims) // 2]
        others[f"a reader from the claim at {middle}"] = from_claim(codec, records, middle)
    found = []
    for name, other in others.items():
        if other.position != first.position:
            found.append(f"partition {partition}: {name} ends at another position")
        for run_id, state in first.runs.items():
            its = other.runs.get(run_id)
            if its is None or state_hash(its) != state_hash(state):
                found.append(f"partition {partition}: {name} sees another {run_id}")
    return found


def from_claim(codec: Codec, records: list[Record], claim_offset: int) -> PartitionFold:
    """What a reader ends with that starts at a claim, with snapshots of the runs as they were."""
    before, after = PartitionFold(codec), PartitionFold(codec)
    before.apply_all(record for record in records if record.offset < claim_offset)
    after.position, after.facts = before.position, before.facts
    for run_id, state in before.runs.items():
        kept: Any = codec.decode(codec.encode(to_snapshot(state, before.marks[run_id])))
        after.runs[run_id], after.marks[run_id] = from_snapshot(kept)
    after.apply_all(record for record in records if record.offset >= claim_offset)
    return after


async def faults(stage: Stage, load: Load, seen: Seen) -> list[str]:
    """What is wrong, in sentences; none: all that was promised has been kept."""
    found = list(seen.differing)
    accepted = {sent.run_id: sent for sent in load.sent if sent.accepted is not None}
    for run_id in sorted((set(accepted) ^ set(seen.runs)) - load.harmed):
        told = "was accepted and is in no log" if run_id in accepted else "was never accepted"
        found.append(f"{run_id} {told}")
    found += [f"{run_id} has not completed" for run_id in sorted(set(accepted) - seen.completed)]
    if seen.conflicts:
        found.append(f"{seen.conflicts} EvidenceConflict")
    found += [
        f"{slot} of {run_id} went out under {len(keys)} keys"
        for (run_id, slot), keys in seen.keys.items()
        if len(keys) > 1
    ]
    found += await faults_of_world(stage, load)
    found += faults_of_objects(stage, load)
    return found


async def faults_of_world(stage: Stage, load: Load) -> list[str]:
    """Each effect of each order once in the world's own ledger, and nothing else."""
    done: Counter[tuple[str, str]] = Counter()
    for effect in await stage.world.effects():
        kind, body = effect["kind"], effect["body"]
        if kind == "email":
            done["mail", body["subject"]] += 1
        elif kind in ("shipment", "charge"):
            done[kind, body["reference"]] += 1
    due: Counter[tuple[str, str]] = Counter()
    for sent in load.sent:
        if sent.run == "order" and sent.ended is not None:
            due["shipment", sent.run_id] = due["charge", sent.run_id] = 1
            if sent.given:
                due["mail", sent.run_id] = 1
    return [
        f"{kind} of {run_id}: {done[kind, run_id]} times, not {due[kind, run_id]}"
        for kind, run_id in sorted({*done, *due})
        if done[kind, run_id] != due[kind, run_id]
    ]


def faults_of_objects(stage: Stage, load: Load) -> list[str]:
    """Each register's history has an order; each set holds what was added, once."""
    found: list[str] = []
    for (what, name), history in sorted(load.histories.items()):
        if what == "register":
            if not register_is_linearizable(history):
                found.append(f"the history of {name} ({len(history)} operations) has no order")
            continue
        found += [f"{name}: {told}" for told in faults_of_set(history)]
        added = Counter(op.value for op in history if op.kind == "add" and op.answered)
        if added != Counter(stage.objects.sets.get(name, ())):
            found.append(f"{name} does not hold what was added, once each")
    return found
