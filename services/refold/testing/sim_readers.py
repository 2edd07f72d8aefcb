"""All readers must agree: from the start, from a claim with run snapshots, and the owners."""

import json
from collections.abc import Coroutine
from typing import Any

from refold.engine import checkpoints
from refold.log.memory import Faults, MemoryLog
from refold.log.port import Topic
from refold.testing.sim_checks import PartitionWatch, Watch, states_at
from refold_projections.fold import PartitionFold, RunState, from_snapshot, state_hash, to_snapshot

CLAIMS_TRIED = 3
"""Readers that start at a claim, for each partition: at the first, a middle and the last one."""


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a read of the log in memory waited")


def _same(state: RunState | None, due: RunState | None) -> bool:
    """Whether two states are one: the hash leaves out what snapshots of ended runs do not keep."""
    if state is None or due is None:
        return state is due
    return state == due or state_hash(state) == state_hash(due)


def _difference(state: RunState, due: RunState) -> str:
    """Where two states of a run differ."""
    fields = [
        f"{name} ({own!r}, not {other!r})"[:300]
        for name, own, other in zip(state._fields, state, due, strict=True)
        if own != other
    ]
    return f"is {state_hash(state)[:12]}, not {state_hash(due)[:12]}: {', '.join(fields)}"


class Readers:
    """Other readers of the log beside the two folds of `Watch`."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.compared = 0
        self._sent: dict[tuple[int, int], bool] = {}
        self._agreed: dict[tuple[str, int, str], tuple[object, RunState | None]] = {}
        """What an owner has of a run, packed or as objects, and what it was found to be.

        Neither changes in its place, and most runs sleep from one comparison to the next.
        """

    def compare_owners(self, owners: list[tuple[str, int, Any]]) -> None:
        """The durable state of each owner equals the fold of the log up to its position."""
        for name, partition, owner in owners:
            watch = self.watch.partitions[partition]
            offset_next = owner.position.offset_next
            expected = states_at(watch.history, offset_next)
            for run_id in owner.runs():
                has = owner.books.states.packed(run_id)
                if has is None or not owner.books.is_durable(run_id):
                    has = owner.state(run_id)
                if has is None:
                    continue
                self.compared += 1
                due, place = expected.get(run_id), (name, partition, run_id)
                agreed = self._agreed.get(place)
                if agreed is not None and agreed[0] is has and agreed[1] is due:
                    continue
                state = owner.state(run_id)
                if _same(state, due):
                    self._agreed[place] = has, due
                else:
                    told = "does not exist there"
                    if run_id in expected:
                        told = _difference(state, expected[run_id])
                    self.watch.journal.violate(
                        f"{name}: its durable state of {run_id} at offset {offset_next} {told}"
                    )

    def compare_takeover(self) -> None:
        """What an owner would take over now, snapshots and tail, equals the fold from the start."""
        broker, codec = self.watch.broker, self.watch.codec
        faults, broker.faults = broker.faults, Faults()
        try:
            for partition in self.watch.partitions:
                log = MemoryLog(f"memory://{broker.namespace}", broker=broker)
                _at_once(log.open(create=False))
                fold = _at_once(checkpoints.load(log, partition.number, codec)).fold
                start = fold.position.offset_next
                fold.apply_all(r for r in partition.stream.records if r.offset >= start)
                self.watch.journal.counts["takeovers from a checkpoint"] += start > 0
                for run_id, due in partition.fold.runs.items():
                    if not _same(fold.runs.get(run_id), due):
                        self.watch.journal.violate(
                            f"a takeover from the position {start} sees another {run_id}"
                        )
                if fold.position != partition.fold.position:
                    self.watch.journal.violate(
                        f"a takeover from the position {start} ends elsewhere"
                    )
                if dict(fold.parked) != dict(partition.fold.parked):
                    self.watch.journal.violate(
                        f"a takeover from the position {start} has other parked commands"
                    )
                forgotten = set(partition.fold.orders.outbox) - set(fold.orders.outbox)
                lost = [offset for offset in forgotten if not self._was_sent(partition, offset)]
                if lost:
                    self.watch.journal.violate(
                        f"a takeover from the position {start} forgets to send {sorted(lost)}"
                    )
        finally:
            broker.faults = faults

    def unsent(self) -> list[str]:
        """What should have left and stands nowhere else yet."""
        return [
            f"partition {partition.number} has not sent its event {offset}"
            for partition in self.watch.partitions
            for offset in partition.fold.orders.outbox
            if not self._was_sent(partition, offset)
        ]

    def _was_sent(self, partition: PartitionWatch, offset: int) -> bool:
        """Whether a forwarded command, or a letter, stands where it belongs."""
        known = self._sent.get((partition.number, offset))
        if known:
            return True
        broker = self.watch.broker
        (value,) = [r.value for r in partition.stream.records if r.offset == offset]
        event: Any = self.watch.codec.decode(value or b"")
        if type(event).__name__ == "CommandEmitted":
            there = broker.records(Topic.COMMANDS, event.partition)
            found = any((r.key, r.value) == (event.run_id.encode(), event.raw) for r in there)
        else:
            letters = broker.records(Topic.DEAD_LETTERS, partition.number)
            found = any(json.loads(r.value or b"")["event_offset"] == offset for r in letters)
        self._sent[partition.number, offset] = found
        return found

    def compare_all(self) -> None:
        """A reader that starts at a claim, with run snapshots, ends in the same state."""
        for partition in self.watch.partitions:
            claims = [offset for _, offset in partition.shadow.claims]
            chosen = sorted({claims[0], claims[len(claims) // 2], claims[-1]}) if claims else []
            for offset in chosen[:CLAIMS_TRIED]:
                self._from_claim(partition, offset)

    def _from_claim(self, partition: PartitionWatch, claim_offset: int) -> None:
        codec = self.watch.codec
        records = partition.stream.records
        first = PartitionFold(codec)
        first.apply_all(r for r in records if r.offset < claim_offset)
        second = PartitionFold(codec)
        second.position, second.facts = first.position, first.facts
        for run_id, state in first.runs.items():
            data = codec.encode(to_snapshot(state, first.marks[run_id]))
            kept: Any = codec.decode(data)
            second.runs[run_id], second.marks[run_id] = from_snapshot(kept)
        second.apply_all(r for r in records if r.offset >= claim_offset)
        for run_id, state in partition.fold.runs.items():
            if not _same(second.runs.get(run_id), state):
                self.watch.journal.violate(
                    f"a reader from the claim at offset {claim_offset} on sees another {run_id}"
                )
        if second.position != partition.fold.position:
            self.watch.journal.violate(
                f"a reader from the claim at offset {claim_offset} on ends elsewhere"
            )
