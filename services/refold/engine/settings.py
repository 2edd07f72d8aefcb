"""Every limit and wait of the engine, with its unit in its name."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """Named maxima. Defaults are those of the design, section 5 and 3.2."""

    events_max: int = 51_200
    run_bytes_max: int = 50_000_000
    value_bytes_max: int = 1_000_000
    batch_bytes: int = 512 * 1024
    """A batch is closed at this size; one decision alone may be larger."""
    queue_bytes_max: int = 16 * 1024 * 1024
    """Above it no command is taken until the log has caught up."""
    append_timeout_ms: int = 10_000
    clock_skew_max_ms: int = 5_000
    idle_after_ms: int = 10_000
    """A run that only waits loses its coroutine after this time; the next event rehydrates it."""
    resident_max: int = 10_000
    drain_ms: int = 10_000
    tail_check_ms: int = 100
    """How often at most an owner looks for reports and claims by others."""
    suggest_ms: int = 500
    reclaim_min_ms: int = 50
    reclaim_max_ms: int = 1_000
    checkpoint_events: int = 20_000
    checkpoint_ms: int = 60_000
    repeat_first_ms: int = 1_000
    """Back-off before a keyed attempt in doubt is repeated by the owner that saw it."""
    repeat_max_ms: int = 60_000
    repeats_max: int = 20
    lookup_first_ms: int = 500
    lookup_max_ms: int = 60_000
    lookup_timeout_ms: int = 30_000
    proof_after_ms: int = 24 * 3600 * 1000
    timers_at_once: int = 256
    report_tries: int = 20
    unclean_suspicious: int = 2
    """Unclean ends in a row after which runs start one at a time, with an intent for every step."""
    unclean_parked: int = 3
    """A run that was open at this many with no outcome between is parked."""
    parked_max: int = 10_000
    """Parked commands of a partition; at it no further command is taken."""
    parked_bytes_max: int = 1024 * 1024
    """The same for what they take in a checkpoint, which is one record: keys may be long."""
    schema_ask_first_ms: int = 250
    """Back-off between questions to the registry for a schema that parked commands wait for."""
    schema_ask_max_ms: int = 10_000
    schema_ask_timeout_ms: int = 30_000
    schema_unknown_ms: int = 60_000
    """A command is refused so long after the registry first said that it has no such schema."""
    outbox_max: int = 100_000
    """Messages of a partition that wait to be sent; at it no further command is taken."""
    outbox_first_ms: int = 100
    """Back-off before what has to be sent to another partition, or to the dead letters, is tried
    again."""
    outbox_max_ms: int = 5_000
    stall_ms: int = 1_000
    registry_ms: int = 30_000
    """How often a worker looks whether the schema registry is there and has kept its word."""
    format_level: int = 1
    time_zone: str = ""
    """The zone of the times that people are told, an IANA name; empty: the app's."""
