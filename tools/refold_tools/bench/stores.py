"""Where a measured log is kept: a SQLite file, or topics on a broker; each time a new one."""

import asyncio
import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from refold.log import Entry, Topic, open_log
from refold_tools.devstack import KAFKA, Ports, Stack

PARTITIONS = 4
"""Of a measured namespace on Kafka. Each has its own owner, and its own batch in flight."""
BROKER = "kafka-1"
WARM_ALL_S, WARM_ONE_S = 10.0, 30.0
WARM_BATCH = 100
"""A broker compiles its code while it runs, on the processors that the measured work needs: its
compiler takes three quarters of one at first, and rests after half a minute of appends, by when a
step takes three fifths of its time. It does so anew for batches of many records, which it looks
into one by one. What counts is one that has been up for a while, as brokers are."""


class Store(Protocol):
    """Makes logs. `kind` and `durability` stand beside the figures."""

    kind: str
    durability: str
    folder: Path
    partitions: int

    def url(self, name: str) -> str:
        """The URL of a log that does not exist yet."""
        ...

    def stored(self, url: str) -> int | None:
        """Bytes that the log takes on disk; None where they cannot be seen."""
        ...

    def server_pids(self) -> tuple[int, ...]:
        """The servers behind it, as far as they run on this machine for this log alone."""
        ...


class SqliteStore:
    """A file for each log."""

    kind = "sqlite"
    durability = "SQLite, WAL, synchronous=FULL: an acknowledged event survives a power cut"
    partitions = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()

    def url(self, name: str) -> str:
        """The URL of a file that does not exist yet."""
        return f"sqlite:///{self.folder / f'{name}-{next(self._numbers)}.db'}"

    def stored(self, url: str) -> int:
        """Bytes in the file and its write-ahead log."""
        file = Path(url.removeprefix("sqlite:///"))
        wal = file.with_name(file.name + "-wal")
        return sum(part.stat().st_size for part in (file, wal) if part.exists())

    def server_pids(self) -> tuple[int, ...]:
        """There is no server."""
        return ()


class KafkaStore:
    """A namespace for each log. `stack`: a broker started for the measurement, if it was."""

    kind = "kafka"

    def __init__(
        self,
        folder: Path,
        servers: str,
        *,
        prefix: str = "bench",
        partitions: int | None = None,
        stack: Stack | None = None,
    ) -> None:
        self.folder, self._servers, self._prefix, self._stack = folder, servers, prefix, stack
        self.partitions = partitions or PARTITIONS
        self._numbers = itertools.count()
        what = "one broker of its own" if stack is not None else f"the brokers at {servers}"
        self.durability = (
            f"Kafka, {what}, acks=all, {self.partitions} partitions: an acknowledged event "
            "survives a killed process; a lost disk where there are replicas"
        )

    def url(self, name: str) -> str:
        """The URL of a namespace that does not exist yet."""
        namespace = f"{self._prefix}-{name}-{os.getpid()}-{next(self._numbers)}"
        return f"kafka://{self._servers}/{namespace}?partitions={self.partitions}"

    def stored(self, url: str) -> int | None:
        """Bytes in the segments of all topics of the namespace, without indexes."""
        if self._stack is None:
            return None
        namespace = url.partition("?")[0].rpartition("/")[2]
        data = self._stack.folder / BROKER / "data"
        return sum(file.stat().st_size for file in data.glob(f"{namespace}.*/*.log"))

    def server_pids(self) -> tuple[int, ...]:
        """The broker."""
        return () if self._stack is None else (self._stack.pid(BROKER),)


@contextlib.contextmanager
def open_store(on: str, log: str | None, folder: Path) -> Iterator[Store]:
    """The store of the kind `on`, or on the brokers of the URL `log`; what it started is ended."""
    if log is not None:
        from refold.log.kafka_url import parse_url

        place = parse_url(log)
        yield KafkaStore(
            folder, place.servers, prefix=place.namespace, partitions=place.partition_count
        )
    elif on == KafkaStore.kind:
        with own_broker(folder / "stack") as stack:
            store = KafkaStore(folder, stack.bootstrap, stack=stack)
            asyncio.run(_warm(store.url("warm")))
            yield store
    else:
        yield SqliteStore(folder)


@contextlib.contextmanager
def own_broker(folder: Path) -> Iterator[Stack]:
    """A broker on free ports, with its data in `folder`, that ends with this process."""
    with Stack.up(folder, ports=Ports.free(), services=(KAFKA,), tied=True) as stack:
        yield stack


async def _warm(url: str) -> None:
    """Append, wait and read until the broker has compiled what it needs for that.

    First batches of many records on all partitions at once, then of one record on one partition:
    as many runs do it, and as a single run does.
    """
    log = open_log(url)
    await log.open(create=True)
    offsets = [0] * PARTITIONS
    numbers = itertools.count()

    async def rounds(partition: int, entry_count: int, end_s: float) -> None:
        while time.monotonic() < end_s:
            offset = offsets[partition]
            waiting = asyncio.ensure_future(
                log.wait(Topic.EVENTS, partition, offset, timeout_ms=1_000)
            )
            entries = [
                Entry(b"run-%d" % number, b"%d" % next(numbers) + b"x" * 300, b"%30d" % number)
                for number in range(entry_count)
            ]
            await log.append(Topic.EVENTS, partition, entries)
            await waiting
            offsets[partition] = (await log.read(Topic.EVENTS, partition, offset))[-1].offset + 1

    end_s = time.monotonic() + WARM_ALL_S
    await asyncio.gather(*(rounds(partition, WARM_BATCH, end_s) for partition in range(PARTITIONS)))
    await rounds(0, 1, end_s + WARM_ONE_S)
    await log.close()
