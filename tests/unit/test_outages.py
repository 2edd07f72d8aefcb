"""Outages that partitions of one worker meet: what is told of them, and how often."""

import asyncio

from refold.engine.outages import NO_SCHEMA, UNREAD, Outages


def test_a_trouble_that_lasts_keeps_no_outage_of_another_kind_quiet() -> None:
    """The registry is away for days, and the broker twice meanwhile."""
    told: list[str] = []

    async def main() -> None:
        outages = Outages(
            lambda kind, partition, text: told.append(f"{kind} {partition}: {text}"),
            count=lambda: 3,
            boot_ms=lambda: 0,
        )
        outages.has(0, NO_SCHEMA, LookupError("no registry"))
        for _ in range(2):
            for partition in (1, 2):
                outages.has(partition, UNREAD, ConnectionError("no broker"))
            for partition in (1, 2):
                outages.mended(partition, UNREAD)
        outages.mended(0, NO_SCHEMA)

    asyncio.run(main())
    assert told == [
        "warning 2: commands cannot be read; it is tried again: no broker (R016)",
        "warning 2: commands cannot be read; it is tried again: no broker (R016)",
        "warning 0: parked commands wait; it is tried again: no registry (R024)",
        "going_on -1: what was tried again works again, after 0 s (3 partitions)",
    ]


def test_an_error_that_changes_is_told_once_of_each_kind() -> None:
    told: list[str] = []

    async def main() -> None:
        outages = Outages(
            lambda kind, partition, text: told.append(text), count=lambda: 1, boot_ms=lambda: 0
        )
        for _ in range(2):
            outages.has(0, UNREAD, ConnectionError("no broker"))
            outages.has(0, UNREAD, TimeoutError("no answer"))

    asyncio.run(main())
    assert [text.split(": ")[1] for text in told] == ["no broker (R016)", "no answer (R016)"]
