"""What the looks of `refold reconcile --every` came to, as samples for Prometheus."""

import time
from collections import Counter
from collections.abc import Callable, Iterable

from refold.telemetry import Sample
from refold_tools.reconcile.judging import KINDS
from refold_tools.reconcile.rounds import NEW, Report

DONE, FAILED = "done", "failed"


class ReconcileMetrics:
    """Samples of one process. `note` and `failed` are its looks; call it from any thread."""

    def __init__(self, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._namespace, self._clock = namespace, clock
        self._rounds = Counter[str]()
        self._asked = self._agreed = self._unknown = self._refused = 0
        self._findings = Counter[str]()
        self._done_s: float | None = None

    def note(self, report: Report) -> None:
        """A look has ended."""
        self._rounds[DONE] += 1
        self._asked += report.asked
        self._agreed += report.agreed
        self._unknown += len(report.unknown)
        self._refused += len(report.refused)
        for one in report.findings:
            if one.state == NEW:
                self._findings[one.finding.kind] += 1
        self._done_s = self._clock()

    def failed(self) -> None:
        """A look has ended before it came to anything: the log is away."""
        self._rounds[FAILED] += 1

    def __call__(self) -> Iterable[Sample]:
        """Everything that the catalogue has of a reconciliation."""
        from refold import __version__

        yield Sample("refold_service_info", ("reconcile", __version__, self._namespace), 1)
        for outcome in (DONE, FAILED):
            yield Sample("refold_reconcile_rounds_total", (outcome,), self._rounds[outcome])
        yield Sample("refold_reconcile_asked_total", (), self._asked)
        yield Sample("refold_reconcile_agreed_total", (), self._agreed)
        yield Sample("refold_reconcile_unknown_total", (), self._unknown)
        yield Sample("refold_reconcile_refused_total", (), self._refused)
        for kind in KINDS:
            yield Sample("refold_reconcile_findings_total", (kind,), self._findings[kind])
        if self._done_s is not None:
            silent_s = self._clock() - self._done_s
            yield Sample("refold_reconcile_last_done_seconds", (), silent_s)
