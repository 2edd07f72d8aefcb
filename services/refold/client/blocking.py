"""The client for people without an event loop: the same methods, on a loop in its own thread."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from refold.client.client import Client
from refold.client.handle import RunHandle
from refold.client.history import HistoryRecord
from refold.client.questions import RunSummary
from refold.log import Log
from refold.settings import LOG_DEFAULT
from refold_projections.fold import Boundary, RunState
from refold_schemas.errors.cli import ClientClosed

T = TypeVar("T")


class BlockingClient:
    """`Client` with calls that wait: `with BlockingClient(url) as client: client.start(...)`.

    Safe to share between threads, not with a process that was forked from this one (ClientClosed):
    a server that forks its workers opens one in each. A log that is handed in must be opened in no
    other loop: give a URL instead.
    """

    def __init__(
        self,
        url_or_log: str | Log = LOG_DEFAULT,
        *,
        namespace: str | None = None,
        by: str | None = None,
        create: bool = False,
        registry_url: str | None = None,
    ) -> None:
        self._client = Client(
            url_or_log, namespace=namespace, by=by, create=create, registry_url=registry_url
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def __enter__(self) -> Self:
        """Start the thread and open the log. Raises LogUnavailable, LogMissing."""
        loop = asyncio.new_event_loop()
        # A daemon: a program that ends without leaving the context must not hang.
        thread = threading.Thread(target=loop.run_forever, name="refold-client", daemon=True)
        thread.start()
        self._loop, self._thread, self._pid = loop, thread, os.getpid()
        try:
            self._wait(self._client.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client and end its thread."""
        self.close()

    def close(self) -> None:
        """What leaving the context does; a second call does nothing."""
        if self._loop is None:
            return
        if self._forked:  # it is the parent's to close: neither thread nor connections are ours
            self._loop = self._thread = None
            return
        try:
            self._wait(self._client.close())
        finally:
            self._stop()

    @property
    def _forked(self) -> bool:
        """Whether this is a child of the process that opened it: its thread is not here."""
        return os.getpid() != self._pid

    def _stop(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._loop
        if loop is None:
            work.close()
            raise ClientClosed
        if self._forked:
            work.close()
            raise ClientClosed(forked=True)
        future = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C here must not leave the call waiting there
            raise

    def start(
        self,
        name: str,
        input: object = None,
        *,
        run_id: str | None = None,
        version: str | None = None,
        command_id: str | None = None,
        within: timedelta | None = None,
    ) -> "BlockingRunHandle":
        """Start a run; see `Client.start`."""
        handle = self._wait(
            self._client.start(
                name,
                input,
                run_id=run_id,
                version=version,
                command_id=command_id,
                within=within,
            )
        )
        return BlockingRunHandle(self, handle)

    def handle(self, run_id: str) -> "BlockingRunHandle":
        """A handle on a run; see `Client.handle`."""
        return BlockingRunHandle(self, self._client.handle(run_id))

    def resolve(
        self,
        run_id: str,
        slot: str,
        *,
        happened: bool,
        result: object = None,
        attempt: int | None = None,
        by: str | None = None,
        why: str = "",
        command_id: str | None = None,
        within: timedelta | None = None,
    ) -> None:
        """Say of a slot in doubt whether it happened; see `Client.resolve`."""
        self._wait(
            self._client.resolve(
                run_id,
                slot,
                happened=happened,
                result=result,
                attempt=attempt,
                by=by,
                why=why,
                command_id=command_id,
                within=within,
            )
        )

    def retry(
        self,
        run_id: str,
        *,
        slot: str | None = None,
        fresh_key: bool = False,
        by: str | None = None,
        why: str = "",
        command_id: str | None = None,
        within: timedelta | None = None,
    ) -> None:
        """Let a parked or failed run go on; see `Client.retry`."""
        self._wait(
            self._client.retry(
                run_id,
                slot=slot,
                fresh_key=fresh_key,
                by=by,
                why=why,
                command_id=command_id,
                within=within,
            )
        )

    def cancel(
        self,
        run_id: str,
        *,
        by: str | None = None,
        why: str = "",
        command_id: str | None = None,
        within: timedelta | None = None,
    ) -> None:
        """Ask for a run's end; see `Client.cancel`."""
        self._wait(
            self._client.cancel(run_id, by=by, why=why, command_id=command_id, within=within)
        )

    def state(self, run_id: str) -> RunState:
        """The run's folded state; see `Client.state`."""
        return self._wait(self._client.state(run_id))

    def find(self, run_id: str) -> RunState | None:
        """The run's folded state or None; see `Client.find`."""
        return self._wait(self._client.find(run_id))

    def boundary(self, run_id: str) -> Boundary:
        """The run's boundary; see `Client.boundary`."""
        return self._wait(self._client.boundary(run_id))

    def runs(
        self,
        *,
        status: Iterable[str] | None = None,
        run: str | None = None,
        needs: str | None = None,
    ) -> list[RunSummary]:
        """All runs; see `Client.runs`."""
        return self._wait(self._client.runs(status=status, run=run, needs=needs))

    def history(self, run_id: str, *, claims: bool = False) -> Iterator[HistoryRecord]:
        """The run's records; see `Client.history`."""
        records = self._client.history(run_id, claims=claims)
        while True:
            record = self._wait(_next(records))
            if record is None:
                return
            yield record


async def _next(records: Any) -> HistoryRecord | None:
    try:
        record: HistoryRecord = await anext(records)
    except StopAsyncIteration:
        return None
    return record


class BlockingRunHandle:
    """`RunHandle` with calls that wait."""

    def __init__(self, client: BlockingClient, handle: RunHandle) -> None:
        self._client, self._handle = client, handle

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._handle.run_id

    @property
    def existed(self) -> bool | None:
        """Of a start: whether the run was there already; see `RunHandle.existed`."""
        return self._handle.existed

    def __repr__(self) -> str:
        """The handle with its run id."""
        return f"BlockingRunHandle({self.run_id!r})"

    def result(self, *, as_type: object = None, within: timedelta | None = None) -> object:
        """Wait for the run's end; see `RunHandle.result`."""
        return self._client._wait(self._handle.result(as_type=as_type, within=within))

    def boundary(self) -> Boundary:
        """The run's boundary; see `RunHandle.boundary`."""
        return self._client._wait(self._handle.boundary())

    def state(self) -> RunState:
        """The run's folded state; see `RunHandle.state`."""
        return self._client._wait(self._handle.state())

    def wait(
        self,
        until: Callable[[Boundary], bool] | None = None,
        *,
        within: timedelta | None = None,
    ) -> Boundary:
        """Wait until the boundary satisfies `until`, which runs in the client's thread."""
        return self._client._wait(self._handle.wait(until, within=within))

    def cancel(
        self, *, why: str = "", by: str | None = None, within: timedelta | None = None
    ) -> None:
        """Ask for the run's end; see `RunHandle.cancel`."""
        self._client._wait(self._handle.cancel(why=why, by=by, within=within))

    def history(self) -> Iterator[HistoryRecord]:
        """The run's records; see `Client.history`."""
        return self._client.history(self.run_id)
