"""The way to Postgres: the one place that knows asyncpg.

A connection that waits for ever is worse than one that fails: connecting, each statement and each
wait for a lock has its limit.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

from refold_schemas.errors import RefoldError
from refold_schemas.errors.tables import (
    DatabaseClientMissing,
    DatabaseRefused,
    DatabaseUnavailable,
    DatabaseUrlInvalid,
)

CONNECT_TIMEOUT_S = 10.0
STATEMENT_TIMEOUT_MS = 60_000
LOCK_TIMEOUT_MS = 10_000
IDLE_IN_TRANSACTION_MS = 120_000
"""A projector that is frozen in a transaction must not hold its row for ever."""

Connection = Any
"""asyncpg's Connection: it has no types."""


def client() -> Any:
    """The module asyncpg. Raises DatabaseClientMissing, naming the extra."""
    try:
        import asyncpg
    except ModuleNotFoundError as error:
        raise DatabaseClientMissing(error.name or "asyncpg") from error
    return asyncpg


def shown(url: str) -> str:
    """The URL without its password.

    >>> shown("postgresql://refold:secret@db:5432/refold")
    'postgresql://refold@db:5432/refold'
    """
    try:
        parts = urlsplit(url)
        user = f"{parts.username}@" if parts.username else ""
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{user}{parts.hostname or ''}{port}{parts.path}"
    except ValueError:
        return "postgresql://…"


def check_url(url: str) -> None:
    """Raise DatabaseUrlInvalid unless it names a Postgres."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:  # its text names a part that has no password in it
        raise DatabaseUrlInvalid(f"{error}") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise DatabaseUrlInvalid("it has to begin with postgresql://")


async def connect(
    url: str,
    *,
    name: str = "refold",
    statement_timeout_ms: int = STATEMENT_TIMEOUT_MS,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
) -> Connection:
    """One connection of its own. Raises DatabaseUnavailable, DatabaseUrlInvalid.

    `name` is what the server's administrators see. A `statement_timeout_ms` of 0 is none, for
    whoever reads whole tables. Statements run under fixed settings, whatever those of the role
    are; the zone is UTC.
    """
    check_url(url)
    asyncpg = client()
    try:
        return await asyncpg.connect(
            url,
            timeout=CONNECT_TIMEOUT_S,
            command_timeout=statement_timeout_ms / 1000 + 5 if statement_timeout_ms else None,
            server_settings={
                "application_name": name,
                "timezone": "UTC",
                "statement_timeout": str(statement_timeout_ms),
                "lock_timeout": str(lock_timeout_ms),
                "idle_in_transaction_session_timeout": str(IDLE_IN_TRANSACTION_MS),
                "tcp_keepalives_idle": "10",
                "tcp_keepalives_interval": "5",
                "tcp_keepalives_count": "3",
                "jit": "off",
            },
        )
    except Exception as error:
        if is_away(error) or isinstance(error, asyncpg.PostgresError):
            raise DatabaseUnavailable(shown(url), told(error)) from error
        if isinstance(error, asyncpg.InterfaceError | asyncpg.ClientConfigurationError):
            raise DatabaseUrlInvalid(told(error)) from error
        raise


class Pool:
    """Connections of one's own, at most `size` of them, each made when it is first needed.

    One that an error came out of is not used again. Nobody waits longer than `wait_s` for one:
    then DatabaseUnavailable is raised.
    """

    def __init__(
        self, url: str, *, size: int, name: str = "refold", wait_s: float = CONNECT_TIMEOUT_S
    ) -> None:
        self.url, self._name, self._wait_s, self.size = url, name, wait_s, size
        self._room = asyncio.Semaphore(size)
        self._free: list[Connection] = []
        self._closed = False

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """One of them, for as long as the block lasts."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._room.acquire()
        except TimeoutError:
            reason = f"all {self.size} connections were in use for {self._wait_s:g} s"
            raise DatabaseUnavailable(shown(self.url), reason) from None
        try:
            one = await self._take()
            try:
                yield one
            except BaseException:
                one.terminate()
                raise
            if self._closed or one.is_closed():
                await close(one)
            else:
                self._free.append(one)
        finally:
            self._room.release()

    async def _take(self) -> Connection:
        while self._free:
            one = self._free.pop()
            if not one.is_closed():
                return one
        return await connect(self.url, name=self._name)

    @property
    def free(self) -> int:
        """How many nobody uses, those included that are not made yet."""
        return self._room._value

    async def close(self) -> None:
        """Give all of them back; those in use when their block ends."""
        self._closed = True
        while self._free:
            await close(self._free.pop())


async def close(connection: Connection) -> None:
    """Give a connection back, whatever state it is in."""
    try:
        await connection.close(timeout=2)
    except Exception:  # it is gone already, or is given no more time
        connection.terminate()


def is_away(error: BaseException) -> bool:
    """Whether the error says that the database, or the way there, is not there now.

    What was under way is then unknown; the compare-and-set of the position tells.
    """
    asyncpg = client()
    gone = (
        OSError,
        TimeoutError,
        asyncio.TimeoutError,
        asyncpg.PostgresConnectionError,
        asyncpg.ConnectionDoesNotExistError,
        asyncpg.CannotConnectNowError,
        asyncpg.AdminShutdownError,
        asyncpg.CrashShutdownError,
        asyncpg.InsufficientResourcesError,
        asyncpg.QueryCanceledError,
        asyncpg.LockNotAvailableError,
        asyncpg.IdleInTransactionSessionTimeoutError,
        asyncpg.DeadlockDetectedError,
        asyncpg.SerializationError,
        asyncpg.ReadOnlySQLTransactionError,
        asyncpg.InternalClientError,  # its connection was lost in the middle of an exchange
    )
    if isinstance(error, gone):
        return True
    return isinstance(error, asyncpg.InterfaceError) and "clos" in str(error)


@contextmanager
def translated(url: str) -> Iterator[None]:
    """What Postgres says becomes DatabaseUnavailable or DatabaseRefused."""
    try:
        yield
    except Exception as error:
        if (ours := in_our_words(error, url)) is error:
            raise
        raise ours from error


def in_our_words(error: Exception, url: str) -> Exception:
    """What Postgres says as an error of ours; any other error as it is."""
    if isinstance(error, RefoldError):
        return error
    if is_away(error):
        # The end of a transaction on a connection that is lost hides what it was lost by.
        first = error.__context__ if "__aexit__" in str(error) else None
        return DatabaseUnavailable(shown(url), told(first or error))
    if isinstance(error, client().PostgresError):
        return DatabaseRefused(shown(url), told(error))
    return error


def is_missing(error: BaseException) -> bool:
    """Whether a table, view or schema is not there (any more)."""
    asyncpg = client()
    return isinstance(
        error,
        asyncpg.UndefinedTableError
        | asyncpg.InvalidSchemaNameError
        | asyncpg.UndefinedColumnError
        | asyncpg.UndefinedFunctionError,
    )


def is_refused(error: BaseException) -> bool:
    """Whether Postgres refuses what stands in a row."""
    return isinstance(error, client().DataError | client().ProgramLimitExceededError)


def told(error: BaseException) -> str:
    """What it says, in a line."""
    return " ".join(f"{error}".split()) or type(error).__name__
