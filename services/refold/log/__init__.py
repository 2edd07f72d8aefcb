"""The Log port and its adapters: where events, commands and snapshots are kept, and who owns them.

`open_log(url)` gives the adapter that the URL names; each is imported only when it is asked for.
"""

from refold.log.partitions import murmur2, partition_for
from refold.log.port import (
    Ack,
    Entry,
    Log,
    LogFacts,
    Record,
    Shared,
    Suggestion,
    Topic,
    Upgrade,
)
from refold.log.sizes import BATCH_SIZE_MAX, batch_size, entry_size
from refold.settings import LOG_DEFAULT
from refold_schemas.errors.log import LogAdapterMissing, LogUrlInvalid

__all__ = [
    "BATCH_SIZE_MAX",
    "Ack",
    "Entry",
    "Log",
    "LogFacts",
    "Record",
    "Shared",
    "Suggestion",
    "Topic",
    "Upgrade",
    "batch_size",
    "entry_size",
    "free_bytes",
    "murmur2",
    "open_log",
    "partition_for",
]


def open_log(url: str = LOG_DEFAULT) -> Log:
    """The log behind `url`, not yet opened: `await log.open(create=...)` does the work.

    `memory://NAME`, `sqlite:///relative.db`, `sqlite:////absolute.db`, the latter two with
    `?ns=NAMESPACE` (default `default`) and `?partitions=N` (for a namespace yet to be made);
    `kafka://HOST:PORT[,HOST:PORT]/NAMESPACE`, also with `?partitions=N`. Raises LogUrlInvalid, and
    LogAdapterMissing where the packages of the extra `kafka` are not installed.
    """
    scheme, separator, _ = url.partition("://")
    match scheme if separator else "":
        case "memory":
            from refold.log.memory import MemoryLog

            return MemoryLog(url)
        case "sqlite":
            from refold.log.sqlite import SqliteLog

            return SqliteLog(url, make_directory=url.partition("?")[0] == LOG_DEFAULT)
        case "kafka":
            try:
                from refold.log.kafka import KafkaLog
            except ModuleNotFoundError as error:
                missing = error.name or "aiokafka"
                raise LogAdapterMissing(url, missing, extra="kafka") from error

            return KafkaLog(url)
        case "":
            raise LogUrlInvalid(url, "it does not begin with a scheme such as sqlite://")
        case _:
            raise LogUrlInvalid(url, f"there is no log of the kind {scheme}://")


def free_bytes(url: str) -> int | None:
    """Bytes that the log behind `url` may still take on this machine; None if nothing is known."""
    if not url.startswith("sqlite://"):
        return None
    from refold.log.sqlite_file import free_bytes as free
    from refold.log.sqlite_file import parse_url

    return free(parse_url(url))
