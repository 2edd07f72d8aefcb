"""What the conformance suite may do to a log in an SQLite file: everything."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from refold.log import Ack, Entry, Log, Topic
from refold.log.rows import FORMAT_HOLE, seal
from refold.log.sqlite import SqliteLog
from refold.log.sqlite_file import OFFSET_BITS
from refold.testing.log_conformance import Can, MakeLog


class MakeSqliteLog(MakeLog):
    can: ClassVar[frozenset[Can]] = frozenset(Can)
    lost_answers: ClassVar[tuple[str, ...]] = ("locked by another process", "closed meanwhile")

    def __init__(self, path: Path, *, idle: bool = False) -> None:
        """`idle`: appends may be made on the caller's thread, as of a worker with nothing to do."""
        self.path, self.idle = path, idle
        # Long enough that a slow machine does not lose a lease that it keeps.
        self.lease_ms = 1_500
        self.round_ms = 100

    def __call__(self) -> SqliteLog:
        log = SqliteLog(
            f"sqlite:///{self.path}?partitions=5",
            batch_size_max=128 * 1024,
            lease_ms=self.lease_ms,
            lock_timeout_ms=1_500,
        )
        log.idle_when(lambda: self.idle)
        return log

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, isolation_level=None, timeout=10)

    async def kill(self, log: Log) -> None:
        assert isinstance(log, SqliteLog)
        await log.kill()

    async def hole(self, log: Log, topic: Topic, partition: int, count: int) -> None:
        # A log in a file has no holes by itself; one that was copied from a broker would.
        _, end = await log.bounds(topic, partition)
        connection = self.connect()
        (stream,) = connection.execute(
            "SELECT stream FROM streams WHERE topic = ? AND partition = ?", (topic.value, partition)
        ).fetchone()
        position = (stream << OFFSET_BITS) + end
        body = seal(FORMAT_HOLE, b"", position=position, record_count=count, append_ms=0)
        connection.execute("BEGIN")
        connection.execute("INSERT INTO batches VALUES (?, ?, 0, ?)", (position, count, body))
        connection.execute(
            "UPDATE streams SET next_offset = ? WHERE stream = ?", (end + count, stream)
        )
        connection.execute("COMMIT")
        connection.close()

    async def compact(self, log: Log) -> None:
        """Nothing to do: each append replaces its keys."""

    async def append_unanswered(
        self, way: str, log: Log, topic: Topic, partition: int, entries: Sequence[Entry]
    ) -> Ack:
        # The writer thread waits for the lock: the append is under way, the answer is not there.
        connection = self.connect()
        connection.execute("BEGIN IMMEDIATE")
        append = asyncio.ensure_future(log.append(topic, partition, entries))
        await asyncio.sleep(0.05)
        if way == "closed meanwhile":
            closing = asyncio.ensure_future(log.close())
            await asyncio.sleep(0.05)
            connection.execute("ROLLBACK")
            connection.close()
            await closing
        else:
            await asyncio.wait([append])
            connection.close()
        return await append
