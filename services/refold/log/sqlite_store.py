"""What is read from and written into the tables of the SQLite log, inside a transaction.

Rows of a stream lie end to end from its start to its end, and the stream's own row says where both
are; offsets that were left out have a row that says so. So a row that is missing is found out, the
last one too: damage that SQLite does not notice must not make a log shorter.
"""

import sqlite3
from collections.abc import Generator, Sequence
from typing import NamedTuple

from refold.log.port import Ack, Entry, Record, Topic
from refold.log.rows import RowDamaged, seal, unseal
from refold.log.sqlite_file import OFFSET_BITS, Place
from refold_schemas.errors.log import LogCorrupted, OffsetOutOfRange

TOMBSTONE_MS = 24 * 3_600_000
"""How long the deletion of a key in `snapshots` can still be read, as Kafka's default."""
STEP_BACK_MAX_MS = 5_000
"""By so much the log's clock may be ahead of the machine's: as much as a claim allows."""


class Stream(NamedTuple):
    """One partition of one topic: `number` is its place in the tables."""

    number: int
    topic: Topic
    partition: int

    @property
    def first(self) -> int:
        """The position of its offset 0."""
        return self.number << OFFSET_BITS

    @property
    def limit(self) -> int:
        """The position after all of its rows."""
        return (self.number + 1) << OFFSET_BITS


class Extent(NamedTuple):
    """How far a stream reaches.

    `start` is the first offset that is kept, `end` the next one to be written, `readable` the one
    after the last record: lower than `end` where offsets were left out at the end.
    """

    start: int
    end: int
    readable: int
    append_ms: int


class Packed(NamedTuple):
    """A batch made ready: in the compacted topic a format and payload for each record, else one."""

    stream: Stream
    entries: Sequence[Entry]
    payloads: Sequence[tuple[int, bytes]]


def extent_of(connection: sqlite3.Connection, place: Place, stream: Stream) -> Extent:
    """Where the stream begins and ends, as its own row says."""
    row = connection.execute(
        "SELECT start_offset, next_offset, readable_offset, append_ms FROM streams"
        " WHERE stream = ?",
        (stream.number,),
    ).fetchone()
    if row is None or not all(isinstance(number, int) for number in row):
        raise _damage(place, stream, None, "its row in the table of streams is damaged")
    return Extent(*row)


def extent_to_write(connection: sqlite3.Connection, place: Place, stream: Stream) -> Extent:
    """As `extent_of`, and the last row is where it says: nothing is written over a damaged end."""
    extent = extent_of(connection, place, stream)
    if stream.topic is not Topic.SNAPSHOTS:
        last = connection.execute(
            "SELECT position + record_count FROM batches WHERE position >= ? AND position < ?"
            " ORDER BY position DESC LIMIT 1",
            (stream.first, stream.limit),
        ).fetchone()
        end = extent.start if last is None else last[0] - stream.first
        if end != extent.end:
            raise _damage(
                place, stream, end, f"it should end at {extent.end}, its last row ends at {end}"
            )
    return extent


def read_records(
    connection: sqlite3.Connection, place: Place, stream: Stream, offset: int, size_max: int
) -> list[Record]:
    """Records from `offset` on, batch by batch until `size_max` bytes are reached.

    Sound records that lie before a damaged row are given first; the damage is said by the read
    that begins there. Raises OffsetOutOfRange, and LogCorrupted with the offset.
    """
    extent = extent_of(connection, place, stream)
    if offset < extent.start:
        raise OffsetOutOfRange(
            topic=stream.topic.value,
            partition=stream.partition,
            offset=offset,
            start=extent.start,
            end=extent.end,
        )
    found: list[Record] = []
    if offset >= extent.readable:
        return found
    if stream.topic is Topic.SNAPSHOTS:
        rows = _latest_rows(connection, place, stream, offset)
    else:
        rows = _batch_rows(connection, place, stream, offset, extent.end)
    size = 0
    try:
        for records in rows:
            for record in records:
                if record.offset >= offset:
                    found.append(record)
                    size += 64 + sum(len(part) for part in record[1:4] if part is not None)
            if size >= size_max:
                break
    except (sqlite3.Error, LogCorrupted):
        if not found:
            raise
    finally:
        rows.close()
    return found


def _batch_rows(
    connection: sqlite3.Connection, place: Place, stream: Stream, offset: int, end: int
) -> Generator[list[Record], None, None]:
    # From the batch that holds the offset, which may begin before it.
    cursor = connection.execute(
        "SELECT position, record_count, append_ms, body FROM batches"
        " WHERE position >= coalesce((SELECT max(position) FROM batches"
        " WHERE position BETWEEN ? AND ?), ?) AND position < ? ORDER BY position",
        (stream.first, stream.first + offset, stream.first, stream.limit),
    )
    try:
        reached = None
        for position, count, append_ms, body in cursor:
            base_offset = position - stream.first
            if not isinstance(count, int) or count < 1:
                raise _damage(place, stream, base_offset, "its row is damaged")
            if reached is None and base_offset <= offset < base_offset + count:
                reached = base_offset
            if reached != base_offset or base_offset >= end:
                # Rows that are missing, or rows behind the end.
                raise _damage(
                    place, stream, offset if reached is None else reached, "its row is missing"
                )
            reached += count
            yield _unseal(place, stream, body, position, base_offset, count, append_ms)
    finally:
        cursor.close()
    if reached != end:
        raise _damage(place, stream, offset if reached is None else reached, "its row is missing")


def _latest_rows(
    connection: sqlite3.Connection, place: Place, stream: Stream, offset: int
) -> Generator[list[Record], None, None]:
    cursor = connection.execute(
        "SELECT position, append_ms, body FROM latest WHERE position >= ? AND position < ?"
        " ORDER BY position",
        (stream.first + offset, stream.limit),
    )
    try:
        for position, append_ms, body in cursor:
            at = position - stream.first
            yield _unseal(place, stream, body, position, at, 1, append_ms)
    finally:
        cursor.close()


def _unseal(
    place: Place,
    stream: Stream,
    body: bytes,
    position: int,
    base_offset: int,
    count: int,
    append_ms: int,
) -> list[Record]:
    try:
        if not isinstance(body, bytes) or not isinstance(append_ms, int):
            raise RowDamaged("its row is damaged")
        return unseal(
            body,
            position=position,
            base_offset=base_offset,
            record_count=count,
            append_ms=append_ms,
        )
    except RowDamaged as damage:
        raise _damage(place, stream, base_offset, str(damage)) from damage


def _damage(place: Place, stream: Stream, offset: int | None, reason: str) -> LogCorrupted:
    where = "" if offset is None else f" at offset {offset}"
    return LogCorrupted(
        place.url,
        f"{stream.topic.value} partition {stream.partition}{where}: {reason}",
        topic=stream.topic.value,
        partition=stream.partition,
        offset=offset,
    )


def _append_ms(now_ms: int, last_ms: int) -> int:
    """The log's own clock: the machine's, but for small steps back, which it waits out.

    A clock that was set back by more was wrong, or is: were the log to go on from where it stood,
    nobody could claim it (R015) until then, which may be years.
    """
    return now_ms if last_ms - now_ms > STEP_BACK_MAX_MS else max(now_ms, last_ms)


def store(
    connection: sqlite3.Connection,
    place: Place,
    batches: Sequence[Packed],
    extents: dict[Stream, Extent],
    now_ms: int,
) -> list[Ack]:
    """Store batches, each at the end of its stream; `extents` is what is known, and is kept."""
    acks: list[Ack] = []
    rows: list[tuple[int, int, int, bytes]] = []
    touched: dict[Stream, Extent] = {}
    for stream, entries, payloads in batches:
        extent = extents.get(stream) or extent_to_write(connection, place, stream)
        append_ms = _append_ms(now_ms, extent.append_ms)
        count, position = len(entries), stream.first + extent.end
        if stream.topic is Topic.SNAPSHOTS:
            _store_latest(connection, stream, entries, payloads, position, append_ms)
        else:
            format_, payload = payloads[0]
            body = seal(
                format_, payload, position=position, record_count=count, append_ms=append_ms
            )
            rows.append((position, count, append_ms, body))
        acks.append(Ack(extent.end, append_ms))
        end = extent.end + count
        extents[stream] = touched[stream] = Extent(extent.start, end, end, append_ms)
    if rows:
        connection.executemany("INSERT INTO batches VALUES (?, ?, ?, ?)", rows)
    connection.executemany(
        "UPDATE streams SET next_offset = ?, readable_offset = ?, append_ms = ? WHERE stream = ?",
        [(e.end, e.readable, e.append_ms, stream.number) for stream, e in touched.items()],
    )
    return acks


def prepare_to_store(connection: sqlite3.Connection) -> None:
    """Let a row that this connection writes move the end of its stream, for `store_one`."""
    end = f"NEW.position + NEW.record_count - (stream << {OFFSET_BITS})"
    connection.execute(
        "CREATE TEMP TRIGGER moves_the_end AFTER INSERT ON main.batches BEGIN"
        f" UPDATE streams SET next_offset = {end}, readable_offset = {end},"
        f" append_ms = NEW.append_ms WHERE stream = NEW.position >> {OFFSET_BITS}; END"
    )


def store_one(
    connection: sqlite3.Connection, batch: Packed, extent: Extent, now_ms: int
) -> Extent | None:
    """Store a batch behind `extent` in one statement, a transaction of its own: the extent then.

    None, with nothing stored, if the stream does not end there: another process has appended.
    Each statement gives the interpreter away and has to get it back from a busy engine, so their
    number is what an append costs there.
    """
    stream, entries, payloads = batch
    append_ms = _append_ms(now_ms, extent.append_ms)
    count, position = len(entries), stream.first + extent.end
    body = seal(*payloads[0], position=position, record_count=count, append_ms=append_ms)
    stored = connection.execute(
        "INSERT INTO batches SELECT ?, ?, ?, ? FROM streams WHERE stream = ?"
        " AND next_offset = ? AND readable_offset = ? AND append_ms = ?",
        (position, count, append_ms, body, stream.number, *extent[1:]),
    )
    if stored.rowcount != 1:
        return None
    end = extent.end + count
    return Extent(extent.start, end, end, append_ms)


def _store_latest(
    connection: sqlite3.Connection,
    stream: Stream,
    entries: Sequence[Entry],
    payloads: Sequence[tuple[int, bytes]],
    position: int,
    append_ms: int,
) -> None:
    """Store records of the compacted topic: each replaces the one of the same key."""
    for at, (entry, payload) in enumerate(zip(entries, payloads, strict=True), position):
        body = seal(*payload, position=at, record_count=1, append_ms=append_ms)
        connection.execute(
            "INSERT OR REPLACE INTO latest VALUES (?, ?, ?, ?, ?)",
            (at, entry.key, append_ms, entry.value is None, body),
        )
    if any(entry.value is None for entry in entries):
        connection.execute(
            "DELETE FROM latest WHERE deleted AND append_ms < ? AND position >= ? AND position < ?",
            (append_ms - TOMBSTONE_MS, stream.first, position),
        )


def trim(connection: sqlite3.Connection, place: Place, stream: Stream, before_offset: int) -> int:
    """Delete the records before `before_offset`, and return the start of what is left."""
    extent = extent_to_write(connection, place, stream)
    start = max(extent.start, min(before_offset, extent.end))
    if stream.topic is Topic.SNAPSHOTS:
        connection.execute(
            "DELETE FROM latest WHERE position >= ? AND position < ?",
            (stream.first, stream.first + start),
        )
    else:
        # A batch that reaches over the new start stays; reads leave out its first records.
        connection.execute(
            "DELETE FROM batches WHERE position >= ? AND position < ?"
            " AND position + record_count <= ?",
            (stream.first, stream.first + start, stream.first + start),
        )
    connection.execute(
        "UPDATE streams SET start_offset = ? WHERE stream = ?", (start, stream.number)
    )
    return start
