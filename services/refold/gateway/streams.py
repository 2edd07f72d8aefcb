"""Server-sent events of a run: what is stored, what comes, a beat between, and an end for the slow.

Written on ASGI itself: each message has a limit in time, which a response of the framework has not.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from datetime import tzinfo

from fastapi import Request
from fastapi.responses import Response

from refold.client.following import FollowerTooSlow
from refold.client.history import HistoryRecord
from refold.gateway.auth import identify
from refold.gateway.identity import Caller
from refold.gateway.problems import problem, request_id_of, tell_defect
from refold.gateway.shapes import RecordShape
from refold.gateway.shell import Message, Receive, Scope, Send
from refold.gateway.state import Gateway
from refold_schemas.errors import RefoldError
from refold_schemas.errors.gateway import (
    GatewayBusy,
    GatewayDefect,
    ReaderTooSlow,
    RequestInvalid,
)

RETRY_MS = 2_000
"""How soon a browser connects again."""
BEAT = b": still here\n\n"

Shown = Callable[[HistoryRecord], RecordShape]


class Streams:
    """How many there are, of everybody and of each caller."""

    def __init__(self, count_max: int, of_caller_max: int) -> None:
        self._count_max, self._of_caller_max = count_max, of_caller_max
        self._of: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """How many are open."""
        return self._of.total()

    def enter(self, key: str) -> None:
        """One more. Raises GatewayBusy."""
        if self.count >= self._count_max:
            raise GatewayBusy(f"{self._count_max} streams are open")
        if self._of[key] >= self._of_caller_max:
            raise GatewayBusy(f"this caller has {self._of_caller_max} streams open")
        self._of[key] += 1

    def leave(self, key: str) -> None:
        """One less."""
        self._of[key] -= 1
        if not self._of[key]:
            del self._of[key]


def last_event_id(request: Request) -> int | None:
    """The offset behind which a stream goes on; None: from the run's start. Raises
    RequestInvalid."""
    given = request.headers.get("last-event-id", "").strip()
    if not given:
        return None
    if not given.isdecimal() or len(given) > 19:
        raise RequestInvalid("Last-Event-ID is no id of this stream: it is the offset of a record")
    return int(given)


class EventStream(Response):
    """The response: `records` are followed, and shown as `shown` says.

    `archived` are the files that hold what should have come before them: they are told first.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        request: Request,
        gateway: Gateway,
        caller: Caller,
        records: AsyncGenerator[HistoryRecord, None],
        shown: Shown,
        archived: tuple[str, ...] = (),
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._request, self._gateway, self._caller = request, gateway, caller
        self._records, self._shown, self._archived = records, shown, archived

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the reader goes, is too slow, may no more, or the gateway stops."""
        gateway = self._gateway
        async with aclosing(self._records):
            gateway.streams.enter(self._caller.key)
            try:
                deadline, slot = scope.get("refold.deadline"), scope.get("refold.slot")
                if isinstance(deadline, asyncio.Timeout):
                    deadline.reschedule(None)
                if slot is not None:
                    slot.release()
                await self._until_someone_goes(receive, send)
            finally:
                gateway.streams.leave(self._caller.key)

    async def _until_someone_goes(self, receive: Receive, send: Send) -> None:
        sending = asyncio.create_task(self._send_all(send), name="stream")
        leaving = asyncio.create_task(_gone(receive), name="stream-reader")
        draining = asyncio.create_task(self._gateway.draining.wait(), name="stream-drain")
        tasks = {sending, leaving, draining}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        if not leaving.cancelled() and leaving.exception() is None:
            return
        with suppress(asyncio.CancelledError, ReaderTooSlow, TimeoutError, OSError):
            if not sending.cancelled():
                sending.result()
            async with asyncio.timeout(self._gateway.settings.stream_stall_s):
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await self._send(send, start)
        await self._body(send, f"retry: {RETRY_MS}\n\n".encode())
        if self._archived:
            await self._body(send, _message("archived", {"archived": self._archived}))
        try:
            await self._follow(send)
        except RefoldError as error:
            await self._last_word(send, error)
        except FollowerTooSlow as error:
            await self._last_word(send, ReaderTooSlow(str(error)))
        except Exception as error:
            request_id = request_id_of(self._request)
            tell_defect(error, request_id)
            await self._last_word(send, GatewayDefect(request_id))

    async def _follow(self, send: Send) -> None:
        beat_s, clock = self._gateway.settings.stream_beat_s, asyncio.get_running_loop().time
        coming, known_s = asyncio.ensure_future(anext(self._records)), clock()
        try:
            while True:
                done, _ = await asyncio.wait({coming}, timeout=beat_s)
                # It may be revoked by now; a run that is never silent must not keep that away.
                if not done or clock() - known_s >= beat_s:
                    await identify(self._request, self._gateway)
                    known_s = clock()
                if done:
                    await self._body(send, self._event(coming.result()))
                    coming = asyncio.ensure_future(anext(self._records))
                else:
                    await self._body(send, BEAT)
        finally:
            coming.cancel()
            await asyncio.wait({coming})

    def _event(self, record: HistoryRecord) -> bytes:
        data = self._shown(record).model_dump_json()
        return f"id: {record.offset}\nevent: record\ndata: {data}\n\n".encode("utf-8", "replace")

    async def _last_word(self, send: Send, error: RefoldError) -> None:
        _, body, _ = problem(error, request_id_of(self._request))
        await self._body(send, _message("problem", body))

    async def _body(self, send: Send, data: bytes) -> None:
        await self._send(send, {"type": "http.response.body", "body": data, "more_body": True})

    async def _send(self, send: Send, message: Message) -> None:
        """Raises ReaderTooSlow for one that takes nothing."""
        stall_s = self._gateway.settings.stream_stall_s
        try:
            async with asyncio.timeout(stall_s):
                await send(message)
        except TimeoutError:
            raise ReaderTooSlow(f"nothing was taken for {stall_s:g} s") from None


def _message(kind: str, body: object) -> bytes:
    """An event that is no record: it has no id, so that a reader goes on behind the last record."""
    data = json.dumps(body, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode("utf-8", "replace")


async def _gone(receive: Callable[[], Awaitable[Message]]) -> None:
    """Return when the reader has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def shown_in(zone: tzinfo, shape: Callable[[HistoryRecord, tzinfo], RecordShape]) -> Shown:
    """How a record is shown in a zone."""
    return lambda record: shape(record, zone)
