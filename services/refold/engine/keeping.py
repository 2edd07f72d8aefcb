"""Writes an owner's run snapshots and checkpoints: from durable state only, a little at a time.

Source: design, section 3.3; docs/adr/0014 and 0015. A large run is not written again at each
checkpoint; while one stays behind, the position that is written is held back to where it is whole.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from refold.engine.bases import Base, checkpoint_of
from refold.engine.books import Books
from refold.engine.stored import LARGE_BYTES, PART_BYTES, Kept, Large, entries_of
from refold.log.port import Entry, Topic
from refold.log.sizes import BATCH_OVERHEAD, entry_size, gathered_max
from refold_projections.fold import Mark, RunState, snapshot_pieces
from refold_schemas.codec import Codec
from refold_schemas.errors import AppendUnknown

BATCH_BYTES: Final = 512 * 1024
GROWTH: Final = 0.5
"""A large snapshot is written again once the run's log has grown by this share of it."""
REDO_EVENTS_MAX: Final = 100_000
"""Or once a takeover would have to read more records than these for the run's sake."""
YIELD_BYTES: Final = 32 * 1024
YIELD_RUNS: Final = 50
"""After so much encoding others of the loop have their turn."""
ROOM_BYTES: Final = 2 * 1024
"""More than key, frame and names of a part take in its batch."""

Append = Callable[[list[Entry]], Awaitable[int]]


class SnapshotsGone(AppendUnknown):
    """What was appended stands before what stood already: the topic was deleted, or cut."""


class _Unsaved(NamedTuple):
    """A durable state that changed since its snapshot: packed already, or as objects."""

    run_id: str
    packed: bytes | None
    state: RunState | None
    mark: Mark


class _Batches:
    """Appends entries in their order, in batches of at most `size_max` bytes as the log counts."""

    def __init__(self, append: Callable[[list[Entry]], Awaitable[None]], size_max: int) -> None:
        self._append, self._size_max = append, size_max
        self._waiting: list[Entry] = []
        self._size = BATCH_OVERHEAD

    async def add(self, entry: Entry) -> None:
        """Gather it; what does not fit beside it is appended first."""
        size = entry_size(entry)
        if self._waiting and self._size + size > self._size_max:
            await self.end()
        self._waiting.append(entry)
        self._size += size

    async def end(self) -> None:
        """Append what is left."""
        batch, self._waiting, self._size = self._waiting, [], BATCH_OVERHEAD
        if batch:
            await self._append(batch)


class Keeper:
    """Snapshots and checkpoints of one claim. `append` stores a batch and says where, or raises.

    `batch_size_max` says what a batch may have, in bytes; it is asked anew each time, since it
    falls where the log has refused one, and a claim may go on for months behind that.

    What holds at any time, and makes every written position a true one: all records of a run
    before `_holds[run_id]`, of a run without a hold all before `_covered`, are in a snapshot of it
    that stands. A run is held only while it is in `books.dirty`.
    """

    def __init__(
        self,
        books: Books,
        codec: Codec,
        partition: int,
        kept: Kept,
        base: Base,
        append: Append,
        *,
        batch_size_max: Callable[[], int],
    ) -> None:
        self._books, self._codec, self._partition = books, codec, partition
        self._kept, self._append_to_log = kept, append
        self._batch_size_max = batch_size_max
        self._covered = base
        self._holds: dict[str, Base] = {}
        self._lock = asyncio.Lock()
        self._encoded = 0
        self._strange: list[bytes] | None = None
        """Keys of no run, found once and not deleted yet."""

    async def checkpoint(self, now: Callable[[], Base], *, whole: bool) -> list[bytes]:
        """Snapshot what changed, then write a position. Returns the keys not needed any more.

        `now` says where the owner stands durably; it is asked in the same turn of the loop in which
        the states are taken. `whole`: no large run is left for later. Raises what `append` raises;
        then everything is tried again next time.
        """
        async with self._lock:
            try:
                return await self._checkpoint(now, whole=whole)
            except SnapshotsGone:  # a position alone would say that the other runs never were
                return await self._checkpoint(now, whole=whole)

    async def _checkpoint(self, now: Callable[[], Base], *, whole: bool) -> list[bytes]:
        base = now()
        if self._strange is None:
            # The fold is whole, so nobody needs them; unreadable ones make each checkpoint useless.
            self._strange = self._kept.strangers(self._books.states)
        unsaved, holds = self._take(base, whole=whole)
        dirty, self._books.dirty = self._books.dirty, {}
        label = self._kept.label(self._books.claim_id)
        tried: list[tuple[str, int]] = []
        large: dict[str, Large] = {}
        try:
            await self._write(unsaved, label, tried, large)
            start = min((base, *holds.values()), key=lambda b: b.position.offset_next)
            # What has left since then has left: a position that is held back says so too.
            sent = start.orders._replace(published_to=base.orders.published_to)
            start = start._replace(orders=sent)
            count = self._kept.run_count(tried)
            record = self._codec.encode(checkpoint_of(self._partition, start, count))
            await self._append([Entry(f"/{label}".encode(), record)])
        except BaseException:
            self._books.dirty = {**dirty, **self._books.dirty}
            self._kept.failed((run_id for run_id, _ in tried), label)
            raise
        self._covered, self._holds = base, holds
        self._books.dirty = {**dict.fromkeys(holds), **self._books.dirty}
        for run_id, _ in tried:
            self._kept.large.pop(run_id, None)
        self._kept.large.update(large)
        strange, self._strange = self._strange, []
        return [*self._kept.replaced(tried, label), *strange]

    async def delete(self, keys: list[bytes]) -> None:
        """Delete keys that are not needed any more. Raises what `append` raises."""
        batches = self._batches()
        for key in keys:
            await batches.add(Entry(key, None))
        await batches.end()

    def _batches(self) -> _Batches:
        return _Batches(self._append, self._batch_bytes())

    def _batch_bytes(self) -> int:
        return gathered_max(BATCH_BYTES, self._batch_size_max())

    async def _append(self, entries: list[Entry]) -> None:
        """Append, and see that what stood before still stands. Raises SnapshotsGone."""
        before = self._kept.offset_next
        offset = await self._append_to_log(entries)
        if offset >= before:
            self._kept.offset_next = max(self._kept.offset_next, offset + len(entries))
            return
        self._kept.offset_next = offset + len(entries)
        # Deleted, and made anew: no run has a snapshot any more, this owner alone knows them.
        self._books.dirty = dict.fromkeys(self._books.states)
        self._holds = {}
        self._kept.all_gone()
        told = f"it was acknowledged at offset {offset}, below {before}: what stood there is gone"
        raise SnapshotsGone(topic=Topic.SNAPSHOTS.value, partition=self._partition, reason=told)

    def _take(self, base: Base, *, whole: bool) -> tuple[list[_Unsaved], dict[str, Base]]:
        """The durable states to be written, as they are now (they do not change any more), and
        which runs are left for later, each with the position to which its snapshot reaches."""
        books = self._books
        taken: list[_Unsaved] = []
        holds: dict[str, Base] = {}
        for run_id in books.dirty:
            packed = books.states.packed(run_id)
            state = None if packed is not None else books.durable(run_id)
            held = self._holds.get(run_id, self._covered)
            if not whole and self._can_wait(run_id, state, held, base):
                holds[run_id] = held
            elif packed is not None or state is not None:
                taken.append(_Unsaved(run_id, packed, state, books.marks[run_id]))
        return taken, holds

    def _can_wait(self, run_id: str, state: RunState | None, held: Base, base: Base) -> bool:
        last = self._kept.large.get(run_id)
        if last is None:
            return False
        if base.position.offset_next - held.position.offset_next > REDO_EVENTS_MAX:
            return False
        if state is None:
            return True  # packed: nobody unpacks it to know how far it has grown
        if last.byte_count is None:
            self._kept.large[run_id] = last._replace(byte_count=state.byte_count)
            return True
        return state.byte_count - last.byte_count < GROWTH * last.size

    async def _write(
        self,
        unsaved: list[_Unsaved],
        label: str,
        tried: list[tuple[str, int]],
        large: dict[str, Large],
    ) -> None:
        batches = self._batches()
        part_bytes = max(1, min(PART_BYTES, self._batch_bytes() - ROOM_BYTES))
        for at, (run_id, packed, state, mark) in enumerate(unsaved):
            if at % YIELD_RUNS == YIELD_RUNS - 1:
                await self._yield()
            if packed is None and state is not None:
                packed = await self._encode(state, mark)
            assert packed is not None
            tried.append((run_id, -(-len(packed) // part_bytes)))
            if len(packed) >= LARGE_BYTES:
                large[run_id] = Large(len(packed), None if state is None else state.byte_count)
            for entry in entries_of(self._codec, run_id, packed, label, part_bytes):
                await batches.add(entry)
        await batches.end()

    async def _encode(self, state: RunState, mark: Mark) -> bytes:
        pieces: list[bytes] = []
        for piece in snapshot_pieces(self._codec, state, mark):
            pieces.append(piece)
            self._encoded += len(piece)
            if self._encoded > YIELD_BYTES:
                await self._yield()
        return b"".join(pieces)

    async def _yield(self) -> None:
        self._encoded = 0
        await asyncio.sleep(0)
