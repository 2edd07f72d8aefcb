"""What stands in `ns.snapshots` of a partition: keys, checkpoints, each run's newest snapshot.

Source: design, section 3.3; docs/adr/0014 (keys) and 0022 (archives). Nothing is believed yet: the
log has to confirm it.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from refold.engine.archives import LABEL as ARCHIVED
from refold.engine.archives import Archives
from refold.log.port import Entry, Log, Record, Topic
from refold_projections.fold import Armed, Mark, is_idle
from refold_schemas.codec import Codec
from refold_schemas.codec.learning import learn
from refold_schemas.errors import SchemaUnavailable, UndecodableRecord
from refold_schemas.snapshots import Checkpoint, RunSnapshot, RunSnapshotPart

READ_BYTES = 1 << 20
RUNS_AT_ONCE = 2_000
"""So many snapshots are read before others of the loop have their turn."""
LABELS_MAX = 16
"""Of so many snapshots of one run that may stand it is known that they have to be deleted."""
LARGE_BYTES = 64 * 1024
"""From this size on a snapshot is not written again at each checkpoint."""
PART_BYTES = 512 * 1024
"""A larger snapshot is cut into parts: no run is too large to have one."""


OWN_LABEL = re.compile(r"[0-9a-f]{32}\.[0-9]+(\.[0-9]+)?")
"""The end of a snapshot's key: claim id, number, and of one that is cut the part."""


class Large(NamedTuple):
    """The latest snapshot of a large run: its size, and the bytes of the run's log in it.

    None where it was written packed: nobody unpacks it to know.
    """

    size: int
    byte_count: int | None


def entries_of(
    codec: Codec, run_id: str, snapshot: bytes, label: str, size_max: int
) -> Iterator[Entry]:
    """A run's encoded snapshot as records, keyed `run_id/label`, or `run_id/label.part`.

    One record, or as many parts as `size_max` bytes go into it.
    """
    if len(snapshot) <= size_max:
        yield Entry(f"{run_id}/{label}".encode(), snapshot)
        return
    count = -(-len(snapshot) // size_max)
    for number in range(count):
        piece = snapshot[number * size_max : (number + 1) * size_max]
        part = RunSnapshotPart(run_id, number, count, piece)
        yield Entry(f"{run_id}/{label}.{number}".encode(), codec.encode(part))


class Kept:
    """The keys in `ns.snapshots` that stand: each is deleted once a newer one stands in its place.

    No key is written twice (`label`): a copy of an older write that is stored late, or one whose
    answer was lost, would else replace a newer snapshot, and the run would fall back behind the
    position. Kept are the ends of the keys, which many runs share.
    """

    def __init__(self) -> None:
        self.snapshots: dict[str, tuple[str, ...]] = {}
        self.checkpoints: list[bytes] = []
        self.large: dict[str, Large] = {}
        """Of the runs whose latest snapshot is large."""
        self.offset_next = 0
        """Behind the last record that was read or written."""
        self._count = 0
        self._labels: dict[str, tuple[str, ...]] = {}

    def stands(self, run_id: str, label: str) -> None:
        """A record of the run's stands under this label."""
        before = self.snapshots.get(run_id)
        self.snapshots[run_id] = self._alone(label) if before is None else (*before, label)

    def is_gone(self, run_id: str, label: str) -> None:
        """It was deleted already; logs keep what was deleted for a while."""
        before = self.snapshots.get(run_id)
        if before is not None and label in before:
            left = tuple(other for other in before if other != label)
            if left:
                self.snapshots[run_id] = left
            else:
                del self.snapshots[run_id]

    def all_gone(self) -> None:
        """Nothing stands any more."""
        self.snapshots, self.checkpoints, self.large = {}, [], {}

    def label(self, claim_id: bytes) -> str:
        """The end of the keys of the next checkpoint of this claim."""
        self._count += 1
        return f"{claim_id.hex()}.{self._count}"

    def failed(self, tried: Iterable[str], label: str) -> None:
        """Snapshots of these runs may stand; nobody needs them, a later one deletes them.

        Of more than `LABELS_MAX` for one run the next owner knows, who reads them all.
        """
        if len(self.checkpoints) < LABELS_MAX:
            self.checkpoints.append(f"/{label}".encode())
        for run_id in tried:
            if len(self.snapshots.get(run_id, ())) < LABELS_MAX:
                self.stands(run_id, label)

    def replaced(self, written: Iterable[tuple[str, int]], label: str) -> list[bytes]:
        """Keys that are not needed any more, now that these runs and the position were written.

        `written` has for each run of how many records its snapshot is.
        """
        # The position first: whoever still reads it has read the snapshots that it needs.
        keys = self.checkpoints
        self.checkpoints = [f"/{label}".encode()]
        for run_id, count in written:
            keys += (f"{run_id}/{old}".encode() for old in self.snapshots.get(run_id, ()))
            self.snapshots[run_id] = (
                self._alone(label) if count == 1 else tuple(f"{label}.{i}" for i in range(count))
            )
        return keys

    def run_count(self, tried: Iterable[tuple[str, int]]) -> int:
        """Of so many runs a snapshot stands, now that these were written too."""
        return len(self.snapshots) + sum(run_id not in self.snapshots for run_id, _ in tried)

    def strangers(self, known: Container[str]) -> list[bytes]:
        """Take out what stands for runs that are not `known`. Returns the keys, to be deleted."""
        strange = [run_id for run_id in self.snapshots if run_id not in known]
        return [
            f"{run_id}/{label}".encode()
            for run_id in strange
            for label in self.snapshots.pop(run_id)
        ]

    def _alone(self, label: str) -> tuple[str, ...]:
        return self._labels.setdefault(label, (label,))


class Found(NamedTuple):
    """A run's newest snapshot, and what of it is needed unpacked: no more, there are many."""

    mark: Mark
    value: bytes
    idle: bool
    armed: tuple[Armed, ...]
    label: str


class Stored:
    """What stands in `ns.snapshots`, read in order."""

    def __init__(self, codec: Codec) -> None:
        self.kept = Kept()
        self.checkpoints: dict[bytes, Checkpoint] = {}
        self.newest: dict[str, Found] = {}
        self.large: dict[str, Large] = {}
        self.archives = Archives(codec)
        self.unreadable: set[bytes] = set()
        """Keys of snapshots that cannot be read: nobody knows whether a position counts on them."""
        self.unknown: SchemaUnavailable | None = None
        """Why, where a record was left aside for a schema that nobody has."""
        self._codec = codec
        self._parts: dict[tuple[str, str], dict[int, bytes]] = {}
        self._claims: dict[bytes, bytes] = {}
        self._first: dict[str, int] = {}
        """Where the first record of a label stands; many runs share one."""
        self._placed: dict[bytes, int] = {}
        """Where the record of a checkpoint stands."""

    def place(self, run_id: str, label: str, key: bytes, value: bytes | None, offset: int) -> None:
        """Note where a record stands, also one of a run that nobody asks for."""
        if value is None:
            if run_id:
                self.kept.is_gone(run_id, label)
        elif run_id:
            self._first.setdefault(label, offset)
            self.kept.stands(run_id, label)
        else:
            self._placed[key] = offset

    def lacks_runs(self, key: bytes, checkpoint: Checkpoint) -> bool:
        """Whether snapshots are gone that stood when the checkpoint with this key was written.

        What it counts on stands before it, and is deleted only behind a newer one. A copy that was
        stored late stands behind it, but is of a run that it had read.
        """
        if checkpoint.run_count is None:
            return False
        end, first = self._placed[key], self._first
        standing = 0
        for run_id, labels in self.kept.snapshots.items():
            if any(first[label] < end for label in labels):
                standing += 1
            elif run_id in self.newest:
                standing += self.newest[run_id].mark.offset < checkpoint.offset_next
        return standing < checkpoint.run_count

    def add(self, run_id: str, label: str, key: bytes, value: bytes | None) -> None:
        """Take one record in. After SchemaUnavailable the same one may be given again."""
        if not run_id and label.startswith(ARCHIVED):
            self.archives.add(label, value)
            return
        if value is None:
            self._deleted(run_id, label, key)
            return
        try:
            stored = self._codec.decode(value)
        except UndecodableRecord:  # of another version, or damaged
            self.cannot_read(run_id, label, key)
            return
        if isinstance(stored, Checkpoint):
            self.checkpoints[key] = stored
        elif isinstance(stored, RunSnapshotPart):
            self._part(run_id, label, key, stored)
        elif isinstance(stored, RunSnapshot):
            self._snapshot(run_id, label, value, stored)

    def cannot_read(self, run_id: str, label: str, key: bytes) -> None:
        """Note a record that nobody can read: it stands, and may have been needed.

        Not so where its key is none that an owner writes: somebody else's is of no run.
        """
        if run_id:
            if OWN_LABEL.fullmatch(label):
                self.unreadable.add(key)
            self._replaced(run_id, label)
        elif label.startswith(ARCHIVED):
            self.archives.cannot_read(label, self.unknown)

    def _replaced(self, run_id: str, label: str) -> None:
        """A later record of the same key stands, whether or not the cleaner was there already."""
        found = self.newest.get(run_id)
        if found is not None and found.label in (label, label.rpartition(".")[0]):
            del self.newest[run_id]

    def _deleted(self, run_id: str, label: str, key: bytes) -> None:
        if run_id:
            self.unreadable.discard(key)
            self._replaced(run_id, label)
        else:
            self.checkpoints.pop(key, None)

    def _part(self, run_id: str, label: str, key: bytes, part: RunSnapshotPart) -> None:
        name = (run_id, label.rpartition(".")[0])
        parts = self._parts.setdefault(name, {})
        parts[part.part] = part.body
        if len(parts) < part.part_count:
            return  # if the rest never comes, its writer died: no position counts on it
        value = b"".join(parts[number] for number in sorted(parts))
        try:
            snapshot = self._codec.decode(value)
        except UndecodableRecord:
            self.unreadable.add(key)
            return
        del self._parts[name]
        if isinstance(snapshot, RunSnapshot):
            self._snapshot(run_id, name[1], value, snapshot)

    def _snapshot(self, run_id: str, label: str, value: bytes, snapshot: RunSnapshot) -> None:
        other = self.newest.get(run_id)
        if snapshot.run_id != run_id or (other and snapshot.offset < other.mark.offset):
            return
        # Thousands of runs share a claim and the names of their timers: one object for all of them.
        claim_id = self._claims.setdefault(snapshot.record_claim_id, snapshot.record_claim_id)
        armed: tuple[Armed, ...] = ()
        if snapshot.timers:
            armed = tuple(
                [
                    Armed(timer.deadline_ms, run_id, sys.intern(timer.timer_id), timer.generation)
                    for timer in snapshot.timers
                ]
            )
        mark = Mark(snapshot.offset, claim_id, snapshot.record_n)
        self.newest[run_id] = Found(mark, value, is_idle(snapshot), armed, label)
        if len(value) >= LARGE_BYTES:
            self.large[run_id] = Large(len(value), snapshot.byte_count)
        elif other:
            self.large.pop(run_id, None)


async def read_stored(
    log: Log, partition: int, codec: Codec, keep: Callable[[str], bool] | None
) -> Stored:
    """Read all of it, asking for schemas where need be. Raises SchemaUnavailable."""
    stored = Stored(codec)
    read = 0
    async for records in _all(log, partition):
        for offset, key, value, _, _ in records:
            run_id, _, label = (key or b"").decode("utf-8", "replace").rpartition("/")
            stored.place(run_id, label, key or b"", value, offset)
            if not run_id or keep is None or keep(run_id):
                try:
                    stored.add(run_id, label, key or b"", value)
                except SchemaUnavailable as unknown:
                    await _learn_and_add(stored, unknown, codec, run_id, label, key or b"", value)
        stored.kept.offset_next = records[-1].offset + 1
        read += len(records)
        if read >= RUNS_AT_ONCE:
            read = 0
            await asyncio.sleep(0)
    stored.kept.checkpoints = list(stored.checkpoints)
    return stored


async def _learn_and_add(
    stored: Stored,
    unknown: SchemaUnavailable,
    codec: Codec,
    run_id: str,
    label: str,
    key: bytes,
    value: bytes | None,
) -> None:
    """Ask for the schema of a snapshot; one that nobody has is left aside.

    That is no reason to stop as long as the log is whole.
    """
    while True:  # a part may complete a snapshot under another schema: two turns at most
        try:
            await learn(codec, unknown)
            stored.add(run_id, label, key, value)
            return
        except SchemaUnavailable as still:
            if not still.mends:
                stored.unknown = still
                stored.cannot_read(run_id, label, key)
                return
            if still.schema_id == unknown.schema_id:
                raise
            unknown = still


async def _all(log: Log, partition: int) -> AsyncIterator[Sequence[Record]]:
    """Every record, in pieces, up to the end, also what was appended meanwhile.

    Where a key was deleted while we read, what replaces it stands before the end that we reach.
    """
    offset, end = await log.bounds(Topic.SNAPSHOTS, partition)
    while offset < end:
        while offset < end:
            records = await log.read(Topic.SNAPSHOTS, partition, offset, size_max=READ_BYTES)
            if not records:
                break
            yield records
            offset = records[-1].offset + 1
        offset = max(offset, end)
        _, end = await log.bounds(Topic.SNAPSHOTS, partition)
