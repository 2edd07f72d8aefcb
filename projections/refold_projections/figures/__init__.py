"""Live figures: from events to windows per second, minute and hour, counted once each. Pure."""

from refold_projections.figures.cells import (
    BOUNDS_MS,
    COUNTERS,
    HISTOGRAMS,
    HOUR,
    KEPT_MS,
    MINUTE,
    SECOND,
    TOTAL,
    WIDTHS_MS,
    Cell,
    CellKey,
    Histogram,
    histogram,
)
from refold_projections.figures.partition import (
    CHUNK_EVENTS_MAX,
    Changes,
    PartitionFigures,
    RecordsChanged,
    Standing,
    Waiting,
)
from refold_projections.figures.spans import Span, SpanId
from refold_projections.figures.views import Figures, QuestionRefused, Source

__all__ = [
    "BOUNDS_MS",
    "CHUNK_EVENTS_MAX",
    "COUNTERS",
    "HISTOGRAMS",
    "HOUR",
    "KEPT_MS",
    "MINUTE",
    "SECOND",
    "TOTAL",
    "WIDTHS_MS",
    "Cell",
    "CellKey",
    "Changes",
    "Figures",
    "Histogram",
    "PartitionFigures",
    "QuestionRefused",
    "RecordsChanged",
    "Source",
    "Span",
    "SpanId",
    "Standing",
    "Waiting",
    "histogram",
]
