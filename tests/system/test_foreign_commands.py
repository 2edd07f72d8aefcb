"""Commands of producers that are not ours, on a real broker: what docs/commands.md says of each.

Field reports: F20 (partitioners differ), F24 (one bad record), F30 (a run that has ended).
"""

import asyncio
import base64
import hashlib
import hmac
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from refold.client.client import Client
from refold.log import partition_for
from refold_schemas.codec import Codec
from refold_schemas.commands import CancelRun, Command, RetryRun, StartRun
from refold_schemas.events import CommandRejected
from refold_schemas.registry import FileRegistry, canonical_form
from refold_schemas.values import Value, encode_value
from refold_tools.devstack import KAFKA, home
from refold_tools.devstack.jars import bring
from refold_tools.devstack.java import choose, javas
from refold_tools.devstack.telling import quiet
from support.java_compiler import compile_java
from support.kafka_broker import JAVA_MIN, Broker

REFOLD = [sys.executable, "-m", "refold_tools.cli"]
EXAMPLES = Path(__file__).parents[2] / "examples" / "producers"
WITHIN_S = 120.0
PARTITIONS = 6
CODEC = Codec(FileRegistry())
APP = """
from datetime import timedelta

from refold import App, RunContext

app = App("shop")

@app.run("order")
async def order(ctx: RunContext, pence: int) -> int:
    return pence

@app.run("wait")
async def wait(ctx: RunContext, pence: int) -> int:
    await ctx.sleep(timedelta(days=1))
    return pence
"""


@pytest.fixture(scope="module")
def shop(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Shop"]:
    """A namespace with a worker."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "shop.py").write_text(APP)
    made = Shop(broker, folder)
    made.refold("namespace", "create", "--log", f"{made.url}?partitions={PARTITIONS}", own=True)
    with (folder / "worker.log").open("wb") as said:
        worker = subprocess.Popen(
            [*REFOLD, "worker", "shop:app", "--log", made.url],
            cwd=folder,
            stdout=said,
            stderr=said,
            env={**os.environ, "PYTHONPATH": str(folder), "REFOLD_COMMAND_KEYS": keys(folder)},
        )
    try:
        yield made
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(30)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()


SECRET = bytes(range(32))


def keys(folder: Path) -> str:
    """The workers' file: one key, shared with a program that has no refold."""
    line = {"id": "them", "algorithm": "hmac-sha256", "speaks_for": "them"}
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": [{**line, "secret": base64.b64encode(SECRET).decode()}]}))
    path.chmod(0o600)
    return str(path)


def signature(command: Command, secret: bytes = SECRET) -> bytes:
    """By hand, as docs/commands.md has it."""
    texts = ("refold-command-signature-1", "shop", command.run_id, command.command_id)
    parts = [*(text.encode() for text in texts), CODEC.encode(command)]
    data = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return b"\x01\x03\x01\x04them" + hmac.new(secret, data, hashlib.sha256).digest()


class Shop:
    """What the tests ask of the namespace."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.url = f"kafka://{broker.server}/shop"
        self.default = Producer({"bootstrap.servers": broker.server, "linger.ms": 0})
        """librdkafka's default partitioner, which is not Kafka's."""
        self.murmur2 = Producer(
            {"bootstrap.servers": broker.server, "linger.ms": 0, "partitioner": "murmur2_random"}
        )

    def refold(self, *arguments: str, code: int = 0, own: bool = False) -> Any:
        where = () if own else ("--log", self.url)
        done = subprocess.run(
            [*REFOLD, *arguments, *where, "--json"],
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            cwd=self.folder,
            check=False,
        )
        assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout.splitlines()[-1])

    def send(
        self,
        command: Command | bytes,
        *,
        key: bytes | str | None = "run_id",
        producer: Producer | None = None,
        partition: int | None = None,
        header: bytes | None = None,
    ) -> tuple[int, int]:
        """Publish; returns partition and offset. Raises KafkaException."""
        data = command if isinstance(command, bytes) else CODEC.encode(command)
        if key == "run_id":
            assert not isinstance(command, bytes)
            key = command.run_id.encode()
        told: list[Any] = []
        chosen = self.default if producer is None else producer
        chosen.produce(
            "shop.commands",
            data,
            key,
            partition=-1 if partition is None else partition,  # librdkafka's word for "choose"
            headers=[] if header is None else [("other", b"x"), ("refold", header)],
            on_delivery=lambda *said: told.append(said),
        )
        assert chosen.flush(60) == 0
        error, message = told[0]
        if error is not None:
            raise KafkaException(error)
        return message.partition(), message.offset()

    def rejected(self) -> dict[tuple[int, int], CommandRejected]:
        """Every rejection, by the command's partition and offset."""

        async def read() -> dict[tuple[int, int], CommandRejected]:
            async with Client(self.url) as client:
                return {
                    (number, one.event.command_offset): one.event
                    for number in range(PARTITIONS)
                    async for one in client.orders(number)
                    if isinstance(one.event, CommandRejected)
                }

        return asyncio.run(read())

    def status(self, run_id: str) -> str | None:
        async def read() -> str | None:
            async with Client(self.url) as client:
                if await client.find(run_id) is None:
                    return None
                return (await client.boundary(run_id)).status

        return asyncio.run(read())


def until(check: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WITHIN_S
    while not check():
        assert time.monotonic() < end, f"not within {WITHIN_S:g} s: {what}"
        time.sleep(0.2)


def start(run_id: str, run: str = "order", given: object = 1, command_id: str = "") -> StartRun:
    return StartRun(command_id or f"start-{run_id}", run_id, run, encode_value(given), None, "them")


def astray(count: int) -> list[str]:
    """Run ids that librdkafka's default partitioner puts on another partition than murmur2."""
    import zlib

    ids = (f"astray-{number}" for number in range(1_000))
    found = [
        one
        for one in ids
        if zlib.crc32(one.encode()) % PARTITIONS != partition_for(one, PARTITIONS)
    ]
    return found[:count]


def test_the_examples_start_runs_without_refold(shop: Shop, tmp_path: Path) -> None:
    """In Python with a bare client at default settings, and in Java."""
    command = [sys.executable, str(EXAMPLES / "start_run.py"), shop.broker.server, "shop"]

    def python(*arguments: str, code: int = 0) -> Any:
        done = subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    (run_id,) = astray(1)
    told = python("order", "4160", "--run-id", run_id)
    assert (told["started"], told["version"]) == (True, "1")
    assert told["partition"] == partition_for(run_id, PARTITIONS)
    refused = python("no-such-run", "1", "--run-id", "example-2", code=1)
    assert refused["reason"] == "unknown_function"

    java = choose(javas(), JAVA_MIN, "the example")
    lib = bring(KAFKA, home() / "jars", java, quiet)
    compile_java(EXAMPLES / "StartRun.java", tmp_path, lib, java)
    ran = subprocess.run(
        [
            *(str(java.path), "-cp", f"{tmp_path}:{lib}/*", "StartRun"),
            *(shop.broker.server, "shop", "order", "42", "from-java"),
        ],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    stored = json.loads(ran.stdout.splitlines()[-1])
    assert stored["partition"] == partition_for("from-java", PARTITIONS)
    until(lambda: shop.status("from-java") == "completed", "the run from Java completes")
    until(lambda: shop.status(run_id) == "completed", "the run from Python completes")
    history = shop.refold("history", run_id)["records"]
    assert "CommandEmitted" in [one["event"] for one in history], "it took the detour"


def test_a_persons_word_from_anybody_counts_with_a_signature_alone(shop: Shop) -> None:
    """Made by hand, sent with librdkafka's own partitioner, hence also by the detour."""
    (run_id,) = astray(7)[6:]
    shop.send(start(run_id, "wait"))
    until(lambda: shop.status(run_id) == "waiting", "the run waits")
    words = {
        name: RetryRun(f"retry-{name}", run_id, None, False, "them", "")
        for name in ("unsigned", "signed", "forged")
    }
    shop.send(words["unsigned"])
    shop.send(words["signed"], header=signature(words["signed"]))
    shop.send(words["forged"], header=signature(words["forged"], bytes(32)))
    wanted = {
        "retry-unsigned": "unsigned",
        "retry-signed": "nothing_to_retry",  # believed, and then there is nothing to do
        "retry-forged": "bad_signature",
    }

    def reasons() -> dict[str, str]:
        found = shop.rejected().values()
        return {one.command_id: one.reason for one in found if one.command_id in wanted}

    until(lambda: len(reasons()) == len(wanted), "all three are decided")
    assert reasons() == wanted


def start_run() -> Any:
    """The example as a module."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("start_run", EXAMPLES / "start_run.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


def test_the_example_finds_its_answer_in_a_log_whose_beginning_was_archived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The claim of the first events is away, and nothing is at offset 0."""
    example = start_run()
    refused = {
        "command_id": "mine",
        "command_type": "StartRun",
        "command_offset": 0,
        "reason": "unknown_function",
        "detail": "",
        "raw": None,
    }
    value = example.framed(example.COMMAND_REJECTED_ID, example.COMMAND_REJECTED, refused)

    def headers(claim: bytes, epoch: int, n: int) -> list[tuple[str, bytes]]:
        return [("refold", example.HEADER.pack(1, 0, claim * 16, epoch, n, 0, 0))]

    class Trimmed:
        """A consumer of a topic whose log begins at offset 7."""

        def __init__(self, _: object) -> None:
            self.left: list[Any] = []

        def list_topics(self, topic: str, _: float) -> Any:
            return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None})})

        def assign(self, places: list[Any]) -> None:
            if places[0].offset == 0:  # out of range: a consumer goes to the end by default
                return
            late, next_ = headers(b"a", 4, 9), headers(b"b", 5, 3)
            for offset, one in enumerate((headers(b"b", 5, 2), late, next_), 7):
                seen = value if one is not late else value.replace(b"mine", b"late")
                seen = value.replace(b"mine", b"else") if offset == 7 else seen
                self.left.append(
                    SimpleNamespace(
                        partition=lambda: 0,
                        offset=lambda offset=offset: offset,
                        headers=lambda one=one: one,
                        error=lambda: None,
                        value=lambda seen=seen: seen,
                    )
                )

        def consume(self, *_: object, **__: object) -> list[Any]:
            found, self.left = self.left, []
            return found

        def close(self) -> None:
            pass

    monkeypatch.setattr(example, "Consumer", Trimmed)
    assert example.outcome("", "shop.events", "mine", 1)["offset"] == 9
    with pytest.raises(TimeoutError):
        example.outcome("", "shop.events", "late", 0.05)


def test_the_example_has_the_released_schemas() -> None:
    example = start_run()
    registry = FileRegistry()
    for schema_id, schema in (
        (example.START_RUN_ID, example.START_RUN),
        (example.RUN_STARTED_ID, example.RUN_STARTED),
        (example.COMMAND_REJECTED_ID, example.COMMAND_REJECTED),
    ):
        assert canonical_form(schema) == canonical_form(
            fastavro.parse_schema(registry.schema(schema_id))
        )


def test_whatever_the_partitioner_and_the_key_every_command_counts_f20(shop: Shop) -> None:
    """F20: start by one hash, cancel by another, keys that are null or empty."""
    first, second, third, fourth = astray(5)[1:]
    wrong = {run_id: (partition_for(run_id, PARTITIONS) + 1) % PARTITIONS for run_id in astray(5)}
    shop.send(start(first, "wait"), producer=shop.murmur2)
    until(lambda: shop.status(first) == "waiting", "the run waits")
    place, _ = shop.send(CancelRun("cancel-first", first, "them", ""))
    assert place != partition_for(first, PARTITIONS)
    shop.send(start(second), key=None, partition=wrong[second])
    shop.send(start(third), key=b"", partition=wrong[third])
    shop.send(start(fourth), producer=shop.murmur2)
    shop.send(start(fourth))  # the same command once more, by the other hash
    for run_id in (second, third, fourth):
        until(lambda run_id=run_id: shop.status(run_id) == "completed", f"{run_id} completes")  # type: ignore[misc]
    until(lambda: shop.status(first) == "cancelled", "its cancel found its way")
    until(
        lambda: any(
            one.command_id == f"start-{fourth}" and one.reason == "duplicate"
            for one in shop.rejected().values()
        ),
        "the copy is known as one",
    )
    runs = [one["run_id"] for one in shop.refold("runs")["runs"]]
    assert len(runs) == len(set(runs))
    doctor = shop.refold("doctor")
    assert sum(one["forwarded"] for one in doctor["partitions"]) >= 4
    assert sum(one["lag"] for one in doctor["partitions"]) == 0


def test_each_bad_input_has_the_outcome_of_the_table_f24(shop: Shop) -> None:
    """F24, F30: one decision each, visible in the lists, and the valid ones are not held up."""
    place = partition_for("table", PARTITIONS)
    good = CODEC.encode(start("bytes"))
    wide = Value("", 1, "j1", None, b'"' + b"x" * 1_100_000 + b'"', None)
    long_name = StartRun("c-long", "long", "f" * 1_001, encode_value(1), None, "them")
    bad: list[tuple[Command | bytes, str]] = [
        (b"", "undecodable"),
        (b"\0\0", "undecodable"),
        (b"\x05junk", "undecodable"),
        (b"\0" + (999).to_bytes(4, "big") + good[5:], "undecodable"),
        (good[:-3], "undecodable"),
        (good + b"!", "undecodable"),
        (CODEC.encode(start("x" * 201)), "undecodable"),
        (CancelRun("c-none", "table", "them", ""), "unknown_run"),
        (start("table", "no-such-run", command_id="c-plan"), "unknown_function"),
        (start("table", "order", {"no": "number"}, command_id="c-input"), "input_invalid"),
        (start("table"), ""),
        (start("table"), "duplicate"),
        (start("table", command_id="c-again"), "run_exists"),
        (start("table", given=2, command_id="c-other"), "run_exists_other_input"),
    ]
    sent = [(shop.send(one, key=b"table", partition=place), why) for one, why in bad]
    until(lambda: shop.status("table") == "completed", "the valid one is not held up")
    late = CancelRun("c-late", "table", "them", "")
    sent.append((shop.send(late, partition=place), "run_ended"))
    large = StartRun("c-wide", "wide", "order", wide, None, "them")
    for command in (large, long_name):
        home = partition_for(command.run_id, PARTITIONS)
        where = shop.send(command, partition=home, producer=_generous(shop))
        sent.append((where, "too_large"))
    refused = [where for where, why in sent if why]
    until(lambda: set(refused) <= set(shop.rejected()), "each is decided")
    seen = shop.rejected()
    assert [seen[where].reason for where, why in sent if why] == [why for _, why in sent if why]
    assert [where for where, why in sent if not why and where in seen] == []
    with pytest.raises(KafkaException) as raised:
        shop.send(b"\0" * (5 << 20), key=b"table", producer=_generous(shop), partition=place)
    assert raised.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE

    expected = {where for where, why in sent if why not in ("", "duplicate", "run_exists")}
    until(lambda: expected <= set(letters(shop)), "their letters are there")
    told = letters(shop)
    for where, why in sent:
        assert (where in told) == (where in expected)
        if where in expected:
            assert told[where]["reason"] == why
    for (where, _), (data, _) in zip(sent[:7], bad[:7], strict=True):
        assert base64.b64decode(told[where]["raw"]) == data, "raw bytes are kept"

    listed = shop.refold("commands", "rejected", "--limit", "1000")["rejected"]
    assert expected <= {(one["partition"], one["offset"]) for one in listed}
    again = shop.refold("commands", "republish", *map(str, sent[3][0]), code=1)["error"]
    assert again["code"] == "R528"
    doctor = shop.refold("doctor")
    assert sum(one["dead_letters"] for one in doctor["partitions"]) >= len(expected)
    history = shop.refold("history", "table")["records"]
    assert [one["what"] for one in history if "run_ended" in (one["what"] or "")]


def _generous(shop: Shop) -> Producer:
    """One that lets the broker say what is too large."""
    return Producer({"bootstrap.servers": shop.broker.server, "message.max.bytes": 20 << 20})


def letters(shop: Shop) -> dict[tuple[int, int], Any]:
    """What stands in the dead letters, by the command's partition and offset."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": shop.broker.server,
            "group.id": f"letters-{uuid.uuid4()}",
            "enable.auto.commit": False,
        }
    )
    found: dict[tuple[int, int], Any] = {}
    try:
        for number in range(PARTITIONS):
            place = TopicPartition("shop.dead-letters", number, 0)
            _, end = consumer.get_watermark_offsets(place, timeout=30)
            consumer.assign([place])
            read = 0
            while read < end:
                message = consumer.poll(10)
                assert message is not None
                assert message.error() is None
                read = (message.offset() or 0) + 1
                letter = json.loads(message.value() or b"")
                found[letter["partition"], letter["offset"]] = letter
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_producer_may_compress_as_it_likes(shop: Shop, codec: str) -> None:
    """One batch that a worker cannot unpack would keep every later command of its partition."""
    packing = Producer({"bootstrap.servers": shop.broker.server, "compression.type": codec})
    command = replace(start(f"packed-{codec}"), by="them " * 100)
    shop.send(command, producer=packing, partition=partition_for(command.run_id, PARTITIONS))
    until(lambda: shop.status(command.run_id) == "completed", "taken")


def test_a_command_of_an_aborted_transaction_counts_as_docs_commands_says(shop: Shop) -> None:
    """Who waited for the end of a transaction could be kept waiting by anybody."""
    name = uuid.uuid4().hex
    asking = Producer({"bootstrap.servers": shop.broker.server, "transactional.id": name})
    asking.init_transactions(60)
    asking.begin_transaction()
    shop.send(start("aborted"), producer=asking, partition=partition_for("aborted", PARTITIONS))
    asking.abort_transaction(60)
    until(lambda: shop.status("aborted") == "completed", "taken")
