"""The columns of the tables that rows are made for, and the statements that write and read them.

A kind says how a value travels: `time` as milliseconds since 1970 UTC, `json` as text.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from refold_projections.fold.calendar import cut

Row = tuple[Any, ...]

_SENT = {
    "text": "text",
    "int": "int",
    "bigint": "bigint",
    "bool": "boolean",
    "time": "bigint",
    "json": "jsonb",
    "bytes": "bytea",
}


class Table(NamedTuple):
    """One table: its columns in the order of a row, each with its kind; the first ones are the key.

    `partition` is one of the columns: by it the rows of a partition are found.
    """

    name: str
    key_size: int
    columns: tuple[tuple[str, str], ...]

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key."""
        return tuple(name for name, _ in self.columns[: self.key_size])

    def put(self, of_set: str) -> str:
        """The statement that inserts rows, or replaces those with their keys: a list a column."""
        names = [name for name, _ in self.columns]
        kinds = [kind for _, kind in self.columns]
        lists = ", ".join(f"${i}::{_SENT[kind]}[]" for i, kind in enumerate(kinds, 1))
        values = ", ".join(
            f"timestamptz 'epoch' + c{i} * interval '1 millisecond'" if kind == "time" else f"c{i}"
            for i, kind in enumerate(kinds)
        )
        given = ", ".join(f"c{i}" for i in range(len(kinds)))
        changed = ", ".join(f"{_n(n)} = excluded.{_n(n)}" for n in names[self.key_size :])
        return (
            f"insert into {of_set}.{self.name} ({', '.join(map(_n, names))}) "
            f"select {values} from unnest({lists}) as given({given}) "
            f"on conflict ({', '.join(map(_n, self.key))}) do update set {changed}"
        )

    @property
    def beside(self) -> str:
        """The name of the table of a connection through which many rows go."""
        return f"refold_sent_{self.name}"

    def make_beside(self) -> str:
        """The statement that makes it; its rows are gone at the end of each transaction."""
        columns = ", ".join(f"c{i} {_SENT[kind]}" for i, (_, kind) in enumerate(self.columns))
        return f"create temp table if not exists {self.beside} ({columns}) on commit delete rows"

    def put_beside(self, of_set: str) -> str:
        """The statement that does what `put` does with the rows beside."""
        given = self.put(of_set)
        start, end = given.index(" from unnest("), given.index(" on conflict")
        return f"{given[:start]} from {self.beside}{given[end:]}"

    def values(self, rows: Sequence[Row]) -> list[list[Any]]:
        """The rows as the lists that `put` takes."""
        return [list(column) for column in zip(*rows, strict=True)]

    def take(self, of_set: str, where: str) -> str:
        """The statement that reads rows in the shape in which they were put, in the key's order."""
        shown = ", ".join(
            f"(extract(epoch from {_n(name)}) * 1000)::bigint" if kind == "time" else _n(name)
            for name, kind in self.columns
        )
        return (
            f"select {shown} from {of_set}.{self.name} where {where} "
            f"order by {', '.join(map(_n, self.key))}"
        )


def _n(name: str) -> str:
    return f'"{name}"' if name == "offset" else name


def at(time_ms: int | None) -> int | None:
    """A time as both sides have it: beyond the years 1 to 9999 it is cut."""
    return None if time_ms is None else cut(time_ms)


def _table(name: str, key_size: int, columns: str) -> Table:
    pairs = (one.split() for one in columns.split(","))
    return Table(name, key_size, tuple((one[0], one[1]) for one in pairs))


RUNS = _table(
    "runs",
    1,
    "run_id text, partition int, run text, version text, status text, reason text, needs text, "
    "said json, started_at time, changed_at time, ended_at time, wakes_at time, "
    "event_count bigint, byte_count bigint, input json, result json, error_type text, "
    "error_message text, done_count int, in_doubt_count int, in_doubt_since time, "
    "conflict_count int, remaining json, open_count int, kept bytes",
)
STEPS = _table(
    "steps",
    2,
    "run_id text, slot text, partition int, step text, born bigint, policy text, status text, "
    "attempt bigint, since time, at time, effect_key text, arguments json, result json, "
    "error_type text, error_message text, said text, escalated bool, absent_until_proven bool, "
    "conflicted bool, kept bytes",
)
ATTEMPTS = _table(
    "attempts",
    3,
    "run_id text, slot text, attempt bigint, partition int, status text, began_at time, "
    "timeout_ms bigint, settle_ms bigint, generation bigint, reason text, evidence text, "
    "claim_id bytes, n bigint, conflict bool",
)
TIMERS = _table(
    "timers", 2, "run_id text, timer_id text, partition int, kind text, slot text, due_at time"
)
EFFECTS = _table(
    "effects",
    3,
    "run_id text, slot text, generation bigint, partition int, effect_key text, step text, "
    "policy text, attempts bigint, outcome text, evidence text, amounts json, "
    "absent_until_proven bool, superseded bool, first_at time, last_at time",
)
REJECTIONS = _table(
    "rejections",
    2,
    "partition int, offset bigint, at time, run_id text, command_id text, command text, "
    "command_offset bigint, reason text, detail text, by text, raw bytes",
)
FINDINGS = _table(
    "findings",
    2,
    "run_id text, finding_id text, partition int, at time, kind text, effect_key text, slot text, "
    "step text, detail text, command text, settled bool",
)
TABLES: Mapping[str, Table] = {
    one.name: one for one in (RUNS, STEPS, ATTEMPTS, TIMERS, EFFECTS, REJECTIONS, FINDINGS)
}
