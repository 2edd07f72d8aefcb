"""The measurements on a real broker: they measure what they say. The figures do not matter here."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from refold_tools.bench.stores import KafkaStore, own_broker
from refold_tools.cli import main
from refold_tools.devstack import Stack

WITHIN_S = 240.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with own_broker(tmp_path_factory.mktemp("bench")) as stack:
        yield stack


def bench(*arguments: str, code: int = 0) -> Any:
    """Its exit code is checked; the last line of its JSON where it has any."""
    done = subprocess.run(
        [sys.executable, "-m", "refold_tools.cli", "bench", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def test_a_killed_run_and_a_transaction_are_measured_on_named_brokers(broker: Stack) -> None:
    url = f"kafka://{broker.bootstrap}/measured?partitions=2"
    told = bench("--log", url, "--only", "append,resume")
    assert "2 partitions" in told["durability"]
    append, resume = told["rows"]["append"], told["rows"]["resume"]
    assert resume["finished_repeated"] == 0
    assert resume["in_flight_repeated"] == 1
    assert 0 < append["append_p50_ms"] <= append["append_p99_ms"]
    ratio = append["transaction_p50_ms"] / append["append_p50_ms"]
    assert append["transaction_over_append"] == pytest.approx(ratio)


def test_the_bytes_of_a_namespace_are_those_of_its_topics_alone(broker: Stack) -> None:
    import asyncio

    from refold.log import Entry, Topic, open_log

    store = KafkaStore(broker.folder, broker.bootstrap, partitions=2, stack=broker)
    urls = [store.url("bytes"), store.url("bytes")]

    async def append(url: str, count: int) -> None:
        log = open_log(url)
        await log.open(create=True)
        for _ in range(count):
            await log.append(Topic.EVENTS, 1, [Entry(b"run-1", b"x" * 500)])
        await log.close()

    asyncio.run(append(urls[0], 1))
    one = store.stored(urls[0])
    asyncio.run(append(urls[1], 4))
    assert one is not None
    assert one > 500
    assert store.stored(urls[0]) == one
    assert store.stored(urls[1]) == 4 * one


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--log", "sqlite:///x.db"), "--log names brokers"),
        (("--log", "kafka://127.0.0.1:1/x", "--on", "sqlite"), "give one of the two"),
        (("--only", "append"), "no row append on sqlite"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments, "--json"]) == 2
    assert said in json.loads(capsys.readouterr().out.splitlines()[-1])["error"]["message"]
