"""One batch appended to Kafka, alone and inside a transaction: why the log has no transactions."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from refold.log import Entry, Topic, open_log
from refold_tools.bench.machine import percentile
from refold_tools.bench.stores import Store

ENTRIES, ENTRY_BYTES = 3, 300
WARM_UP = 20


def appends(store: Store, *, times: int = 300) -> dict[str, float | int]:
    """Milliseconds of `times` appends one after another, of each kind in turn."""
    return asyncio.run(_appends(store.url("append"), times))


async def _appends(url: str, times: int) -> dict[str, float | int]:
    log = open_log(url)  # it says which extra is missing, if one is
    await log.open(create=True)

    from aiokafka import AIOKafkaProducer

    from refold.log.kafka_access import access_from_settings
    from refold.log.kafka_settings import topic_name
    from refold.log.kafka_url import parse_url

    place = parse_url(url)
    producer = AIOKafkaProducer(
        **access_from_settings().of_aiokafka(place.servers),
        transactional_id=place.namespace,
    )
    await producer.start()
    topic = topic_name(place.namespace, Topic.EVENTS)
    entries = [Entry(b"run-1", bytes([n]) * ENTRY_BYTES, b"header") for n in range(ENTRIES)]

    async def alone() -> None:
        await log.append(Topic.EVENTS, 0, entries)

    async def in_transaction() -> None:
        async with producer.transaction():
            batch = producer.create_batch()
            for key, value, header in entries:
                headers = [("refold", header)]
                batch.append(timestamp=None, key=key, value=value, headers=headers)
            await (await producer.send_batch(batch, topic, partition=0))

    kinds: dict[str, Callable[[], Awaitable[None]]] = {
        "append": alone,
        "transaction": in_transaction,
    }
    waits: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(WARM_UP + times):
        for name, act in kinds.items():
            began = time.perf_counter()
            await act()
            if number >= WARM_UP:
                waits[name].append((time.perf_counter() - began) * 1e3)
    await producer.stop()
    await log.close()
    figures: dict[str, float | int] = {
        f"{name}_p{percent}_ms": percentile(waits[name], percent)
        for name in kinds
        for percent in (50, 99)
    }
    figures["transaction_over_append"] = figures["transaction_p50_ms"] / figures["append_p50_ms"]
    return figures
