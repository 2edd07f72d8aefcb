"""The SQLite log among real processes and on bad ground: kills, locks, damage, no room."""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from refold import App, Client, Effect, Policy, RunContext
from refold.engine.clock import SystemClock
from refold.log import Entry, Topic
from refold.log.sqlite import SqliteLog
from refold.log.sqlite_commits import Commits
from refold.log.sqlite_watch import FILE_CHECK_MS
from refold.worker import Worker
from refold_schemas.errors import (
    AppendUnknown,
    LogCorrupted,
    LogForeign,
    LogFull,
    LogLocked,
    LogMissing,
    LogReadOnly,
    LogUnavailable,
)
from refold_schemas.errors.cli import CommandRefused
from support.sqlite_process import batch_of

Stored = list[tuple[int, Entry]]
SCRIPT = Path(__file__).parent.parent / "support" / "sqlite_process.py"


@contextlib.contextmanager
def process(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    assert line, "the process has ended by itself"
    return line


async def everything(path: Path) -> Stored:
    log = SqliteLog(path)
    await log.open(create=False)
    found = []
    offset = 0
    while records := await log.read(Topic.EVENTS, 0, offset):
        found += [(r.offset, Entry(r.key, r.value, r.header)) for r in records]
        offset = records[-1].offset + 1
    await log.close()
    return found


def check_whole_batches(found: Stored, acknowledged: dict[int, list[Entry]]) -> None:
    """Every acknowledged batch is at its offset, and everything that is there is whole batches."""
    assert [offset for offset, _ in found] == list(range(len(found)))
    by_offset = dict(found)
    for offset, batch in acknowledged.items():
        assert [by_offset[offset + at] for at in range(len(batch))] == batch
    at = 0
    while at < len(found):
        assert found[at][1].value is not None
        name, seq = (found[at][1].value or b"").split()[:2]
        batch = batch_of(name.decode(), int(seq))
        assert [entry for _, entry in found[at : at + len(batch)]] == batch
        at += len(batch)


def test_a_killed_writer_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """SIGKILL at any moment, again and again, two writers on one file."""
    chance = random.Random(11)
    path = tmp_path / "log.db"
    acknowledged: dict[int, list[Entry]] = {}

    def note(name: str, line: str) -> None:
        if line.startswith("ACK"):
            _, offset, seq = line.split()
            acknowledged[int(offset)] = batch_of(name, int(seq))

    for kill in range(10):
        one, other = f"one{kill}", f"other{kill}"
        with process("write", path, one) as a, process("write", path, other) as b:
            for _ in range(chance.randint(2, 60)):
                note(one, line_of(a))
            note(other, line_of(b))
            a.kill()
            rest, _ = a.communicate()
            b.kill()
            rest_of_b, _ = b.communicate()
        for name, text in ((one, rest), (other, rest_of_b)):
            for line in text.splitlines():
                note(name, line)
        check_whole_batches(asyncio.run(everything(path)), acknowledged)
    assert len(acknowledged) > 50


def test_processes_append_and_wait_on_one_file(tmp_path: Path) -> None:
    """Three writers and a reader that is woken by them sees every batch whole."""
    path = tmp_path / "log.db"

    async def main() -> None:
        log = SqliteLog(path, lock_timeout_ms=30_000)
        await log.open(create=True)
        found: Stored = []
        names: set[bytes | None] = set()
        while len(names) < 3 or len(found) < 500:
            assert await log.wait(Topic.EVENTS, 0, len(found), timeout_ms=60_000)
            records = await log.read(Topic.EVENTS, 0, len(found))
            found += [(r.offset, Entry(r.key, r.value, r.header)) for r in records]
            names |= {record.key for record in records}
        check_whole_batches(found, {})
        await log.close()

    with process("write", path, "a"), process("write", path, "b"), process("write", path, "c"):
        asyncio.run(main())


def kill_to_a_zombie(child: subprocess.Popen[str]) -> None:
    """Dead, but not reaped yet."""
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def test_a_killed_process_frees_its_lease_at_once(tmp_path: Path) -> None:
    """Its pid is gone (or a zombie's): nobody waits for a lease of ten minutes."""
    path = tmp_path / "log.db"

    async def main(child: subprocess.Popen[str]) -> None:
        log = SqliteLog(path, lease_ms=600_000)
        await log.open(create=False)
        assert line_of(child) == "HAS [0]"
        assert (await log.suggest("parent")).partitions == frozenset()
        assert await log.owner_lives(0) is True
        kill_to_a_zombie(child)
        assert await log.owner_lives(0) is False
        assert (await log.suggest("parent")).partitions == {0}
        await log.close()

    with process("lease", path, 600_000) as child:
        line_of(child)
        asyncio.run(main(child))


def test_a_frozen_process_loses_its_lease_in_time(tmp_path: Path) -> None:
    """SIGSTOP stops the writer thread's heartbeat too; thawed, the process finds it gone."""
    path = tmp_path / "log.db"

    async def main(child: subprocess.Popen[str]) -> None:
        log = SqliteLog(path, lease_ms=1_000)
        await log.open(create=False)
        assert (await log.suggest("parent")).partitions == frozenset()
        child.send_signal(signal.SIGSTOP)
        while (await log.suggest("parent")).partitions != {0}:  # noqa: ASYNC110 - not an event
            await asyncio.sleep(0.1)
        child.send_signal(signal.SIGCONT)
        while line_of(child) != "HAS []":
            assert (await log.suggest("parent")).partitions == {0}
        await log.close()

    with process("lease", path, 1_000) as child:
        assert line_of(child) == "HAS [0]"
        asyncio.run(main(child))


def test_a_write_that_fails_in_the_commit_is_unknown(tmp_path: Path) -> None:
    """The kernel refuses the write in the middle of the commit: nobody can say if it is stored."""
    path = tmp_path / "log.db"
    acknowledged: dict[int, list[Entry]] = {}
    with process("limited", path, 600_000) as child:
        while (line := line_of(child)).startswith("ACK"):
            _, offset, seq = line.split()
            acknowledged[int(offset)] = batch_of("limited", int(seq))
        assert line == "ERROR LogUnavailable None"
        child.wait(60)
    check_whole_batches(asyncio.run(everything(path)), acknowledged)
    assert len(acknowledged) > 5


def test_a_full_log_refuses_and_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def main() -> None:
        log = SqliteLog(path, file_size_max=256 * 1024)
        await log.open(create=True)
        acknowledged: dict[int, list[Entry]] = {}

        async def fill() -> None:
            for seq in range(100_000):
                batch = batch_of("full", seq)
                ack = await log.append(Topic.EVENTS, 0, batch)
                acknowledged[ack.offset or 0] = batch

        with pytest.raises(LogFull) as full:
            await fill()
        assert full.value.stored is False, "the transaction was undone: this is known"
        assert "not stored" in full.value.kept
        await log.close()
        check_whole_batches(await everything(path), acknowledged)
        roomier = SqliteLog(path)
        await roomier.open(create=False)
        await roomier.append(Topic.EVENTS, 0, batch_of("full", 0))
        await roomier.close()

    asyncio.run(main())


def test_no_room_to_begin_with(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(LogFull):
            await SqliteLog(tmp_path / "log.db", file_size_max=8_192).open(create=True)
        log = SqliteLog(tmp_path / "log.db")
        assert await log.open(create=True), "half a log was not left behind"
        await log.close()

    asyncio.run(main())


def test_a_locked_log_is_waited_for_and_then_said(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def main() -> None:
        log = SqliteLog(path, lock_timeout_ms=200)
        await log.open(create=True)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LogLocked) as locked:
            await log.append(Topic.EVENTS, 0, batch_of("locked", 1))
        assert locked.value.stored is False
        assert await log.read(Topic.EVENTS, 0, 0) == [], "reads wait for nobody"
        with pytest.raises(LogLocked):
            await log.suggest("owner")
        with pytest.raises(LogLocked):
            await SqliteLog(f"sqlite:///{path}?ns=new", lock_timeout_ms=200).open(create=True)
        other.execute("ROLLBACK")
        assert (await log.append(Topic.EVENTS, 0, batch_of("locked", 1))).offset == 0
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        await log.close()
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LogLocked):
            await SqliteLog(path, lock_timeout_ms=200).open(create=False)
        other.close()

    asyncio.run(main())


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that a user without rights can reach (pytest's own is closed to others)."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path
        path.chmod(0o755)


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """As a user to whom file modes apply; root, who may run the tests, is above them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


def make_log(path: Path) -> None:
    async def main() -> None:
        log = SqliteLog(path)
        await log.open(create=True)
        await log.close()

    asyncio.run(main())


def refused_as_read_only(path: Path, *, create: bool) -> str:
    with without_rights(), pytest.raises(LogReadOnly) as refused:
        asyncio.run(SqliteLog(path).open(create=create))
    return str(refused.value)


def test_a_read_only_file_is_refused(open_directory: Path) -> None:
    path = open_directory / "log.db"
    make_log(path)
    path.chmod(0o444)
    open_directory.chmod(0o777)
    assert "log.db may not be written" in refused_as_read_only(path, create=True)


def test_a_read_only_directory_is_refused(open_directory: Path) -> None:
    path = open_directory / "log.db"
    open_directory.chmod(0o555)
    assert "nothing may be written in" in refused_as_read_only(path, create=True)
    open_directory.chmod(0o755)
    make_log(path)
    path.chmod(0o666)
    open_directory.chmod(0o555)
    assert "nothing may be written in" in refused_as_read_only(path, create=False)


def test_a_log_that_becomes_read_only_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        log = SqliteLog(tmp_path / "log.db")
        await log.open(create=True)
        await log.trim(Topic.EVENTS, 0, 0)
        await log._do(lambda connection: connection.execute("PRAGMA query_only = ON"))
        with pytest.raises(LogReadOnly) as refused:
            await log.append(Topic.EVENTS, 0, batch_of("a", 1))
        assert refused.value.stored is False
        await log.close()

    asyncio.run(main())


def test_places_that_cannot_be_a_log(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty.db").touch()
    os.mkfifo(tmp_path / "fifo")

    async def refusal(path: Path, *, create: bool) -> LogUnavailable:
        with pytest.raises(LogUnavailable) as refused:
            await SqliteLog(path).open(create=create)
        assert refused.value.exit_code == 4
        assert refused.value.next
        return refused.value

    async def main() -> None:
        assert "does not exist" in str(await refusal(tmp_path / "no" / "log.db", create=True))
        assert "does not exist" in str(await refusal(tmp_path / "file" / "log.db", create=True))
        assert "is a directory" in str(await refusal(tmp_path, create=True))
        assert "not a regular file" in str(await refusal(tmp_path / "fifo", create=True))
        assert isinstance(await refusal(tmp_path / "no.db", create=False), LogMissing)
        assert isinstance(await refusal(tmp_path / "empty.db", create=False), LogMissing)
        assert sorted(os.listdir(tmp_path)) == ["empty.db", "fifo", "file"]

    asyncio.run(main())


def test_a_file_of_another_application_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE customers (name TEXT)")
    other.commit()
    other.close()
    before = path.read_bytes()

    async def main() -> None:
        with pytest.raises(LogForeign, match="another application"):
            await SqliteLog(path).open(create=True)

    asyncio.run(main())
    assert path.read_bytes() == before


def test_a_newer_format_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def main() -> None:
        log = SqliteLog(path)
        await log.open(create=True)
        await log.close()
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 7")
        connection.close()
        with pytest.raises(LogForeign, match=r"has format 7, this version reads up to format 1"):
            await SqliteLog(path).open(create=True)

    asyncio.run(main())


def test_a_text_file_is_not_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_text("# notes\n" * 1_000)

    async def main() -> None:
        with pytest.raises(LogCorrupted, match="not a database"):
            await SqliteLog(path).open(create=True)

    asyncio.run(main())
    assert path.read_text().startswith("# notes")


def change_file(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


async def make_log_of(path: Path, batch_count: int) -> None:
    log = SqliteLog(path)
    await log.open(create=True)
    for _ in range(batch_count):
        await log.append(Topic.EVENTS, 0, [Entry(b"key", os.urandom(900), b"h" * 50)] * 2)
    await log.close()


def test_every_flipped_byte_of_a_batch_is_found_out(tmp_path: Path) -> None:
    """A disk that gives back another byte: said with the offset, and nothing is skipped."""
    path = tmp_path / "log.db"

    async def main() -> None:
        await make_log_of(path, 3)
        connection = sqlite3.connect(path)
        rows = connection.execute("SELECT position, body FROM batches ORDER BY position").fetchall()
        chance = random.Random(3)
        position, body = rows[1]
        for at in [0, 1, 2, 3, 4, 5, *chance.sample(range(6, len(body)), 25)]:
            flipped = bytearray(body)
            flipped[at] ^= 1 << chance.randrange(8)
            connection.execute(
                "UPDATE batches SET body = ? WHERE position = ?", (bytes(flipped), position)
            )
            connection.commit()
            log = SqliteLog(path)
            await log.open(create=False)
            assert len(await log.read(Topic.EVENTS, 0, 0)) == 2, "what is sound can be read"
            with pytest.raises(LogCorrupted) as damage:
                await log.read(Topic.EVENTS, 0, 2)
            assert (damage.value.partition, damage.value.offset) == (0, 2)
            assert len(await log.read(Topic.EVENTS, 0, 4)) == 2, "before and after it"
            await log.close()
        connection.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE batches SET body = (SELECT body FROM batches ORDER BY position LIMIT 1)",
        "UPDATE batches SET record_count = record_count + 1",
        "UPDATE batches SET append_ms = append_ms + 1",
        "UPDATE batches SET position = position + 1000",
        "UPDATE batches SET body = substr(body, 1, length(body) - 1)",
        "UPDATE batches SET body = x''",
        "UPDATE batches SET body = 7",
        "DELETE FROM batches",
    ],
)
def test_a_row_that_was_changed_is_found_out(tmp_path: Path, change: str) -> None:
    """The checksum covers the place and the columns too."""
    path = tmp_path / "log.db"

    async def main() -> None:
        await make_log_of(path, 3)
        where = " WHERE position = (SELECT max(position) FROM batches)"
        change_file(path, change + where)
        log = SqliteLog(path)
        await log.open(create=False)
        with pytest.raises(LogCorrupted):
            await log.read(Topic.EVENTS, 0, 4)
        await log.close()

    asyncio.run(main())


@pytest.mark.parametrize("offset", [0, 2, 4])
def test_a_row_that_is_missing_is_found_out(tmp_path: Path, offset: int) -> None:
    """The first, one in the middle, the last: the log does not become shorter or have a gap."""
    path = tmp_path / "log.db"

    async def main() -> None:
        await make_log_of(path, 3)
        change_file(path, f"DELETE FROM batches WHERE position & 0xFFFF = {offset}")
        log = SqliteLog(path)
        await log.open(create=False)
        assert await log.bounds(Topic.EVENTS, 0) == (0, 6)
        if offset:
            assert len(await log.read(Topic.EVENTS, 0, 0)) == offset
        with pytest.raises(LogCorrupted) as damage:
            await log.read(Topic.EVENTS, 0, offset)
        assert damage.value.offset == offset
        if offset == 4:
            with pytest.raises(LogCorrupted, match="should end at 6, its last row ends at 4"):
                await log.append(Topic.EVENTS, 0, batch_of("a", 1))
        await log.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE streams SET next_offset = next_offset + 1",
        "UPDATE streams SET next_offset = next_offset - 1",
        "UPDATE streams SET next_offset = 2",
        "UPDATE streams SET next_offset = 'x'",
        "DELETE FROM streams WHERE topic = 'events'",
        "UPDATE streams SET topic = 'event' WHERE topic = 'events'",
        "UPDATE streams SET partition = 3",
        "DELETE FROM topics",
        "UPDATE topics SET topic = CAST(x'ff' AS TEXT) WHERE topic = 'events'",
        "UPDATE namespaces SET partition_count = 2",
        "UPDATE namespaces SET partition_count = x'ff'",
    ],
)
def test_damage_in_the_small_tables_is_found_out(tmp_path: Path, change: str) -> None:
    """What says where the log ends is checked against the rows before anything is written."""
    path = tmp_path / "log.db"

    async def use() -> None:
        log = SqliteLog(path)
        await log.open(create=False)
        try:
            await log.append(Topic.EVENTS, 0, batch_of("a", 1))
        finally:
            await log.close()

    asyncio.run(make_log_of(path, 3))
    change_file(path, change)
    with pytest.raises(LogCorrupted):
        asyncio.run(use())


def test_damaged_pages_are_never_read_as_something_else(tmp_path: Path) -> None:
    """Pages overwritten at random: what is read is as it was written, or the damage is said."""
    path = tmp_path / "log.db"
    chance = random.Random(5)
    asyncio.run(make_log_of(path, 40))
    sound = path.read_bytes()
    whole = asyncio.run(everything(path))
    said = 0

    async def read_all() -> Stored:
        log = SqliteLog(path)
        try:
            await log.open(create=False)
            found = []
            offset = 0
            while records := await log.read(Topic.EVENTS, 0, offset):
                found += [(r.offset, Entry(r.key, r.value, r.header)) for r in records]
                offset = records[-1].offset + 1
            return found
        finally:
            await log.close()

    for _ in range(60):
        damaged = bytearray(sound)
        at = chance.randrange(100, len(sound) - 600)
        damaged[at : at + 512] = chance.randbytes(512)
        path.write_bytes(damaged)
        for beside in ("log.db-wal", "log.db-shm"):
            (tmp_path / beside).unlink(missing_ok=True)
        try:
            found = asyncio.run(read_all())
        except LogUnavailable:
            said += 1
            continue
        assert found == whole
    assert said > 20


def test_a_truncated_file_is_corrupted(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    asyncio.run(make_log_of(path, 40))
    path.write_bytes(path.read_bytes()[: 8 * 4096])

    with pytest.raises(LogCorrupted):
        asyncio.run(everything(path))


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_taken_away_acknowledges_nothing_more(
    tmp_path: Path, replaced: bool
) -> None:
    """SQLite would go on writing into a file that has no name any more; noticed within 20 ms."""
    path = tmp_path / "log.db"

    async def main() -> None:
        log = SqliteLog(path)
        await log.open(create=True)
        await log.append(Topic.EVENTS, 0, batch_of("a", 1))
        path.rename(tmp_path / "elsewhere.db")
        if replaced:
            path.write_bytes((tmp_path / "elsewhere.db").read_bytes())
        await asyncio.sleep(2 * FILE_CHECK_MS / 1000)
        with pytest.raises(LogUnavailable, match="replaced" if replaced else "removed"):
            await log.append(Topic.EVENTS, 0, batch_of("a", 2))
        await log.close()

    asyncio.run(main())


def test_a_wal_that_is_removed_ends_the_writing_and_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    """What only the removed `-wal` held is in the main file before anything more is refused.

    Read from a copy of the main file alone: what is left if every process is killed now.
    """
    path = tmp_path / "log.db"

    async def main() -> None:
        log, waited = SqliteLog(path), FILE_CHECK_MS / 500
        await log.open(create=True)
        await log.suggest("worker")
        for seq in range(20):
            await log.append(Topic.EVENTS, 0, batch_of("a", seq))
        (tmp_path / "log.db-wal").unlink()
        await asyncio.sleep(waited)
        with pytest.raises(LogUnavailable, match="db-wal was removed") as unknown:
            await log.append(Topic.EVENTS, 0, batch_of("a", 20))
        assert unknown.value.stored is None
        assert "it was copied into" in unknown.value.kept
        with pytest.raises(LogUnavailable, match="db-wal was removed") as refused:
            await log.append(Topic.EVENTS, 0, batch_of("a", 21))
        assert refused.value.stored is False
        with pytest.raises(LogUnavailable, match="db-wal was removed"):
            await log.suggest("worker")
        (tmp_path / "copy.db").write_bytes(path.read_bytes())
        await log.kill()

    asyncio.run(main())
    stored = [entry for _, entry in asyncio.run(everything(tmp_path / "copy.db"))]
    assert stored == [entry for seq in range(21) for entry in batch_of("a", seq)]


@pytest.mark.parametrize("beside", ["-wal", "-shm"])
def test_another_file_in_place_of_a_companion_ends_the_writing(tmp_path: Path, beside: str) -> None:
    path = tmp_path / "log.db"

    async def main() -> None:
        log = SqliteLog(path)
        await log.open(create=True)
        await log.append(Topic.EVENTS, 0, batch_of("a", 1))
        companion = tmp_path / f"log.db{beside}"
        companion.rename(tmp_path / "elsewhere")
        companion.write_bytes((tmp_path / "elsewhere").read_bytes())
        await asyncio.sleep(FILE_CHECK_MS / 500)
        with pytest.raises(LogUnavailable, match=f"db{beside} was replaced"):
            await log.append(Topic.EVENTS, 0, batch_of("a", 2))
        await log.kill()

    asyncio.run(main())


def test_a_log_behind_a_link_is_watched_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "real" / "log.db"
    path.parent.mkdir()
    (tmp_path / "link.db").symlink_to(path)

    async def main() -> None:
        log = SqliteLog(tmp_path / "link.db")
        await log.open(create=True)
        await asyncio.sleep(FILE_CHECK_MS / 500)
        await log.append(Topic.EVENTS, 0, batch_of("a", 1))
        (tmp_path / "real" / "log.db-wal").unlink()
        await asyncio.sleep(FILE_CHECK_MS / 500)
        with pytest.raises(LogUnavailable, match="db-wal was removed"):
            await log.append(Topic.EVENTS, 0, batch_of("a", 2))
        await log.kill()

    asyncio.run(main())


def test_a_writer_thread_that_fails_leaves_nobody_hanging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(commits: Commits, *, stored: bool | None = None) -> LogUnavailable:
        raise RuntimeError("a defect")

    monkeypatch.setattr(Commits, "lost", failing)
    said: list[dict[str, Any]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
        log = SqliteLog(tmp_path / "log.db")
        await log.open(create=True)
        waiting = asyncio.create_task(log.wait(Topic.EVENTS, 0, 10_000, timeout_ms=600_000))
        await asyncio.sleep(0)
        appends = [log.append(Topic.EVENTS, 0, batch_of("a", seq)) for seq in range(3)]
        for outcome in await asyncio.gather(*appends, return_exceptions=True):
            # Unknown where it was under way, refused where it had not been begun.
            assert isinstance(outcome, (AppendUnknown, LogUnavailable))
            assert "a defect" in str(outcome)
        assert await waiting is False
        with pytest.raises(LogUnavailable, match="a defect"):
            await log.append(Topic.EVENTS, 0, batch_of("a", 9))
        await log.close()

    asyncio.run(main())
    assert [type(context["exception"]) for context in said] == [RuntimeError]


FORKED = """
import os, sys, threading
from refold import BlockingClient

with BlockingClient(sys.argv[1], create=True) as client:
    child = os.fork()
    if not child:
        threading.Timer(10, os._exit, [9]).start()  # what waits for the parent's thread has no end
        try:
            client.runs()
        except Exception as error:
            client.close()
            print(f"{type(error).__name__}: {error}", flush=True)
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert client.runs() == []
"""


class Ahead(SystemClock):
    """The machine's clocks, of which the wall clock is ten years ahead."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 10 * 365 * 86_400_000


def test_a_log_that_a_wrong_clock_has_written_is_served_once_the_clock_is_right(
    tmp_path: Path,
) -> None:
    """On one machine the log's clock is the one that was set right: nobody waits ten years."""
    app = App("shop")

    @app.run("order")
    async def order(ctx: RunContext, pence: int) -> int:
        return pence

    async def serve(run_id: str, clock: SystemClock) -> None:
        log = SqliteLog(tmp_path / "log.db", now_ms=clock.wall_ms)
        await log.open(create=True)
        worker = Worker(app, log, clock=clock, watch=False)
        serving = asyncio.create_task(worker.run())
        async with Client(log) as client:
            started = asyncio.create_task(client.start("order", 5, run_id=run_id))
            await asyncio.wait([started, serving], return_when=asyncio.FIRST_COMPLETED)
            if serving.done():
                await serving
            assert await (await started).result() == 5
        worker.stop()
        await serving
        await log.close()

    asyncio.run(serve("of the wrong clock", Ahead()))
    asyncio.run(serve("of the right clock", SystemClock()))


class Shifted(SystemClock):
    """The machine's clocks, of which the wall clock can be set."""

    shift_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.shift_ms


HOUR_MS = 3_600_000


def test_a_timer_fires_soon_once_the_clock_is_right_though_nothing_else_happens(
    tmp_path: Path,
) -> None:
    """A machine begins an hour behind, and its clock is set right while every run sleeps."""
    app = App("shop")

    @app.run("nap")
    async def nap(ctx: RunContext) -> None:
        await ctx.sleep(timedelta(seconds=2))

    clock = Shifted()

    async def serve(work: Callable[[Client], Awaitable[None]]) -> None:
        log = SqliteLog(tmp_path / "log.db", now_ms=clock.wall_ms)
        await log.open(create=True)
        worker = Worker(app, log, clock=clock, watch=False)
        serving = asyncio.create_task(worker.run())
        async with Client(log) as client:
            await work(client)
        worker.stop()
        await serving
        await log.close()

    async def sleep(client: Client) -> None:
        await client.start("nap", run_id="n1")

    async def woken(client: Client) -> None:
        await asyncio.sleep(1)
        assert (await client.boundary("n1")).status == "waiting"
        clock.shift_ms = 0
        await client.handle("n1").result(within=timedelta(seconds=60))

    asyncio.run(serve(sleep))
    clock.shift_ms = -HOUR_MS
    asyncio.run(serve(woken))


def test_a_persons_word_is_taken_though_the_clock_was_set_back(tmp_path: Path) -> None:
    """The owner has seen that the word was not there: no clock makes it older than that."""
    app = App("shop")

    @app.step(policy=Policy.ESCALATE, timeout=timedelta(milliseconds=100))
    async def charge(fx: Effect) -> int:
        if fx.attempt == 1:
            raise RuntimeError("who knows")
        return 1

    @app.run("order")
    async def order(ctx: RunContext) -> int:
        return await ctx.step(charge)

    clock = Shifted()

    async def main() -> None:
        log = SqliteLog(tmp_path / "log.db", now_ms=clock.wall_ms)
        await log.open(create=True)
        worker = Worker(app, log, clock=clock, watch=False)
        serving = asyncio.create_task(worker.run())
        async with Client(log) as client:
            run = await client.start("order", run_id="r1")
            await run.wait(lambda seen: seen.needs == "person", within=timedelta(seconds=30))
            clock.shift_ms = -87_600 * HOUR_MS
            async with asyncio.timeout(30):
                while True:  # until the owner has looked for commands once more
                    with contextlib.suppress(CommandRefused):
                        await client.resolve("r1", "charge#1", happened=False, by="ada")
                        break
                    await asyncio.sleep(3)
            assert await run.result(within=timedelta(seconds=30)) == 1
        worker.stop()
        await serving
        await log.close()

    asyncio.run(main())


def test_a_client_is_not_shared_with_a_process_that_was_forked(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED, f"sqlite:///{tmp_path}/log.db"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "ClientClosed: the client was opened before this process was forked" in ended.stdout
