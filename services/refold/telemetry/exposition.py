"""Samples as Prometheus reads them."""

from collections.abc import Callable, Iterable
from typing import Any

from refold.telemetry.catalogue import BY_NAME, COUNTER, HISTOGRAM, Buckets, Metric, Sample
from refold_schemas.errors.live import OptionalPartMissing

Sampler = Callable[[], Iterable[Sample]]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def exposition(samplers: Iterable[Sampler]) -> Callable[[], bytes]:
    """A function that asks all samplers and gives the text. Raises OptionalPartMissing."""
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )
    except ModuleNotFoundError as error:
        missing = error.name or "prometheus_client"
        raise OptionalPartMissing("metrics", missing, extra="telemetry") from error

    asked = tuple(samplers)

    def family(metric: Metric) -> Any:
        kinds: dict[str, Any] = {COUNTER: CounterMetricFamily, HISTOGRAM: HistogramMetricFamily}
        name = metric.name.removesuffix("_total") if metric.kind == COUNTER else metric.name
        return kinds.get(metric.kind, GaugeMetricFamily)(name, metric.help, labels=metric.labels)

    class Scrape:
        def collect(self) -> Iterable[Any]:
            found: dict[str, Any] = {}
            for sampler in asked:
                for name, labels, value in sampler():
                    metric = BY_NAME[name]
                    if len(labels) != len(metric.labels):
                        raise ValueError(f"{name} has labels {metric.labels}, got {labels}")
                    at = found.get(name)
                    if at is None:
                        at = found[name] = family(metric)
                    if isinstance(value, Buckets):
                        at.add_metric(labels, buckets_of(value), value.sum)
                    else:
                        at.add_metric(labels, value)
            return found.values()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape())
    ProcessCollector(registry=registry)  # memory, CPU and open files, under Prometheus' own names
    return lambda: generate_latest(registry)


def buckets_of(value: Buckets) -> list[tuple[str, float]]:
    """Bounds and cumulative counts, the last one without a bound.

    >>> buckets_of(Buckets((0.5,), (1, 2), 3.0))
    [('0.5', 1), ('+Inf', 3)]
    """
    total = 0
    found: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, value.bounds), "+Inf"), value.counts, strict=True):
        total += count
        found.append((bound, total))
    return found
