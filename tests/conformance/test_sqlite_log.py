"""The log in an SQLite file against the suite, and what its file has to hold."""

import asyncio
import os
import random
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from refold.log import Entry, Log, Topic, open_log
from refold.log.processes import boot_ms
from refold.log.sqlite import HERE_SIZE_MAX, SqliteLog
from refold.testing.log_conformance import LogConformance, MakeLog
from refold_schemas.errors import LogMissing, LogUrlInvalid
from support.sqlite_maker import MakeSqliteLog


class TestSqliteLog(LogConformance):
    @pytest.fixture
    def log(self, tmp_path: Path) -> Log:
        return SqliteLog(tmp_path / "log.db")

    @pytest.fixture
    def make_log(self, tmp_path: Path) -> MakeLog:
        return MakeSqliteLog(tmp_path / "log.db")


class TestSqliteLogOfAnIdleCaller(LogConformance):
    @pytest.fixture
    def log(self, make_log: MakeLog) -> Log:
        return make_log()

    @pytest.fixture
    def make_log(self, tmp_path: Path) -> MakeLog:
        return MakeSqliteLog(tmp_path / "log.db", idle=True)


def test_an_idle_callers_append_is_made_on_its_own_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        log = SqliteLog(tmp_path / "log.db")
        await log.open(create=True)
        made: list[str] = []
        writing = log._writer_of()
        commit = writing._commit

        def noted(*arguments: Any) -> Any:
            made.append(threading.current_thread().name)
            return commit(*arguments)

        monkeypatch.setattr(writing, "_commit", noted)
        await log.append(Topic.EVENTS, 0, entries(1))
        log.idle_when(lambda: True)
        await asyncio.sleep(0.05)  # the writer thread has told it before it is quite done
        await log.append(Topic.EVENTS, 0, entries(1))
        await log.append(Topic.EVENTS, 0, [Entry(b"r", bytes(HERE_SIZE_MAX), None)])
        writing._slow_until_boot_ms = boot_ms() + 60_000  # an append took long: the disk stalls
        await log.append(Topic.EVENTS, 0, entries(1))
        writer, caller = "refold-log-writer", threading.current_thread().name
        assert made == [writer, caller, writer, writer]
        assert await log.bounds(Topic.EVENTS, 0) == (0, 4)
        await log.close()

    asyncio.run(main())


def test_an_idle_callers_loop_does_not_wait_for_a_lock(tmp_path: Path) -> None:
    async def main() -> None:
        log = SqliteLog(tmp_path / "log.db")
        await log.open(create=True)
        log.idle_when(lambda: True)
        await log.append(Topic.EVENTS, 0, entries(1))
        other = sqlite3.connect(tmp_path / "log.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        append = asyncio.create_task(log.append(Topic.EVENTS, 0, entries(1)))
        for _ in range(20):  # the loop turns while the file is locked
            await asyncio.sleep(0.01)
        assert not append.done()
        other.execute("COMMIT")
        other.close()
        assert (await append).offset == 1
        await log.close()

    asyncio.run(main())


def entries(count: int, name: str = "run-1") -> list[Entry]:
    return [Entry(name.encode(), b"%d" % at, bytes([1, at % 256]) * 25) for at in range(count)]


def test_what_was_written_is_there_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        log = SqliteLog(f"sqlite:///{tmp_path}/log.db?ns=refunds&partitions=3")
        assert await log.open(create=True)
        facts = log.facts
        assert (facts.namespace, facts.partition_count) == ("refunds", 3)
        for partition in range(3):
            await log.append(Topic.EVENTS, partition, entries(5 + partition))
        await log.append(Topic.SNAPSHOTS, 0, [Entry(b"k", b"v", None)])
        await log.close()
        assert os.listdir(tmp_path) == ["log.db"], "the WAL is folded back in by the last to close"
        again = SqliteLog(f"sqlite:///{tmp_path}/log.db?ns=refunds")
        assert not await again.open(create=False)
        assert again.facts == facts
        for partition in range(3):
            records = await again.read(Topic.EVENTS, partition, 0)
            assert [Entry(r.key, r.value, r.header) for r in records] == entries(5 + partition)
            ack = await again.append(Topic.EVENTS, partition, entries(1))
            assert ack.offset == 5 + partition
        assert (await again.append(Topic.SNAPSHOTS, 0, [Entry(b"k", b"w")])).offset == 1
        await again.close()

    asyncio.run(main())


def test_namespaces_in_one_file_are_apart(tmp_path: Path) -> None:
    async def main() -> None:
        one = SqliteLog(f"sqlite:///{tmp_path}/log.db?ns=one")
        two = SqliteLog(f"sqlite:///{tmp_path}/log.db?ns=two&partitions=2")
        assert await one.open(create=True)
        with pytest.raises(LogMissing, match=r"no namespace 'two' \(it has: one\)"):
            await two.open(create=False)
        assert await two.open(create=True), "a failed open may be tried again"
        assert not set(one.facts.topic_ids) & set(two.facts.topic_ids)
        await one.append(Topic.EVENTS, 0, entries(2))
        assert await two.read(Topic.EVENTS, 0, 0) == []
        assert (await one.suggest("a")).partitions == {0}
        assert (await two.suggest("a")).partitions == {0, 1}
        await one.close()
        await two.close()

    asyncio.run(main())


def test_a_url_that_asks_for_another_partition_count_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        log = SqliteLog(f"sqlite:///{tmp_path}/log.db?partitions=2")
        await log.open(create=True)
        await log.close()
        with pytest.raises(LogUrlInvalid, match=r"asks for 4 partitions.*made with 2"):
            await SqliteLog(f"sqlite:///{tmp_path}/log.db?partitions=4").open(create=True)

    asyncio.run(main())


def test_the_default_log_makes_its_directory_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        with pytest.raises(LogMissing):
            await open_log().open(create=False)
        assert not (tmp_path / ".refold").exists()
        log = open_log()
        assert await log.open(create=True)
        await log.close()
        assert (tmp_path / ".refold" / "log.db").is_file()

    asyncio.run(main())


def test_a_relative_path_counts_from_where_the_log_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        log = SqliteLog("sqlite:///relative%20name.db")
        monkeypatch.chdir("/")
        await log.open(create=True)
        await log.close()
        assert (tmp_path / "relative name.db").is_file()

    asyncio.run(main())


def test_many_who_open_at_once_make_one_log(tmp_path: Path) -> None:
    """Several processes start together on a file that is not there yet."""

    async def main() -> None:
        logs = [
            SqliteLog(f"sqlite:///{tmp_path}/log.db?ns={ns}", lock_timeout_ms=30_000)
            for ns in ("a", "b") * 4
        ]
        made = await asyncio.gather(*(log.open(create=True) for log in logs))
        assert sum(made) >= 2
        assert len({log.facts for log in logs}) == 2
        await asyncio.gather(*(log.close() for log in logs))

    asyncio.run(main())


@pytest.mark.parametrize("count", [1, 2])
def test_append_time_follows_no_small_step_back_and_every_large_one(
    tmp_path: Path, count: int
) -> None:
    async def main() -> None:
        now = [1_000_000]
        log = SqliteLog(tmp_path / "log.db", now_ms=lambda: now[0])
        await log.open(create=True)
        times = []
        for now[0] in (1_000_000, 995_000, 1_000_001, 995_000, 400, 401):
            several = [log.append(Topic.EVENTS, 0, entries(1)) for _ in range(count)]
            times += [ack.append_ms for ack in await asyncio.gather(*several)]
        expected = (1_000_000, 1_000_000, 1_000_001, 995_000, 400, 401)
        assert times == [ms for ms in expected for _ in range(count)]
        await log.close()

    asyncio.run(main())


def test_an_hour_of_steps_is_stored_small(tmp_path: Path) -> None:
    """300-byte results, keys, headers and all, in batches of 64: at most 150 bytes a record."""
    words = ["lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit", "sed"]
    chance = random.Random(7)
    count = 6_400

    def step(at: int) -> Entry:
        text = " ".join(chance.choices(words, k=30))
        value = f'{{"slot":"read_page#{at}","result":{{"page":{at},"text":"{text}"}}}}'
        header = b"\1\0" + b"claim-id-of-16-b" + at.to_bytes(8, "big") + os.urandom(2) + b"\0" * 22
        return Entry(f"order-{at // 300}".encode(), value.ljust(300).encode(), header)

    async def main() -> None:
        log = SqliteLog(tmp_path / "log.db")
        await log.open(create=True)
        for base in range(0, count, 64):
            await log.append(Topic.EVENTS, 0, [step(base + at) for at in range(64)])
        await log.close()

    asyncio.run(main())
    assert (tmp_path / "log.db").stat().st_size / count <= 150


def test_trimmed_pages_are_used_again(tmp_path: Path) -> None:
    async def main() -> None:
        log = SqliteLog(tmp_path / "log.db")
        await log.open(create=True)
        sizes = []
        for _ in range(4):
            for _ in range(30):
                await log.append(Topic.EVENTS, 0, [Entry(b"k", os.urandom(20_000))])
            await log.trim(Topic.EVENTS, 0, (await log.bounds(Topic.EVENTS, 0))[1])
            connection = sqlite3.connect(tmp_path / "log.db")
            sizes.append(connection.execute("PRAGMA page_count").fetchone()[0])
            connection.close()
        assert sizes[-1] <= sizes[0] + 10
        await log.close()

    asyncio.run(main())


def test_a_deleted_snapshot_key_is_forgotten_in_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        now = [1_000_000]
        log = SqliteLog(tmp_path / "log.db", now_ms=lambda: now[0])
        await log.open(create=True)
        await log.append(Topic.SNAPSHOTS, 0, [Entry(b"a", b"1"), Entry(b"b", b"1")])
        await log.append(Topic.SNAPSHOTS, 0, [Entry(b"a", None)])
        found = await log.read(Topic.SNAPSHOTS, 0, 0)
        assert [(r.key, r.value) for r in found] == [(b"b", b"1"), (b"a", None)]
        now[0] += 25 * 3_600_000
        await log.append(Topic.SNAPSHOTS, 0, [Entry(b"b", None)])
        found = await log.read(Topic.SNAPSHOTS, 0, 0)
        assert [(r.key, r.value) for r in found] == [(b"b", None)]
        assert await log.bounds(Topic.SNAPSHOTS, 0) == (0, 4)
        await log.close()

    asyncio.run(main())


def test_a_blocked_loop_keeps_its_leases(tmp_path: Path) -> None:
    """Run code that blocks the loop does not lose the partitions: the writer thread beats."""
    held: list[frozenset[int]] = []

    async def other() -> None:
        log = SqliteLog(tmp_path / "log.db", lease_ms=600)
        await log.open(create=False)
        for _ in range(12):
            held.append((await log.suggest("other")).partitions)
            await asyncio.sleep(0.1)
        await log.close()

    async def main() -> None:
        log = SqliteLog(tmp_path / "log.db", lease_ms=600)
        await log.open(create=True)
        assert (await log.suggest("blocked")).partitions == {0}
        thread = threading.Thread(target=lambda: asyncio.run(other()))
        thread.start()
        while thread.is_alive():
            time.sleep(0.05)  # noqa: ASYNC251 - the fault that is tested
        assert held == [frozenset()] * 12
        assert (await log.suggest("blocked")).partitions == {0}
        await log.close()

    asyncio.run(main())


def test_close_frees_the_leases(tmp_path: Path) -> None:
    async def main() -> None:
        one, other = SqliteLog(tmp_path / "log.db"), SqliteLog(tmp_path / "log.db")
        await one.open(create=True)
        await other.open(create=False)
        assert (await one.suggest("a")).partitions == {0}
        assert await other.owner_lives(0) is True
        assert (await other.suggest("b")).partitions == frozenset()
        await one.close()
        assert await other.owner_lives(0) is False
        assert (await other.suggest("b")).partitions == {0}
        await other.close()

    asyncio.run(main())


def test_values_that_are_not_bytes_fail_alone(tmp_path: Path) -> None:
    """A caller's mistake is its own: what is committed with it is stored."""

    async def main() -> None:
        log = SqliteLog(tmp_path / "log.db")
        await log.open(create=True)
        wrong = [Entry("text", b"v", None)]  # type: ignore[arg-type]
        outcomes = await asyncio.gather(
            log.append(Topic.EVENTS, 0, entries(2)),
            log.append(Topic.EVENTS, 0, wrong),
            log.append(Topic.EVENTS, 0, entries(2)),
            return_exceptions=True,
        )
        assert isinstance(outcomes[1], TypeError)
        assert len(await log.read(Topic.EVENTS, 0, 0)) == 4
        await log.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("log.db", "does not begin with a scheme"),
        ("postgres://x/y", "no log of the kind"),
        ("sqlite:/log.db", "does not begin with a scheme"),
        ("sqlite://log.db", "three are needed"),
        ("sqlite://", "three are needed"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "memory://NAME"),
        ("sqlite:///dir/", "names a directory"),
        ("sqlite:///a%00b", "NUL"),
        ("sqlite:///a.db?namespace=x", "unknown setting 'namespace'"),
        ("sqlite:///a.db?ns=", "namespace ''"),
        ("sqlite:///a.db?ns=a/b", "namespace 'a/b'"),
        ("sqlite:///a.db?partitions=0", "partitions=0"),
        ("sqlite:///a.db?partitions=two", "partitions=two"),
        ("memory://", "memory://NAMESPACE"),
        ("memory://a/b", "memory://NAMESPACE"),
        ("", "does not begin with a scheme"),
    ],
)
def test_a_url_that_does_not_parse_is_refused_with_its_reason(url: str, reason: str) -> None:
    with pytest.raises(LogUrlInvalid, match=reason) as refused:
        open_log(url)
    assert refused.value.exit_code == 2
    assert refused.value.next
