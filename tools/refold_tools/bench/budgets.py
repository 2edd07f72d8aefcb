"""The budget of each figure: what is aimed at, what is a defect; alone or as a ratio to a peer."""

from typing import NamedTuple


class Budget(NamedTuple):
    """`better` is low or high; `goal` and `bar` are limits of the figure itself, None: none."""

    row: str
    figure: str
    better: str
    goal: float | None
    bar: float | None


ALONE = (
    Budget("resume", "ready_to_done_s", "low", 0.05, 0.2),
    Budget("resume", "finished_repeated", "low", 0, 0),
    Budget("resume", "in_flight_repeated", "low", 1, 1),
    Budget("takeover", "ready_to_last_s", "low", 0.5, 2.0),
    Budget("timers", "late_p50_ms", "low", 20, 80),
    Budget("timers", "late_p99_ms", "low", 60, 180),
    Budget("throughput", "bytes_per_step", "low", 150, 242),
    Budget("throughput", "worker_mb", "low", 90, 150),
    Budget("flatness", "late_over_early", "low", 1.2, 1.5),
    Budget("idle", "kb_per_run", "low", 1.0, 3.0),
    Budget("idle", "spawn_to_all_owned_s", "low", 3.0, 10.0),
    Budget("fold", "events_per_s", "high", 100_000, 30_000),
    Budget("projector", "events_per_s", "high", 15_000, 5_000),
    Budget("freshness", "visible_p50_ms", "low", 50, 150),
    Budget("freshness", "visible_p99_ms", "low", 250, 1_000),
    Budget("freshness", "not_seen", "low", 0, 0),
    Budget("queries", "worst_p95_ms", "low", 100, 100),
    Budget("start_up", "help_s", "low", 0.3, 0.6),
    Budget("start_up", "boundary_s", "low", 0.3, 0.6),
)

AGAINST_RESTATE = (
    Budget("latency", "step_p50_ms", "low", 1 / 3, 1 / 2),
    Budget("latency_flowing", "step_p50_ms", "low", 1 / 15, 1 / 5),
)
THROUGHPUT_AGAINST_RESTATE = {
    "sqlite": Budget("throughput", "steps_per_s", "high", 8, 5),
    "kafka": Budget("throughput", "steps_per_s", "high", 10, 5),
}
"""Ratios refold / Restate, measured in one run. Source: the project's budgets."""


def against_restate(kind: str) -> tuple[Budget, ...]:
    """The budgets of the ratios refold / Restate on a store of this kind."""
    return (*AGAINST_RESTATE, THROUGHPUT_AGAINST_RESTATE[kind])


def verdict(budget: Budget, value: float) -> str:
    """goal, ok (within the bar) or DEFECT.

    >>> budget = Budget("timers", "late_p50_ms", "low", 20, 80)
    >>> [verdict(budget, value) for value in (5, 30, 90)]
    ['goal', 'ok', 'DEFECT']
    """

    def within(limit: float | None) -> bool:
        return limit is None or (value <= limit if budget.better == "low" else value >= limit)

    return "goal" if within(budget.goal) else "ok" if within(budget.bar) else "DEFECT"
