"""How values, times and names from runs are written into the page: cut, visible, harmless. Pure.

Escaping of HTML is the templates' (autoescape); here is what escaping does not do: characters that
nobody sees or that turn the text around them, sizes, and times.
"""

import json
import unicodedata
from collections.abc import Collection
from datetime import datetime, tzinfo
from typing import Any, NamedTuple

from refold_projections.fold.calendar import on_calendar

VALUE_SHOWN_MAX = 2_000
"""Characters of a value on a run's page; the whole of it is a link away."""
LINE_SHOWN_MAX = 160
"""Characters of a text in a list."""
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_KEPT = frozenset("\n\t‌‍")
"""Line breaks of values, and the joiners that some scripts and emoji are written with."""


class Cut(NamedTuple):
    """A text as it is shown; `left` characters of it are not."""

    text: str
    left: int


def visible(text: object) -> str:
    r"""A text in which every character that is not seen, or turns others around, is written out.

    >>> visible("a\x00b"), visible("\u202egnp.exe"), visible("שלום")
    ('a⟨U+0000⟩b', '⟨U+202E⟩gnp.exe', 'שלום')
    """
    said = str(text)
    if said.isascii() and said.isprintable():
        return said
    return "".join(map(_visible, said))


def _visible(one: str) -> str:
    if one in _KEPT or unicodedata.category(one) not in _INVISIBLE:
        return one
    return f"⟨U+{ord(one):04X}⟩"


def line(text: object, size_max: int = LINE_SHOWN_MAX) -> str:
    """A text as one line, cut.

    >>> line("two\\n lines"), line("x" * 200, 5)
    ('two lines', 'xxxx…')
    """
    flat = visible(" ".join(str("" if text is None else text).split()))
    return flat if len(flat) <= size_max else flat[: size_max - 1] + "…"


def pretty(value: Any) -> str:
    r"""A value as indented JSON, as people read it.

    >>> pretty({"b": 1, "a": "x\x00"})
    '{\n  "b": 1,\n  "a": "x\\u0000"\n}'
    """
    return visible(json.dumps(value, ensure_ascii=False, indent=2, default=str))


def cut(text: str, size_max: int = VALUE_SHOWN_MAX) -> Cut:
    """The beginning of a text.

    >>> cut("abcdef", 4)
    Cut(text='abcd', left=2)
    """
    return Cut(text[:size_max], max(0, len(text) - size_max))


def unserved_words(unserved: Collection[int], count: int) -> tuple[str, str, str] | None:
    """What the overview says of partitions without a live owner, out of `count`; None for none.

    >>> unserved_words({1, 0}, 2)[0], unserved_words({7}, 8)[0], unserved_words(set(), 8)
    ('No worker is alive.', 'No live worker owns partition 7.', None)
    >>> unserved_words(range(20), 32)[0]
    'No live worker owns 20 of 32 partitions.'
    """
    if not unserved:
        return None
    title = "No worker is alive."
    if len(unserved) < count:
        one = len(unserved) == 1
        which = f"partition {min(unserved)}" if one else f"{len(unserved)} of {count} partitions"
        title = f"No live worker owns {which}."
    return (
        title,
        "Runs stand still." if len(unserved) == count else "Runs there stand still.",
        "What is shown as running may be in doubt; a run's page asks the log itself. Next: start a "
        "worker (refold worker MODULE:APP): it takes over, and settles what policies can settle.",
    )


def duration(duration_ms: float | None) -> str:
    """How long, in at most two units.

    >>> [duration(n) for n in (7, 1_500, 61_000, 3_720_000, 90_000_000, None)]
    ['7 ms', '1.5 s', '1 min 1 s', '1 h 2 min', '1 d 1 h', '']
    """
    if duration_ms is None:
        return ""
    if duration_ms < 1_000:
        return f"{max(0, duration_ms):.0f} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.1f}".removesuffix(".0") + " s"
    seconds = int(duration_ms // 1000)
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    for number, (unit, size) in enumerate(units):
        if seconds >= size:
            more, size_less = units[min(number + 1, 3)]
            rest = seconds % size // size_less
            tail = f" {rest} {more}" if rest and more != unit else ""
            return f"{seconds // size} {unit}{tail}"
    return "0 s"


def ago(at: datetime | None, now: datetime) -> str:
    """How long since then, in one unit: `3 min ago`, `in 2 h`.

    >>> from datetime import UTC
    >>> now = datetime(2026, 8, 8, 12, tzinfo=UTC)
    >>> ago(datetime(2026, 8, 8, 11, 57, tzinfo=UTC), now), ago(None, now)
    ('3 min ago', '')
    """
    if at is None:
        return ""
    seconds = (now - at).total_seconds()
    away = abs(seconds)
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if away >= size:
            said = f"{away // size:.0f} {unit}"
            return f"{said} ago" if seconds > 0 else f"in {said}"
    return "now"


def clock(at: datetime | None, zone: tzinfo, now: datetime) -> str:
    """A time of day today, else with its date; seconds always.

    >>> from datetime import UTC
    >>> clock(datetime(2026, 8, 8, 14, 7, 9, tzinfo=UTC), UTC, datetime(2026, 8, 8, tzinfo=UTC))
    '14:07:09'
    """
    if at is None:
        return ""
    here = at.astimezone(zone)
    same_day = here.date() == now.astimezone(zone).date()
    return f"{here:%H:%M:%S}" if same_day else f"{here:%Y-%m-%d %H:%M:%S}"


def size(size_bytes: int) -> str:
    """A size in bytes, KB or MB.

    >>> size(90), size(2_048), size(3_500_000)
    ('90 bytes', '2 KB', '3.5 MB')
    """
    if size_bytes < 1_000:
        return f"{size_bytes} bytes"
    if size_bytes < 1_000_000:
        return f"{size_bytes / 1000:.0f} KB"
    return f"{size_bytes / 1_000_000:.1f} MB"


def from_ms(at_ms: int) -> datetime:
    """A time of the log."""
    return on_calendar(at_ms)


class Sign(NamedTuple):
    """How a status is shown: a mark and a word, and the class of its colour."""

    mark: str
    word: str
    tone: str


SIGNS = {
    "in_doubt": Sign("?", "in doubt", "doubt"),
    "blocked": Sign("■", "blocked", "bad"),
    "diverged": Sign("≠", "diverged", "bad"),
    "failed": Sign("✕", "failed", "bad"),
    "running": Sign("▸", "running", "run"),
    "under_way": Sign("▸", "under way", "run"),
    "waiting": Sign("◔", "waiting", "dim"),
    "paused": Sign("‖", "paused", "dim"),
    "cancelling": Sign("…", "cancelling", "doubt"),
    "completed": Sign("✓", "completed", "good"),
    "done": Sign("✓", "done", "good"),
    "cancelled": Sign("○", "cancelled", "dim"),
    "not_started": Sign("·", "not started", "dim"),
    "open": Sign("▸", "open", "run"),
    "absent": Sign("○", "did not happen", "dim"),
    "denied": Sign("○", "did not happen (a person's word)", "dim"),
    "never_started": Sign("○", "never started", "dim"),
}
"""A mark and a word for each status: the colour only repeats what they say."""


def sign(status: str | None) -> Sign:
    """The sign of a status; one that nobody knows is shown as it is."""
    found = SIGNS.get(status or "")
    return found or Sign("·", line(status or "unknown", 40).replace("_", " "), "dim")


def compact(value: Any) -> str:
    """A value as JSON on one line.

    >>> compact({"pence": 4160, "currency": "GBP"})
    '{"pence": 4160, "currency": "GBP"}'
    """
    return visible(json.dumps(value, ensure_ascii=False, default=str))
