"""Errors of the log room (R301-R321): which log, what is known of it, and what to do next."""

from collections.abc import Sequence
from typing import ClassVar

from refold_schemas.errors.base import RefoldError

RUNS_NAMED_MAX = 5

START_AGAIN = "repair the cause and start again; refold goes on from the log"
"""What to do about a log that is away, for whoever ends with that."""
GOES_ON = "repair the cause, if it does not pass; this worker goes on by itself then"
"""The same for a worker, which waits."""


def without_user(url: str) -> str:
    """A log URL as it may be shown: no log has a user in its URL, but somebody may write one there.

    >>> without_user("postgres://ada:pa/ss@db/x"), without_user("sqlite:///a@b.db")
    ('postgres://***@db/x', 'sqlite:///a@b.db')
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "", url
    if "@" not in rest or scheme in ("sqlite", "memory"):
        return url
    return f"{scheme}{separator}***@{rest.rpartition('@')[2]}"


class LogUrlInvalid(RefoldError):
    """A log URL that does not parse, or asks for what the log behind it is not."""

    code: ClassVar[str] = "R301"
    exit_code: ClassVar[int] = 2

    def __init__(self, url: str, reason: str) -> None:
        url = without_user(url)
        self.url, self.reason = url, reason
        super().__init__(
            f"the log URL {url!r} cannot be used: {reason}",
            kept="nothing was opened or changed",
            next="write it like sqlite:///relative.db, sqlite:////absolute.db?ns=name, "
            "kafka://host:9092/name or memory://name",
        )


class LogAdapterMissing(RefoldError):
    """A log URL whose scheme is known, but whose client libraries are not installed."""

    code: ClassVar[str] = "R302"
    exit_code: ClassVar[int] = 2

    def __init__(self, url: str, missing: str, *, extra: str) -> None:
        url = without_user(url)
        self.url, self.missing, self.extra = url, missing, extra
        super().__init__(
            f"{url} cannot be opened: the package {missing} is not installed",
            kept="nothing was opened or changed",
            next=f"pip install 'refold[{extra}]', or use sqlite:///FILE.db",
        )


class LogUnavailable(RefoldError):
    """The log cannot be reached or cannot do its work now.

    `stored` speaks of the append that raised it: False if it is known not to be stored, None if
    it is not known (or if no append is meant). The port treats both alike, as unknown.
    """

    code: ClassVar[str] = "R303"
    exit_code: ClassVar[int] = 4

    def __init__(
        self, url: str, reason: str, *, kept: str = "", next: str = "", stored: bool | None = None
    ) -> None:
        self.url, self.reason, self.stored = url, reason, stored
        super().__init__(
            f"the log {url} is not available: {reason}",
            kept=kept or "everything that was acknowledged",
            next=next or START_AGAIN,
        )


class LogMissing(LogUnavailable):
    """The log, its namespace or a topic does not exist, and was not to be created."""

    code: ClassVar[str] = "R304"

    def __init__(self, url: str, reason: str, *, next: str = "") -> None:
        super().__init__(
            url,
            reason,
            kept="nothing was made",
            next=next
            or "check the URL, or make the log with `refold namespace create`, "
            "`refold run` or `refold dev`",
        )


class LogCorrupted(LogUnavailable):
    """Stored bytes that are not what was written. `partition` and `offset` say where, if known."""

    code: ClassVar[str] = "R305"

    def __init__(
        self,
        url: str,
        reason: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
    ) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset
        super().__init__(
            url,
            f"corrupted: {reason}",
            kept="the file as it is; nothing in it was skipped or changed",
            next="if --log (or REFOLD_LOG) names the wrong file, correct it; else stop all "
            "workers, copy the file aside and restore it from a backup; "
            "see docs/errors/R305.md",
        )


class LogForeign(LogUnavailable):
    """A file of another application, or of a newer format than this version can read."""

    code: ClassVar[str] = "R306"

    def __init__(self, url: str, reason: str, *, next: str = "") -> None:
        super().__init__(
            url,
            reason,
            kept="the file as it is",
            next=next or "choose another file for the log",
        )


class LogLocked(LogUnavailable):
    """Another process has kept the log locked for longer than this one waits."""

    code: ClassVar[str] = "R307"

    def __init__(self, url: str, waited_ms: int) -> None:
        self.waited_ms = waited_ms
        super().__init__(
            url,
            f"another process has kept it locked for {waited_ms} ms",
            kept="everything that was acknowledged; what was to be written now is not stored",
            next="find the process that holds a transaction open on the file "
            "(a shell, a backup, a debugger) and end it",
            stored=False,
        )


class LogReadOnly(LogUnavailable):
    """The file or its directory may not be written."""

    code: ClassVar[str] = "R308"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            url,
            reason,
            kept="everything in it; nothing of this command is stored",
            next="give this user write permission on the file and on its directory (readers need "
            "it too: SQLite keeps their locks in -wal and -shm files beside it), run the command "
            "as the user who owns them, or read a copy made with VACUUM INTO",
            stored=False,
        )


class LogFull(LogUnavailable):
    """The disk, or the size allowed to the log, is used up."""

    code: ClassVar[str] = "R309"

    def __init__(self, url: str) -> None:
        super().__init__(
            url,
            "the disk or the size allowed to the log is full",
            kept="everything that was acknowledged; what was to be written now is not stored",
            next="make room on the disk or raise the limit; owners then go on by themselves",
            stored=False,
        )


class BatchTooLarge(RefoldError):
    """A batch over the log's limit, refused whole before anything was sent. Sizes are bytes."""

    code: ClassVar[str] = "R310"

    def __init__(self, *, topic: str, partition: int, size: int, size_max: int) -> None:
        self.topic, self.partition, self.size, self.size_max = topic, partition, size, size_max
        super().__init__(
            f"a batch for {topic} partition {partition} has {size} bytes, "
            f"the log takes at most {size_max}",
            kept="nothing of it was stored",
            next="store less in one decision (smaller values, fewer at once) or raise the limit",
        )


class BatchRefused(RefoldError):
    """A batch that no log may store (empty, or without a key where keys decide), refused whole."""

    code: ClassVar[str] = "R311"

    def __init__(self, *, topic: str, partition: int, reason: str) -> None:
        self.topic, self.partition, self.reason = topic, partition, reason
        super().__init__(
            f"a batch for {topic} partition {partition} was refused: {reason}",
            kept="nothing of it was stored",
            next="this is a defect of the caller; report it with its traceback",
        )


class OffsetOutOfRange(RefoldError):
    """A read before the first offset that is kept. `start` and `end` are the log's bounds."""

    code: ClassVar[str] = "R312"
    exit_code: ClassVar[int] = 3

    def __init__(self, *, topic: str, partition: int, offset: int, start: int, end: int) -> None:
        self.topic, self.partition, self.offset = topic, partition, offset
        self.start, self.end = start, end
        super().__init__(
            f"{topic} partition {partition} is kept from offset {start} to {end}, "
            f"offset {offset} is no longer in it",
            kept=f"the records from offset {start} on",
            next="start from a checkpoint, or restore the archived part of the log",
        )


class LogClosed(RefoldError):
    """A call on a handle that is not open: not opened yet, or closed."""

    code: ClassVar[str] = "R313"

    def __init__(self, url: str) -> None:
        self.url = url
        super().__init__(
            f"the handle of log {url} is not open",
            kept="the log itself",
            next="await open() first; a closed handle is not opened again, make another one",
        )


class AppendUnknown(RefoldError):
    """No answer to an append: it may be stored, now or later."""

    code: ClassVar[str] = "R314"

    def __init__(self, *, topic: str, partition: int, reason: str) -> None:
        self.topic, self.partition, self.reason = topic, partition, reason
        super().__init__(
            f"it is not known whether a batch for {topic} partition {partition} is stored: "
            f"{reason}",
            kept="everything that was acknowledged, and perhaps this batch",
            next="nothing: the owner claims the partition anew and folds what is there",
        )


class PartitionMissing(LogMissing):
    """A partition number that the topic does not have."""

    code: ClassVar[str] = "R315"

    def __init__(self, url: str, *, topic: str, partition: int, partition_count: int) -> None:
        self.topic, self.partition, self.partition_count = topic, partition, partition_count
        super().__init__(
            url,
            f"{topic} has partitions 0 to {partition_count - 1}, there is no {partition}",
            next="compare the partition counts of the topics with `refold doctor`",
        )


class LogUnsafe(LogUnavailable):
    """Topics whose settings cannot hold what refold promises: they are read, but not owned."""

    code: ClassVar[str] = "R316"

    def __init__(self, url: str, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            url,
            "its topics cannot hold what refold promises: " + "; ".join(self.problems),
            kept="everything; the log can be read, no worker claims a partition of it",
            next="correct the settings of the topics (docs/errors/R316.md), then start the "
            "worker again",
        )


class PartitionsRaised(LogUnavailable):
    """The topics have not the partition counts that the claims record: nobody may own them.

    `counts` tells those of the topics, `known` what they were known to be.
    """

    code: ClassVar[str] = "R320"

    def __init__(self, url: str, counts: str, known: str) -> None:
        self.counts, self.known = counts, known
        super().__init__(
            url,
            f"the partition count of its topics was changed: {counts}; {known}",
            kept="everything: nothing is routed by another count, and every run can be read",
            next="`refold namespace upgrade` adopts the new partitions (--dry-run says what it "
            "would do): runs stay where they are; then start workers and projectors again",
        )


class NotUpgradable(LogUnavailable):
    """A namespace in a state that no upgrade can mend without losing what it promises."""

    code: ClassVar[str] = "R321"

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(
            url,
            f"it cannot be upgraded: {reason}",
            kept="everything as it is; nothing was made or changed",
            next="restore what is missing from a backup, or find out who deleted it; see "
            "docs/errors/R321.md",
        )


class LogShorter(RefoldError):
    """A partition of events ends before what this reader has read of it. `end`: where, now."""

    code: ClassVar[str] = "R319"
    exit_code: ClassVar[int] = 4

    def __init__(self, partition: int, read_to: int, end: int) -> None:
        self.partition, self.read_to, self.end = partition, read_to, end
        super().__init__(
            f"partition {partition}: its events were read up to offset {read_to} and end at {end} "
            "now: the log was cut, or its topic made anew",
            kept="what the log still holds; nobody can say what became of the run",
            next="stop all workers of the namespace and find out how the log lost records; "
            "see docs/errors/R013.md",
        )


class EventsGone(RefoldError):
    """Events are gone from the log that no snapshot stands in for: folding on would leave a gap.

    `runs`: those that are known to be concerned; empty where nobody can say.
    """

    code: ClassVar[str] = "R317"
    exit_code: ClassVar[int] = 4

    def __init__(
        self, partition: int, offset_first: int, offset_next: int, runs: Sequence[str]
    ) -> None:
        self.partition, self.runs = partition, tuple(runs)
        self.offset_first, self.offset_next = offset_first, offset_next
        named = ", ".join(self.runs[:RUNS_NAMED_MAX])
        if len(self.runs) > RUNS_NAMED_MAX:
            named += f" and {len(self.runs) - RUNS_NAMED_MAX:,} more"
        super().__init__(
            f"partition {partition}: events {offset_first}\u2013{offset_next - 1} are gone and no "
            f"snapshot covers them: runs {named or 'not known'}",
            kept="what the log still holds; nothing was written",
            next="find out what trimmed ns.events or damaged ns.snapshots, and restore them; "
            "no worker serves this partition until then (docs/errors/R317.md)",
        )
