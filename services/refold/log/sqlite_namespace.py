"""A namespace in the file: read when a handle is opened, or made."""

import sqlite3
import uuid
from functools import partial
from typing import NamedTuple

from refold.log.port import LogFacts, Topic
from refold.log.sqlite_file import Place
from refold.log.sqlite_store import Stream
from refold.log.sqlite_transactions import transaction
from refold_schemas.errors.log import LogCorrupted, LogMissing, LogUrlInvalid

# What is appended most lies last in the file, where SQLite fills its pages best.
_STREAM_ORDER = (Topic.DEAD_LETTERS, Topic.SNAPSHOTS, Topic.COMMANDS, Topic.EVENTS)


class Namespace(NamedTuple):
    """What the file says of it. `made`: it was not there before."""

    number: int
    facts: LogFacts
    streams: dict[tuple[Topic, int], Stream]
    made: bool


def load_namespace(
    connection: sqlite3.Connection,
    place: Place,
    *,
    create: bool,
    batch_size_max: int,
    now_ms: int,
) -> Namespace:
    """Read what the namespace of `place` is; with `create`, make it where it is missing.

    Raises LogMissing, LogCorrupted, and LogUrlInvalid for another partition count.
    """
    made = False
    row = _row(connection, place.namespace)
    if row is None and create:
        make = partial(_make, place=place, batch_size_max=batch_size_max, now_ms=now_ms)
        made = transaction(connection, make)
        row = _row(connection, place.namespace)
    if row is None:
        names = [name for (name,) in connection.execute("SELECT name FROM namespaces")]
        raise LogMissing(
            place.url,
            f"{place.path} has no namespace {place.namespace!r}"
            f" (it has: {', '.join(sorted(names)) or 'none'})",
        )
    number, partition_count, batch_size_max = row
    if place.partition_count not in (None, partition_count):
        raise LogUrlInvalid(
            place.url,
            f"it asks for {place.partition_count} partitions, the namespace"
            f" {place.namespace!r} was made with {partition_count}",
        )
    ids = dict(
        connection.execute(
            "SELECT topic, topic_id FROM topics WHERE namespace = ?", (number,)
        ).fetchall()
    )
    streams = {
        (Topic(topic), partition): Stream(stream, Topic(topic), partition)
        for topic, partition, stream in connection.execute(
            "SELECT topic, partition, stream FROM streams WHERE namespace = ?", (number,)
        )
    }
    if set(streams) != {(t, p) for t in Topic for p in range(partition_count)}:
        raise LogCorrupted(place.url, "the table of streams is damaged")
    facts = LogFacts(
        place.namespace,
        partition_count,
        tuple(ids[topic.value] for topic in Topic),
        batch_size_max,
    )
    return Namespace(number, facts, streams, made)


def _make(
    connection: sqlite3.Connection, *, place: Place, batch_size_max: int, now_ms: int
) -> bool:
    if _row(connection, place.namespace) is not None:
        return False  # another process was first
    count = place.partition_count or 1
    number = connection.execute(
        "INSERT INTO namespaces (name, partition_count, batch_size_max, made_ms)"
        " VALUES (?, ?, ?, ?)",
        (place.namespace, count, batch_size_max, now_ms),
    ).lastrowid
    for topic in _STREAM_ORDER:
        connection.execute(
            "INSERT INTO topics VALUES (?, ?, ?)", (number, topic.value, str(uuid.uuid4()))
        )
        connection.executemany(
            "INSERT INTO streams (namespace, topic, partition) VALUES (?, ?, ?)",
            [(number, topic.value, partition) for partition in range(count)],
        )
    return True


def _row(connection: sqlite3.Connection, name: str) -> tuple[int, int, int] | None:
    row: tuple[int, int, int] | None = connection.execute(
        "SELECT namespace, partition_count, batch_size_max FROM namespaces WHERE name = ?", (name,)
    ).fetchone()
    return row
