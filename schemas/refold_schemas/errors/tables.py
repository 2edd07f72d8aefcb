"""Errors of the tables and of who fills them (R601-R699)."""

from collections.abc import Sequence
from typing import ClassVar

from refold_schemas.errors.base import RefoldError


class DatabaseUnavailable(RefoldError):
    """Postgres cannot be reached, or cannot do its work now."""

    code: ClassVar[str] = "R601"
    exit_code: ClassVar[int] = 4

    def __init__(self, url: str, reason: str, *, kept: str = "", next: str = "") -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"the database {url} cannot be reached: {reason}",
            kept=kept or "the log, which is the truth; what the tables said stays until it is back",
            next=next
            or "check REFOLD_DATABASE_URL and that Postgres runs (`refold devstack status`)",
        )


class DatabaseUrlInvalid(RefoldError):
    """What names the database, or a schema in it, does not name one."""

    code: ClassVar[str] = "R602"
    exit_code: ClassVar[int] = 2

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the database cannot be named like this: {reason}",
            kept="everything; nothing was opened",
            next="write REFOLD_DATABASE_URL as postgresql://USER@HOST:PORT/DATABASE",
        )


class DatabaseClientMissing(RefoldError):
    """Tables are asked for, but the client library of Postgres is not installed."""

    code: ClassVar[str] = "R603"
    exit_code: ClassVar[int] = 2

    def __init__(self, missing: str) -> None:
        self.missing = missing
        super().__init__(
            f"the tables need the package {missing}, which is not installed",
            kept="everything; nothing was opened",
            next="pip install 'refold[postgres]'",
        )


class TablesMissing(RefoldError):
    """The tables are not there, or not in the shape of this version."""

    code: ClassVar[str] = "R604"
    exit_code: ClassVar[int] = 4

    def __init__(
        self, schema: str, numbers: Sequence[int] = (), *, views: Sequence[str] = ()
    ) -> None:
        """`views`: they were made, and somebody has dropped them."""
        self.schema, self.numbers, self.views = schema, tuple(numbers), tuple(views)
        lost = f"view {', '.join(views)}, which somebody has dropped"
        listed = f"migration {', '.join(map(str, self.numbers))}" if self.numbers else lost
        super().__init__(
            f"the tables in schema {schema} lack {listed}",
            kept="everything as it is",
            next="`refold projections migrate`, or start `refold projector`, which does it too",
        )


class TablesDiffer(RefoldError):
    """The tables were made by another version of refold, or changed by somebody."""

    code: ClassVar[str] = "R605"
    exit_code: ClassVar[int] = 4

    def __init__(self, schema: str, reason: str, *, next: str = "") -> None:
        self.schema, self.reason = schema, reason
        super().__init__(
            f"the tables in schema {schema} are not ours: {reason}",
            kept="everything as it is; nothing was written",
            next=next
            or "start the version that made them, or give this one a schema of its own "
            "(--schema NAME)",
        )


class DatabaseRefused(RefoldError):
    """Postgres answers, and refuses what refold asks: a right, a name or an object is not ours."""

    code: ClassVar[str] = "R607"
    exit_code: ClassVar[int] = 4

    def __init__(self, url: str, reason: str) -> None:
        self.url, self.reason = url, reason
        super().__init__(
            f"the database {url} refuses: {reason}",
            kept="the log, and the tables as they were: what was begun was taken back",
            next="give the role the rights, or the tables a schema of their own (--schema NAME), "
            "in a database in UTF8",
        )


class LogShorterThanTables(RefoldError):
    """The log does not hold what the tables were filled from: it was cut, or is another one."""

    code: ClassVar[str] = "R610"
    exit_code: ClassVar[int] = 4

    def __init__(self, partition: int, offset_next: int, reason: str) -> None:
        self.partition, self.offset_next, self.reason = partition, offset_next, reason
        super().__init__(
            f"partition {partition}: the log is shorter than what the tables applied, up to offset "
            f"{offset_next}: {reason}",
            kept="the log and the tables as they are; nothing more is applied to this partition",
            next="find out who cut or replaced ns.events; then `refold projections rebuild` fills "
            "the tables from what the log holds now",
        )


class TablesBehindLog(RefoldError):
    """The log was trimmed beyond what the tables have applied: there is a gap between them."""

    code: ClassVar[str] = "R611"
    exit_code: ClassVar[int] = 4

    def __init__(self, partition: int, offset_next: int, start: int) -> None:
        self.partition, self.offset_next, self.start = partition, offset_next, start
        super().__init__(
            f"partition {partition}: the log begins at offset {start}, and the tables have applied "
            f"it up to {offset_next}: events between were archived before the projector read them",
            kept="the archived runs' final snapshots, and the tables as they are",
            next="`refold projections rebuild` begins with the snapshots of what was archived",
        )


class TablesOfAnother(RefoldError):
    """The tables are filled from another namespace."""

    code: ClassVar[str] = "R612"
    exit_code: ClassVar[int] = 2

    def __init__(self, schema: str, theirs: str, ours: str) -> None:
        self.schema, self.theirs, self.ours = schema, theirs, ours
        super().__init__(
            f"the tables in schema {schema} are of namespace {theirs!r}, not of {ours!r}",
            kept="everything as it is; nothing was written",
            next="give this namespace tables of its own (--schema NAME), or correct --log",
        )


class RowRefused(RefoldError):
    """Postgres refuses what a batch of rows says, so the projector cannot go on."""

    code: ClassVar[str] = "R613"
    exit_code: ClassVar[int] = 4

    def __init__(self, partition: int, offset_next: int, reason: str) -> None:
        self.partition, self.offset_next, self.reason = partition, offset_next, reason
        super().__init__(
            f"partition {partition}: Postgres refuses rows of the records before offset "
            f"{offset_next}: {reason}",
            kept="the log, and the tables up to the batch before",
            next="report it with the records (`refold history`): refold has to show any value",
        )


class RebuildUnderWay(RefoldError):
    """Another process rebuilds the tables at this moment."""

    code: ClassVar[str] = "R614"
    exit_code: ClassVar[int] = 4

    def __init__(self, schema: str) -> None:
        self.schema = schema
        super().__init__(
            f"another process rebuilds the tables in schema {schema}",
            kept="everything; it goes on",
            next="wait for it, or stop it: a rebuild that was stopped is taken up where it was",
        )


class TablesNotTrue(RefoldError):
    """The tables say something else than a fresh fold of the log."""

    code: ClassVar[str] = "R615"

    def __init__(self, difference: str) -> None:
        self.difference = difference
        super().__init__(
            f"the tables differ from the log: {difference}",
            kept="the log, which is the truth; what readers see was not changed",
            next="`refold projections rebuild` fills a new set and swaps; report how it came about",
        )


class DatabaseUnset(RefoldError):
    """No database is named."""

    code: ClassVar[str] = "R606"
    exit_code: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__(
            "no database is named",
            kept="everything; nothing was opened",
            next="set REFOLD_DATABASE_URL=postgresql://USER@HOST:PORT/DATABASE; "
            "`refold devstack up` starts a Postgres and says it",
        )
