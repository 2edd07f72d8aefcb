"""What a projector is like, as samples: read from its fields, in the thread of whoever scrapes."""

from collections.abc import Iterable

from refold.projector.projector import Projector
from refold.projector.stats import AWAY
from refold.telemetry import Sample
from refold_projections.tables.shapes import TABLES


class ProjectorMetrics:
    """Samples of one projector. Call it from any thread."""

    def __init__(self, projector: Projector) -> None:
        self._projector = projector

    def __call__(self) -> Iterable[Sample]:
        """Everything that the catalogue has of a projector."""
        from refold import __version__

        one = self._projector
        stats, away = one.stats, one.away
        yield Sample("refold_service_info", ("projector", __version__, one.log.facts.namespace), 1)
        progress = one.progress
        yield Sample("refold_projector_partitions", (), len(progress))
        yield Sample("refold_projector_records_total", (), stats.records)
        for table in TABLES:
            yield Sample("refold_projector_rows_total", (table,), stats.rows[table])
        yield Sample("refold_projector_batches_total", (), stats.batches)
        yield Sample("refold_projector_batch_seconds", (), stats.seconds.buckets())
        yield Sample("refold_projector_commits_refused_total", (), stats.refused)
        for service in AWAY:
            yield Sample("refold_projector_outages_total", (service,), stats.outages[service])
            yield Sample("refold_projector_away", (service,), int(service in away))
        yield Sample("refold_projector_generation", (), one.generation)
        for partition, at in progress.items():
            label = (str(partition),)
            yield Sample("refold_projector_position_offset", label, at.offset_next)
            yield Sample("refold_projector_lag_records", label, at.lag)
        if one.rebuild is not None:
            yield Sample("refold_projector_rebuild_records", (), one.rebuild.done)
            yield Sample("refold_projector_rebuild_lag_records", (), one.rebuild.left)
