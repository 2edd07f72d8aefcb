"""`refold live` on a real broker: killed, scaled to two processes, refused, and its traces."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from refold.log import Topic
from refold.telemetry import BY_NAME
from refold_schemas.errors.log import LogUnavailable
from support.kafka_broker import SCRAM_PASSWORDS, USER, Broker
from support.live_play import LivePlay, LiveProcess, asked, killed_and_scaled, shown
from support.otlp import Collector, collector

pytestmark = pytest.mark.untraced
REFOLD = [sys.executable, "-m", "refold_tools.cli"]


@pytest.fixture
def otlp() -> Iterator[Collector]:
    with collector() as kept:
        yield kept


def test_after_kills_and_with_two_processes_the_figures_are_those_of_a_fresh_fold(
    broker: Broker, otlp: Collector, tmp_path: Path
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": otlp.endpoint}

    async def whole() -> None:
        play = LivePlay(broker.server, tmp_path, seed=1, partitions=4, environment=environment)
        try:
            told = await killed_and_scaled(play, kills=2, length=150)
            assert told["records"] > 500
            scraped = play.processes[0].scrape()
            last = [await asyncio.to_thread(one.stop) for one in play.processes]
            play.processes = []
        finally:
            await play.close()
        assert all(one["stopped"] for one in last)
        names = set(re.findall(r"^# TYPE (refold_\w+) ", scraped, re.MULTILINE))
        assert {name for name in names if name not in BY_NAME} == set()
        assert {"refold_runs_total", "refold_step_seconds", "refold_waiting"} <= names
        assert 'run_id="' not in scraped
        # Sent again after a kill, but by the same name: as a set it is what the log says.
        assert otlp.ids() == told["spans"]
        assert otlp.resource["refold.namespace"] == "live1"

    asyncio.run(whole())


def test_it_counts_over_tls_with_a_password_that_nobody_sees(
    broker: Broker, tmp_path: Path
) -> None:
    mechanism = "SCRAM-SHA-512"
    password = SCRAM_PASSWORDS[mechanism]
    access = {
        "REFOLD_KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "REFOLD_KAFKA_SASL_MECHANISM": mechanism,
        "REFOLD_KAFKA_USERNAME": USER,
        "REFOLD_KAFKA_PASSWORD": password,
        "REFOLD_KAFKA_CAFILE": str(broker.cafile),
    }

    async def whole() -> None:
        play = LivePlay(broker.server, tmp_path, seed=5, partitions=2, environment={})
        try:
            await play.open(40)
            await play.some(1.0, pause_s=0)
            url = f"kafka://{broker.secure_server}/live5"
            process = await asyncio.to_thread(LiveProcess, url, tmp_path, access)
            play.processes.append(process)
            await play.caught_up(process)
            _, fresh = await play.fresh()
            assert await asyncio.to_thread(asked, process) == shown(fresh)
            await asyncio.to_thread(play.processes.pop().stop)
            assert password not in process.errors.read_text()
        finally:
            await play.close()

    asyncio.run(whole())


def test_what_is_empty_trimmed_or_made_anew_is_counted_or_said(
    broker: Broker, tmp_path: Path
) -> None:
    """F23: a table's partition without records, and one whose records are all gone, are ready."""
    admin = AdminClient({"bootstrap.servers": broker.server})

    async def whole() -> None:
        play = LivePlay(broker.server, tmp_path, seed=2, partitions=3, environment={})
        try:
            await play.open(100)
            play.batches = [(at, entries) for at, entries in play.batches if at != 2]
            await play.some(1.0, pause_s=0)
            delete(admin, "live2.events", 0, 30)
            process = await play.join()
            await play.caught_up(process)
            _, fresh = await play.fresh()
            assert await asyncio.to_thread(asked, process) == shown(fresh)
            await asyncio.to_thread(play.processes.pop().stop)
            end = await asyncio.to_thread(end_of, admin, "live2.live-figures", 1)
            assert end > 0
            policy(admin, "live2.live-figures", "compact,delete")  # a broker wants it for this
            delete(admin, "live2.live-figures", 1, end)  # low = high: forgotten, counted again
            policy(admin, "live2.live-figures", "compact")
            process = await play.join()
            await play.caught_up(process)
            assert await asyncio.to_thread(asked, process) == shown(fresh)
            await asyncio.to_thread(play.processes.pop().stop)
            # The log is made anew under it, shorter.
            await play.log.close()
            names = [f"live2.{topic.value}" for topic in Topic]
            for deleted in admin.delete_topics(names).values():
                await asyncio.to_thread(deleted.result)
            again = LivePlay(broker.server, tmp_path, seed=2, partitions=3, environment={})
            play.log = again.log
            await until_made(again)
            assert await asyncio.to_thread(refused_at, again.url, 3) == "R804"
            process = await asyncio.to_thread(LiveProcess, again.url, tmp_path, {}, "--rebuild")
            play.processes.append(process)
            await again.caught_up(process)
            _, fresh = await again.fresh()
            assert await asyncio.to_thread(asked, process) == shown(fresh)
        finally:
            await play.close()

    asyncio.run(whole())


async def until_made(play: LivePlay) -> None:
    """Kafka takes a moment to forget a topic of this name."""
    for _ in range(100):
        try:
            await play.open(10)
            break
        except LogUnavailable:
            await asyncio.sleep(0.1)
    await play.some(1.0, pause_s=0)


def refused_at(url: str, code: int) -> str:
    return refused("--log", url, code=code)


def delete(admin: AdminClient, topic: str, partition: int, before: int) -> None:
    place = TopicPartition(topic, partition, before)
    for done in admin.delete_records([place]).values():
        done.result(30)


def policy(admin: AdminClient, topic: str, value: str) -> None:
    change = ConfigEntry("cleanup.policy", value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def end_of(admin: AdminClient, topic: str, partition: int) -> int:
    spec: Any = OffsetSpec
    asked_for = {TopicPartition(topic, partition): spec.latest()}
    [answer] = admin.list_offsets(asked_for).values()
    return int(answer.result(30).offset)


def test_a_topic_that_cannot_hold_them_is_refused(broker: Broker, tmp_path: Path) -> None:
    play = LivePlay(broker.server, tmp_path, seed=3, partitions=2, environment={})

    async def make() -> None:
        await play.open(1)
        await play.close()

    asyncio.run(make())
    admin = AdminClient({"bootstrap.servers": broker.server})
    settings = {"cleanup.policy": "compact"}
    wrong = NewTopic("live3.live-figures", num_partitions=5, config=settings)
    for done in admin.create_topics([wrong]).values():
        done.result(30)
    assert refused("--log", play.url, code=2) == "R803"


def refused(*arguments: str, code: int) -> str:
    done = subprocess.run(
        [*REFOLD, "live", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, f"{done.stdout}{done.stderr}"
    return str(json.loads(done.stdout.splitlines()[-1])["error"]["code"])


def test_what_it_cannot_count_it_says_in_one_sentence(broker: Broker, tmp_path: Path) -> None:
    assert refused("--log", f"kafka://{broker.server}/nowhere", code=4) == "R304"
    assert refused("--log", "kafka://127.0.0.1:1/x", code=4) == "R303"
    assert refused("--log", f"sqlite:///{tmp_path / 'log.db'}", code=2) == "R801"


def test_without_a_broker_it_ends_when_told_to(broker: Broker, tmp_path: Path) -> None:
    """The last one of the module: the broker stays away."""

    async def whole() -> int | None:
        play = LivePlay(broker.server, tmp_path, seed=4, partitions=2, environment={})
        await play.open(50)
        await play.some(1.0, pause_s=0)
        process = await play.join()
        await play.caught_up(process)
        broker.kill()
        try:
            process.process.terminate()
            return await asyncio.to_thread(process.process.wait, 60)
        finally:
            await play.close()

    assert asyncio.run(whole()) in (0, 4)
