"""A process of its own on an SQLite log, to be killed, frozen or limited by a test.

python sqlite_process.py write PATH NAME     append without end, one line `ACK OFFSET SEQ` for each
python sqlite_process.py lease PATH MS       suggest ten times a second, one line for each answer
python sqlite_process.py limited PATH BYTES  append until the file may not grow any more
"""

import asyncio
import hashlib
import os
import resource
import sys
from pathlib import Path

from refold.log import Entry, Topic
from refold.log.sqlite import SqliteLog
from refold_schemas.errors import LogUnavailable


def batch_of(name: str, seq: int) -> list[Entry]:
    """The batch that writer `name` appends as its `seq`th: a reader can tell if it is whole."""
    count = 1 + seq * 7 % 23
    return [
        Entry(
            name.encode(),
            f"{name} {seq} {at} {count} ".encode()
            + hashlib.sha256(b"%d %d" % (seq, at)).digest() * (1 + seq % 11),
            b"\1" + bytes(49),
        )
        for at in range(count)
    ]


def say(line: str) -> None:
    # At once and whole, so that a SIGKILL takes nothing of it back.
    os.write(1, line.encode() + b"\n")


async def write(path: Path, name: str) -> None:
    log = SqliteLog(path, lock_timeout_ms=30_000)
    await log.open(create=True)
    say("OPEN")

    async def append(seq: int) -> None:
        ack = await log.append(Topic.EVENTS, 0, batch_of(name, seq))
        say(f"ACK {ack.offset} {seq}")

    for seq in range(0, 1_000_000, 3):
        # Three at a time, so that a group commit is hit too.
        await asyncio.gather(append(seq), append(seq + 1), append(seq + 2))


async def lease(path: Path, lease_ms: int) -> None:
    log = SqliteLog(path, lease_ms=lease_ms)
    await log.open(create=True)
    while True:
        say(f"HAS {sorted((await log.suggest('child')).partitions)}")
        await asyncio.sleep(0.1)


async def limited(path: Path, size: int) -> None:
    log = SqliteLog(path)
    await log.open(create=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    for seq in range(1_000_000):
        try:
            ack = await log.append(Topic.EVENTS, 0, batch_of("limited", seq))
        except LogUnavailable as error:
            say(f"ERROR {type(error).__name__} {error.stored}")
            return
        say(f"ACK {ack.offset} {seq}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", path, name]:
            asyncio.run(write(Path(path), name))
        case ["lease", path, lease_ms]:
            asyncio.run(lease(Path(path), int(lease_ms)))
        case ["limited", path, size]:
            asyncio.run(limited(Path(path), int(size)))
