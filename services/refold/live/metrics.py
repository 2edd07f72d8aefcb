"""The live figures as samples: totals of durable events, and what waits, of the whole namespace.

Every process of the namespace answers the same, so an expression takes the maximum over them.
"""

from collections.abc import Iterable, Mapping

from refold.telemetry import Buckets, Sample
from refold_projections.figures import BOUNDS_MS, Figures, histogram

RUNS = ("started", "completed", "failed", "cancelled", "diverged", "blocked", "resumed")
STEPS = ("done", "failed", "retried", "in_doubt", "settled", "unrecordable")
BOUNDS_S = tuple(bound_ms / 1000 for bound_ms in BOUNDS_MS)


def figure_samples(figures: Figures) -> Iterable[Sample]:
    """Samples of what was counted, and of what waits now."""
    for (run, step), counts in sorted(figures.counts().items()):
        if step:
            yield from _of_step(run, step, counts)
        else:
            yield from _of_run(run, counts)
    told = figures.waiting()
    for one in told["open_runs"]:
        yield Sample("refold_runs_open", (one["run"], one["status"]), one["count"])
    for one in told["waiting"]:
        labels = (one["kind"], one["run"], one["step"] or "")
        yield Sample("refold_waiting", labels, one["count"])
        yield Sample("refold_waiting_oldest_seconds", labels, one["age_ms"] / 1000)


def _of_run(run: str, counts: Mapping[str, int]) -> Iterable[Sample]:
    for outcome in RUNS:
        count = counts.get(f"runs_{outcome}")
        if count:
            yield Sample("refold_runs_total", (run, outcome), count)
    yield from _histogram("refold_run_seconds", "run_ms", (run,), counts)
    for name, counter in (
        ("refold_commands_rejected_total", "commands_rejected"),
        ("refold_records_undecodable_total", "records_undecodable"),
    ):
        if counter in counts:
            yield Sample(name, (run,), counts[counter])


def _of_step(run: str, step: str, counts: Mapping[str, int]) -> Iterable[Sample]:
    for outcome in STEPS:
        count = counts.get(f"steps_{outcome}")
        if count:
            yield Sample("refold_steps_total", (run, step, outcome), count)
    for name, counter in (
        ("refold_attempts_total", "attempts_started"),
        ("refold_model_calls_total", "model_calls"),
        ("refold_evidence_conflicts_total", "evidence_conflicts"),
    ):
        if counter in counts:
            yield Sample(name, (run, step), counts[counter])
    for direction in ("input", "output"):
        tokens = counts.get(f"{direction}_tokens")
        if tokens:
            yield Sample("refold_model_tokens_total", (run, step, direction), tokens)
    if "price_usd_micros" in counts:
        price = counts["price_usd_micros"] / 1_000_000
        yield Sample("refold_model_price_usd_total", (run, step), price)
    yield from _histogram("refold_step_seconds", "step_ms", (run, step), counts)
    yield from _histogram("refold_settle_seconds", "settle_ms", (run, step), counts)


def _histogram(
    name: str, counted: str, labels: tuple[str, ...], counts: Mapping[str, int]
) -> Iterable[Sample]:
    found = histogram(counts, counted)
    if found.total:
        yield Sample(name, labels, Buckets(BOUNDS_S, found.buckets, found.sum_ms / 1000))
