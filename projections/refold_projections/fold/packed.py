"""The states of many runs, those of idle runs packed: their snapshot's bytes instead of objects."""

import itertools
from collections.abc import Iterator, MutableMapping
from typing import Any, Final, NamedTuple

from refold_projections.fold.partition import Mark
from refold_projections.fold.slots import in_parallel_branch
from refold_projections.fold.snapshot import from_snapshot, kept_slots, to_snapshot
from refold_projections.fold.state import RunState
from refold_schemas.codec import Codec
from refold_schemas.snapshots import RunSnapshot
from refold_schemas.values import Value

SLOTS_AT_ONCE: Final = 250


class Armed(NamedTuple):
    """A timer as the heap of an owner holds it."""

    deadline_ms: int
    run_id: str
    timer_id: str
    generation: int


class RunStates(MutableMapping[str, RunState]):
    """A mapping by run_id. Reading a packed state makes it anew each time; writing unpacks it.

    A sleeping run costs about a kilobyte packed, five times that as objects.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.live: dict[str, RunState] = {}
        """Those kept as objects: for reading, and to put a newer state in the place of an older."""
        self._packed: dict[str, bytes] = {}

    def __getitem__(self, run_id: str) -> RunState:
        """The state of the run. Raises KeyError."""
        state = self.live.get(run_id)
        if state is not None:
            return state
        snapshot = self._codec.decode(self._packed[run_id])
        return from_snapshot(snapshot)[0]

    def get(self, run_id: str, default: Any = None) -> Any:
        """The state of the run, or `default`; written out, as it is asked for at every step."""
        state = self.live.get(run_id)
        if state is not None:
            return state
        return self[run_id] if run_id in self._packed else default

    def __setitem__(self, run_id: str, state: RunState) -> None:
        """Keep the state as objects."""
        self.live[run_id] = state
        if self._packed:
            self._packed.pop(run_id, None)

    def __delitem__(self, run_id: str) -> None:
        """Forget the run. Raises KeyError."""
        if self.live.pop(run_id, None) is None:
            del self._packed[run_id]

    def __iter__(self) -> Iterator[str]:
        """The run_ids: live ones, then packed ones."""
        yield from self.live
        yield from self._packed

    def __len__(self) -> int:
        """How many runs."""
        return len(self.live) + len(self._packed)

    def __contains__(self, run_id: object) -> bool:
        """Whether the run is known, without unpacking it."""
        return run_id in self.live or run_id in self._packed

    def put_packed(self, run_id: str, snapshot: bytes) -> None:
        """Keep a run as the bytes of its snapshot."""
        self._packed[run_id] = snapshot
        self.live.pop(run_id, None)

    def pack(self, run_id: str, mark: Mark) -> None:
        """Pack a durable state whose last record is `mark`; nothing if it is packed or unknown."""
        state = self.live.get(run_id)
        if state is not None:
            self.put_packed(run_id, b"".join(snapshot_pieces(self._codec, state, mark)))

    def packed(self, run_id: str) -> bytes | None:
        """The snapshot's bytes of a packed run."""
        return self._packed.get(run_id)


def snapshot_pieces(codec: Codec, state: RunState, mark: Mark) -> Iterator[bytes]:
    """The framed bytes of the state's snapshot, piece by piece, so that others have their turn.

    `SLOTS_AT_ONCE` slots become a block of Avro's array and are gone before the next ones: a
    hundred thousand objects at once would set off a collection of everything the process has.
    """
    if len(state.slots) <= SLOTS_AT_ONCE:
        yield codec.encode(to_snapshot(state, mark))
        return
    slots = kept_slots(state)
    first = tuple(itertools.islice(slots, 1))
    empty = codec.encode(to_snapshot(state, mark, ()))
    # Nothing is different before the array, and the array begins with how many items it has.
    head = _alike(empty, codec.encode(to_snapshot(state, mark, first)))
    yield empty[:head]
    nobody = RunState("", "", "", Value("", 1, "j1", None, b"", None), b"", 0)
    rest = codec.encode(to_snapshot(nobody, mark, ()))
    start = _alike(rest, codec.encode(to_snapshot(nobody, mark, first)))
    end = len(rest) - start
    while first:
        yield codec.encode(to_snapshot(nobody, mark, first))[start:-end]
        first = tuple(itertools.islice(slots, SLOTS_AT_ONCE))
    yield empty[head:]


def _alike(one: bytes, other: bytes) -> int:
    """How many bytes the two have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def is_idle(snapshot: RunSnapshot) -> bool:
    """Whether the run surely needs nobody until a timer of it is due, by its snapshot alone."""
    if snapshot.stray:
        return False  # evidence may contradict what was settled: that has to be written down
    is_open = False
    for slot in snapshot.slots:
        if slot.attempts:
            is_open = is_open or slot.outcome is None
            if any(attempt.evidence for attempt in slot.attempts):
                return False
    if snapshot.ended is not None:
        return True
    if is_open or snapshot.cancel_by is not None or snapshot.parked is not None:
        return False
    return any(t.kind == "sleep" and not in_parallel_branch(t.slot) for t in snapshot.timers)
