"""What people and dashboards read: figures of many partitions as one answer, JSON-ready."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from refold_projections.figures.cells import (
    HISTOGRAMS,
    KEPT_MS,
    TOTAL,
    WIDTHS_MS,
    Cell,
    CellKey,
    histogram,
    is_expired,
    merge,
)
from refold_projections.figures.partition import Standing

WINDOWS_MAX = 1_500
"""Windows in one answer."""
QUANTILES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}


class Source(Protocol):
    """Cells of one partition, by window."""

    def starts(self, width: str) -> Iterable[int]:
        """When the windows of this width begin that hold anything."""

    def window(self, width: str, start_ms: int) -> Iterable[tuple[CellKey, Cell]]:
        """The cells of one window."""

    def standing(self) -> Standing:
        """What waits and what is open."""


class QuestionRefused(ValueError):
    """A question that has no answer; the text says why."""


class Figures:
    """The read API: the same for the embedded figures and for those of `refold live`.

    `sources` gives the partitions, each time anew; `clock` is milliseconds since 1970 UTC.
    """

    def __init__(
        self, sources: Callable[[], Mapping[int, Source]], clock: Callable[[], int]
    ) -> None:
        self._sources, self._clock = sources, clock

    def windows(
        self,
        window: str,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        run: str | None = None,
        step: str | None = None,
    ) -> dict[str, Any]:
        """Figures by window, run function and step; only windows in which something happened.

        `since_ms` and `until_ms` bound the windows' starts (until is exclusive); without them the
        newest WINDOWS_MAX that are kept. Raises QuestionRefused.
        """
        if window not in WIDTHS_MS:
            raise QuestionRefused(f"window is {window!r}, not one of {', '.join(WIDTHS_MS)}")
        sources = self._sources()
        now_ms, first_ms = self._clock(), since_ms or 0
        found: dict[int, list[Source]] = {}
        for source in sources.values():
            for start_ms in source.starts(window):
                if start_ms < first_ms or (until_ms is not None and start_ms >= until_ms):
                    continue
                if not is_expired(window, start_ms, now_ms):
                    found.setdefault(start_ms, []).append(source)
        newest = sorted(found)[-WINDOWS_MAX:]
        return {
            "window": window,
            "width_ms": WIDTHS_MS[window],
            "kept_ms": KEPT_MS[window],
            "as_of": iso(now_ms),
            "truncated": len(found) > len(newest),
            "partitions": self.partitions(),
            "windows": [
                {
                    "start": iso(start_ms),
                    "start_ms": start_ms,
                    "cells": self._cells(found[start_ms], window, start_ms, run, step),
                }
                for start_ms in newest
            ],
        }

    def totals(self, *, run: str | None = None, step: str | None = None) -> dict[str, Any]:
        """Figures since the log's first record that is counted, by run function and step."""
        sources = list(self._sources().values())
        return {
            "as_of": iso(self._clock()),
            "partitions": self.partitions(),
            "cells": self._cells(sources, TOTAL, 0, run, step),
        }

    def waiting(self) -> dict[str, Any]:
        """What waits now and for whom, with the age of the oldest; open runs by status."""
        now_ms = self._clock()
        waits: dict[tuple[str, str, str], tuple[int, int]] = {}
        open_runs: dict[tuple[str, str], int] = {}
        for source in self._sources().values():
            standing = source.standing()
            for kind, run, step, count, since_ms in standing.waiting:
                more, oldest_ms = waits.get((kind, run, step), (0, since_ms))
                waits[kind, run, step] = (more + count, min(oldest_ms, since_ms))
            for key, count in standing.open_runs.items():
                open_runs[key] = open_runs.get(key, 0) + count
        return {
            "as_of": iso(now_ms),
            "partitions": self.partitions(),
            "waiting": [
                {
                    "kind": kind,
                    "run": run,
                    "step": step or None,
                    "count": count,
                    "since": iso(since_ms),
                    "age_ms": max(now_ms - since_ms, 0),
                }
                for (kind, run, step), (count, since_ms) in sorted(waits.items())
            ],
            "open_runs": [
                {"run": run, "status": status, "count": count}
                for (run, status), count in sorted(open_runs.items())
            ],
        }

    def partitions(self) -> list[dict[str, Any]]:
        """How far each partition is counted."""
        return [
            {
                "partition": partition,
                "offset_next": standing.offset_next,
                "last_event": iso(standing.last_ms) if standing.last_ms else None,
            }
            for partition, source in sorted(self._sources().items())
            for standing in (source.standing(),)
        ]

    def counts(self) -> dict[tuple[str, str], dict[str, int]]:
        """The totals by run function and step, as cells have them: for metrics."""
        return self._merged(self._sources().values(), TOTAL, 0)

    @staticmethod
    def _merged(
        sources: Iterable[Source], width: str, start_ms: int
    ) -> dict[tuple[str, str], dict[str, int]]:
        found: dict[tuple[str, str], dict[str, int]] = {}
        for source in sources:
            for key, cell in source.window(width, start_ms):
                merge(found.setdefault((key.run, key.step), {}), cell.counts)
        return found

    def _cells(
        self,
        sources: Iterable[Source],
        width: str,
        start_ms: int,
        run: str | None,
        step: str | None,
    ) -> list[dict[str, Any]]:
        return [
            cell_json(*name, counts)
            for name, counts in sorted(self._merged(sources, width, start_ms).items())
            if (run is None or name[0] == run) and (step is None or name[1] == step)
        ]


def cell_json(run: str, step: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """One cell: counters as they are, histograms as count, sum and upper bounds of quantiles."""
    durations = {}
    for name in HISTOGRAMS:
        found = histogram(counts, name)
        if found.total:
            durations[name] = {
                "count": found.total,
                "sum_ms": found.sum_ms,
                **{label: found.quantile_ms(q) for label, q in QUANTILES.items()},
                "buckets": list(found.buckets),
            }
    return {
        "run": run,
        "step": step or None,
        "counts": {name: n for name, n in sorted(counts.items()) if "." not in name},
        "durations": durations,
    }


def iso(at_ms: int) -> str:
    """ISO 8601 in UTC, milliseconds.

    >>> iso(0)
    '1970-01-01T00:00:00.000Z'
    """
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a clock that nobody has: shown, not believed
        return f"{at_ms} ms"
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
