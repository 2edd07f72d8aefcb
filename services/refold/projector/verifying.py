"""Compares the rows of a set with a fresh fold of the log, partition by partition.

Rows are read in one snapshot of the database, at the position that stands beside them; so a set
that is being written can be verified, too. The fold is made in slices of the runs where all of them
would not fit into memory: each slice reads the log once.
"""

import asyncio
import hashlib
import json
import zlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from refold.engine import checkpoints
from refold.log import Log, Topic
from refold_projections.tables.database import Connection
from refold_projections.tables.following import At, Following, Kept
from refold_projections.tables.shapes import TABLES, Row, Table, at
from refold_projections.tables.showing import name
from refold_projections.tables.store import Store, escaped
from refold_schemas.codec import Codec
from refold_schemas.codec.learning import learn
from refold_schemas.errors import SchemaUnavailable
from refold_schemas.errors.tables import LogShorterThanTables, TablesBehindLog

READ_BYTES = 4 << 20
MEMORY_BYTES_MAX = 256 << 20
OF_VALUES = {
    "steps": frozenset({"arguments", "result", "kept", "error_type", "error_message", "said"}),
    "effects": frozenset({"effect_key", "evidence", "amounts"}),
    "runs": frozenset({"kept", "said"}),
}
"""What the final snapshot of an archived run lacks: not compared where only that is left."""
SHOWN_MAX = 200

OnProgress = Callable[[int, int], None]
"""Told of records folded, and how many there are to fold."""


class Difference(NamedTuple):
    """The first one of a partition: what the log says, and what stands in the table."""

    partition: int
    table: str
    key: tuple[object, ...]
    column: str
    log: str
    found: str

    def __str__(self) -> str:
        """In one line."""
        key = ", ".join(map(str, self.key))
        return (
            f"partition {self.partition}, {self.table} ({key}), column {self.column}: the log says "
            f"{self.log}, the table {self.found}"
        )


class Verified(NamedTuple):
    """One partition, at the position of its rows. `sha256` is of all rows, as the log has them."""

    partition: int
    offset_next: int
    row_count: int
    sha256: str
    difference: Difference | None


async def verify(
    connection: Connection,
    store: Store,
    log: Log,
    partition: int,
    *,
    memory_bytes_max: int = MEMORY_BYTES_MAX,
    on_progress: OnProgress | None = None,
) -> Verified:
    """Compare a partition's rows with a fresh fold. Nothing is written.

    Raises LogShorterThanTables, TablesBehindLog where there is nothing to compare with.
    """
    # The fold may take longer than a transaction may be idle elsewhere.
    await connection.execute("set idle_in_transaction_session_timeout = 0")
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        found = await store.position(connection, partition)
        if found is None:
            empty = hashlib.sha256().hexdigest()
            stray = await stray_row(connection, store, "partition = $1", partition)
            return Verified(partition, 0, 0, empty, stray)
        at, _ = found
        start, end = await log.bounds(Topic.EVENTS, partition)
        if end < at.position.offset_next:
            raise LogShorterThanTables(partition, at.position.offset_next, f"it ends at {end}")
        size = await connection.fetchval(
            f"select coalesce(sum(3 * byte_count + 4000), 0)::bigint from {store.schema}.runs "
            "where partition = $1",
            partition,
        )
        slices = 1 + int(size) // memory_bytes_max
        one = _Comparing(connection, store, log, partition, at, start, slices, on_progress)
        difference = None
        for number in range(slices):
            difference = await one.slice(number)
            if difference is not None:
                break
    return Verified(
        partition, at.position.offset_next, one.row_count, one.digest.hexdigest(), difference
    )


async def stray_row(
    connection: Connection, store: Store, where: str, *values: object
) -> Difference | None:
    """A row that no partition's rows should be among, if there is one."""
    for table in TABLES.values():
        found = await connection.fetchrow(f"{table.take(store.schema, where)} limit 1", *values)
        if found is not None:
            key = tuple(found)[: table.key_size]
            there = found["partition"]
            return Difference(there, table.name, key, "(the row)", "no such row", "one")
    return None


class _Comparing:
    """One partition's comparison, slice by slice."""

    def __init__(
        self,
        connection: Connection,
        store: Store,
        log: Log,
        partition: int,
        at: At,
        start: int,
        slices: int,
        on_progress: OnProgress | None,
    ) -> None:
        self.connection, self.store, self.log, self.partition = connection, store, log, partition
        self.at, self.start, self.slices, self.on_progress = at, start, slices, on_progress
        self.row_count = 0
        self.digest = hashlib.sha256()
        self._folded = 0

    def _slice_of(self, run_id: str | None) -> int:
        return 0 if run_id is None else zlib.crc32(run_id.encode()) % self.slices

    async def slice(self, number: int) -> Difference | None:
        """Fold the runs of a slice, and compare their rows. The first difference, or None."""
        following, archived = await self._fold(number)
        if number == 0:
            difference = self._compare_position(following.at)
            if difference is not None:
                return difference
        rows = following.rows()
        for table in TABLES.values():
            expected: list[Row] = sorted(
                getattr(rows, table.name), key=lambda row: row[: table.key_size]
            )
            difference = await self._compare(table, expected, number, archived)
            if difference is not None:
                return difference
        return None

    async def _fold(self, number: int) -> tuple[Following, set[str]]:
        """The fold at the position of the rows, and the runs that began with a snapshot."""
        keep = None
        if self.slices > 1:

            def keep(run_id: str) -> bool:
                return self._slice_of(name(run_id)) == number

        codec, end = self.store.codec, self.at.position.offset_next
        archived: set[str] = set()
        if self.start == 0:
            following = Following(codec, self.partition, keep=keep)
        else:
            following, archived = await self._from_snapshots(codec, keep, end)
        begun = offset = following.fold.position.offset_next
        while offset < end:
            records = await self.log.read(Topic.EVENTS, self.partition, offset, size_max=READ_BYTES)
            if not records:
                break
            for record in records:
                if record.offset >= end:
                    break
                try:
                    following.apply(record)
                except SchemaUnavailable as unknown:
                    await self._learn(following, record, unknown)
            offset = records[-1].offset + 1
            if self.on_progress is not None:
                done = number * (end - begun) + min(offset, end) - begun
                self.on_progress(done, self.slices * (end - begun))
            await asyncio.sleep(0)
        return following, archived

    async def _learn(self, following: Following, record: Any, unknown: SchemaUnavailable) -> None:
        try:
            await learn(self.store.codec, unknown)
        except SchemaUnavailable as still:
            if still.mends:
                raise
            following.apply(record, unknown=still)
        else:
            following.apply(record)

    async def _from_snapshots(
        self, codec: Codec, keep: Callable[[str], bool] | None, end: int
    ) -> tuple[Following, set[str]]:
        restored = await checkpoints.load(self.log, self.partition, codec, keep=keep)
        base = restored.base
        if base.position.offset_next > end:
            raise TablesBehindLog(self.partition, end, base.position.offset_next)
        begun = At(base.position, base.facts, at(base.position.time_last_ms or None))
        following = Following(codec, self.partition, begun, keep=keep)
        states, marks = restored.fold.runs, restored.fold.marks
        # A snapshot beyond the rows' position says more than they can.
        runs = {one: Kept(states[one], marks[one], None) for one in states}
        following.take_back(runs)
        following.show_all(runs)
        return following, {name(one) for one in runs}

    def _compare_position(self, fresh: At) -> Difference | None:
        if self.start > 0:  # a checkpoint counts unclean ends and claims from further back
            pairs: Iterable[tuple[str, object, object]] = (
                ("claim_id", fresh.position.claim_id, self.at.position.claim_id),
                ("n_next", fresh.position.n_next, self.at.position.n_next),
                ("command_next", fresh.position.command_next, self.at.position.command_next),
            )
        else:
            shown = fresh._replace(facts=escaped(fresh.facts))
            pairs = (
                *_fields(shown.position, self.at.position),
                *_fields(shown.facts, self.at.facts),
                ("claimed_at", shown.claimed_ms, self.at.claimed_ms),
            )
        for column, log, found in pairs:
            if log != found:
                return Difference(
                    self.partition,
                    "positions",
                    (self.partition,),
                    column,
                    _shown(log),
                    _shown(found),
                )
        return None

    async def _compare(
        self, table: Table, expected: list[Row], number: int, archived: set[str]
    ) -> Difference | None:
        columns = [column for column, _ in table.columns]
        run_at = columns.index("run_id")
        skipped = OF_VALUES.get(table.name, frozenset())
        wanted = iter(expected)
        async for found in self._rows(table):
            if self._slice_of(found[run_at]) != number:
                continue
            if table.name == "rejections" and self.start > 0:
                continue  # those before the snapshots are known to nobody else any more
            row = next(wanted, None)
            if row is None or row[: table.key_size] > found[: table.key_size]:
                return self._differs(table, found, "(the row)", "no such row", "one")
            if row[: table.key_size] < found[: table.key_size]:
                return self._differs(table, row, "(the row)", "one", "no such row")
            self.row_count += 1
            less = skipped if row[run_at] in archived else frozenset()
            for place, (column, kind) in enumerate(table.columns):
                log, there = row[place], found[place]
                if log == there or column in less:
                    continue
                if kind == "json" and _tree(log) == _tree(there):
                    continue
                if column == "kept" and self._decoded(log) == self._decoded(there):
                    continue
                return self._differs(table, row, column, _shown(log), _shown(there))
            self.digest.update(repr((table.name, *_hashed(table, row))).encode())
        row = next(wanted, None)
        if row is not None and not (table.name == "rejections" and self.start > 0):
            return self._differs(table, row, "(the row)", "one", "no such row")
        return None

    async def _rows(self, table: Table) -> AsyncIterator[Row]:
        statement = table.take(self.store.schema, "partition = $1")
        async for one in self.connection.cursor(statement, self.partition, prefetch=2_000):
            yield tuple(one)

    def _decoded(self, packed: object) -> object:
        return self.store.codec.decode(packed) if isinstance(packed, bytes) else packed

    def _differs(self, table: Table, row: Row, column: str, log: str, found: str) -> Difference:
        return Difference(self.partition, table.name, row[: table.key_size], column, log, found)


def _fields(one: Any, other: Any) -> list[tuple[str, object, object]]:
    return list(zip(one._fields, one, other, strict=True))


def _hashed(table: Table, row: Row) -> Iterable[object]:
    for value, (_, kind) in zip(row, table.columns, strict=True):
        yield _canonical(_tree(value)) if kind == "json" else value


def _canonical(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return sorted((key, _canonical(item)) for key, item in tree.items())
    return [_canonical(item) for item in tree] if isinstance(tree, list) else tree


def _tree(said: str | None) -> Any:
    """JSON as it is compared: numbers by value, whatever they are written like."""
    if said is None:
        return None
    return json.loads(said, parse_float=Decimal, parse_int=Decimal)


def _shown(value: object) -> str:
    told = repr(value)
    return told if len(told) <= SHOWN_MAX else f"{told[:SHOWN_MAX]}…"
