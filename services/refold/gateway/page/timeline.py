"""The picture of a run: one row for each step, its attempts as bars on one scale. Pure.

A run may sleep nine days between two steps of a second, so the scale is not linear: each span
between two things that happened gets a width by the logarithm of its length. Long spans are named
above the rows. Each row is an SVG that stretches to the page's width; words stand beside it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from refold.gateway.page.showing import duration, sign

WIDTH = 1_000
ROWS_MAX = 60
BARS_MAX = 40
"""Attempts of one step that are drawn: the latest ones."""
BAR_MIN = 8.0
NAMED_MIN_MS = 1_000
NAMED_SHARE_MIN = 0.14
"""Of the width: a shorter span has no room for its name."""


@dataclass(frozen=True, slots=True)
class Span:
    """One attempt: from `began` to `ended` (None: it has no end that is known)."""

    slot: str
    attempt: int
    status: str
    began: datetime
    ended: datetime | None
    claim_id: str = ""


class Bar(NamedTuple):
    """One attempt as it is drawn, and in words. `open_end`: nobody knows its end."""

    x: float
    width: float
    tone: str
    words: str
    open_end: bool


class Row(NamedTuple):
    """A step: its slot, its latest status, its bars."""

    slot: str
    status: str
    bars: tuple[Bar, ...]
    more: int


class Mark(NamedTuple):
    """Something that holds for all rows: a change of the owner."""

    x: float
    words: str


class Name(NamedTuple):
    """A long span, named above the rows; `x` and `width` in percent."""

    x: float
    width: float
    words: str


class Picture(NamedTuple):
    """All of it. `more_rows` steps are not drawn."""

    rows: tuple[Row, ...]
    marks: tuple[Mark, ...]
    names: tuple[Name, ...]
    more_rows: int

    @property
    def words(self) -> str:
        """What the picture shows, for who does not see it."""
        changes = len(self.marks)
        attempts = sum(len(row.bars) for row in self.rows)
        crossed = f"; the owner changed {changes} time{'s' * (changes != 1)}" if changes else ""
        return f"{len(self.rows)} steps, {attempts} attempts{crossed}"


class Scale:
    """From times to places between 0 and WIDTH."""

    def __init__(self, times: Iterable[datetime]) -> None:
        self.times = sorted(set(times))
        gaps_ms = [
            (after - before).total_seconds() * 1000 for before, after in pairwise(self.times)
        ]
        weights = [1.0 + math.log1p(gap_ms) for gap_ms in gaps_ms]
        whole = sum(weights) or 1.0
        self.places = [0.0]
        for weight in weights:
            self.places.append(self.places[-1] + weight / whole * WIDTH)
        self.gaps_ms = gaps_ms
        self._place = dict(zip(self.times, self.places, strict=True)) if self.times else {}

    def __call__(self, at: datetime) -> float:
        """Where a time stands that the scale was made of."""
        return self._place[at]

    def names(self) -> tuple[Name, ...]:
        """The spans that are long and wide enough to be named."""
        found = []
        for number, gap_ms in enumerate(self.gaps_ms):
            width = self.places[number + 1] - self.places[number]
            if gap_ms >= NAMED_MIN_MS and width >= NAMED_SHARE_MIN * WIDTH:
                share = 100 / WIDTH
                found.append(Name(self.places[number] * share, width * share, duration(gap_ms)))
        return tuple(found)


def picture(
    spans: Sequence[Span],
    started: datetime,
    ended: datetime,
    claim: tuple[str, datetime] | None = None,
) -> Picture:
    """Draw attempts of a run between its start and its end (or now), slots in the order given.

    `claim`: the latest claim of its partition, and when it was written.
    """
    slots = list(dict.fromkeys(one.slot for one in spans))
    shown = slots[:ROWS_MAX]
    kept = [one for one in spans if one.slot in set(shown)]
    last = max([ended, started, *(one.ended or one.began for one in kept)])
    changes = _changes(kept, claim, last)
    times = [started, last, *(one.began for one in kept), *changes]
    times += [one.ended for one in kept if one.ended is not None]
    scale = Scale(times)
    rows = tuple(_row(slot, [s for s in kept if s.slot == slot], scale, last) for slot in shown)
    marks = tuple(Mark(scale(at), f"another owner from {at:%H:%M:%S} UTC on") for at in changes)
    return Picture(rows, marks, scale.names(), len(slots) - len(shown))


def _changes(
    spans: Sequence[Span], claim: tuple[str, datetime] | None, last: datetime
) -> list[datetime]:
    """When the owner was another one than before: seen by attempts, and by the latest claim."""
    with_claim = sorted((one for one in spans if one.claim_id), key=lambda one: one.began)
    found = [
        after.began for before, after in pairwise(with_claim) if before.claim_id != after.claim_id
    ]
    if claim is not None and with_claim:
        claim_id, claimed_at = claim
        latest = with_claim[-1]
        if latest.claim_id != claim_id and latest.began < claimed_at <= last:
            found.append(claimed_at)
    return found


def _row(slot: str, spans: list[Span], scale: Scale, last: datetime) -> Row:
    drawn = spans[-BARS_MAX:]
    bars = []
    for one in drawn:
        x = scale(one.began)
        end = scale(one.ended) if one.ended is not None else scale(last)
        width = max(end - x, BAR_MIN)
        x = min(x, WIDTH - BAR_MIN)
        took = (
            f", {duration((one.ended - one.began).total_seconds() * 1000)}"
            if one.ended is not None and one.ended > one.began
            else ""
        )
        shown = sign(one.status)
        words = f"attempt {one.attempt}: {shown.word}{took}"
        bars.append(Bar(x, min(width, WIDTH - x), shown.tone, words, one.ended is None))
    return Row(slot, spans[-1].status, tuple(bars), len(spans) - len(drawn))
