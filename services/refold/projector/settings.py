"""What a projector can be told, and what it tells."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProjectorSettings:
    """Limits and intervals. `schema` is where the views are, `time_zone` that of their sentences.

    `batch_events_max`: records of one transaction. `memory_bytes_max`: about what the states of
    runs may take, of all partitions together; what is idle longest is read back when it is needed.
    `connections_max`: of the projector's own; dashboards have theirs.
    """

    schema: str = "public"
    time_zone: str | None = None
    batch_events_max: int = 4_000
    read_bytes_max: int = 1 << 20
    memory_bytes_max: int = 128 << 20
    connections_max: int = 4
    look_every_s: float = 0.5
    wait_ms: int = 500
    retry_s: float = 0.2
    retry_max_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ProjectorEvent:
    """Something worth telling. `kind`: metrics, started, migrated, seeded, waiting, going_on,
    superseded, swapped, stopped; `partition` is -1 where it is of all."""

    kind: str
    partition: int
    text: str
    at_ms: int


Tell = Callable[[ProjectorEvent], None]


def event(kind: str, partition: int, text: str) -> ProjectorEvent:
    """One that happens now."""
    return ProjectorEvent(kind, partition, text, time.time_ns() // 1_000_000)
