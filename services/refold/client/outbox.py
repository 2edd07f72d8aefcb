"""Publishes commands of one partition: those that wait together go in one batch, none is lost.

An append that ends unknown is repeated with the same bytes, hence the same `command_id`: the owner
decides a command once, however often it is stored.
"""

import asyncio
from typing import NamedTuple

from refold.log import Ack, Entry, Log, Topic, batch_size, entry_size
from refold.log.sizes import gathered_max
from refold.settings.signing import Signer
from refold_schemas.codec import Codec
from refold_schemas.commands import Command
from refold_schemas.errors import RefoldError
from refold_schemas.errors.cli import ClientClosed, CommandUnknown
from refold_schemas.errors.log import (
    BatchRefused,
    BatchTooLarge,
    LogClosed,
    LogForeign,
    LogMissing,
    LogUnavailable,
)

BATCH_BYTES_MAX = 512 * 1024
ANSWER_MS = 10_000
"""How long one append may be without an answer before it counts as unknown."""
CLOSE_MS = 1_000
"""How long closing waits for the answer to an append that is under way."""
REPEAT_MS = 30_000
"""How long an unknown append is repeated before the caller is told."""


class _Sending(NamedTuple):
    entry: Entry
    command: Command
    done: "asyncio.Future[int]"


class Outbox:
    """The commands of this process for one partition."""

    def __init__(
        self, log: Log, codec: Codec, partition: int, signer: Signer | None = None
    ) -> None:
        self._log, self._codec, self._partition = log, codec, partition
        self._signer = signer
        self._waiting: list[_Sending] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def send(self, command: Command) -> int:
        """Append `command` and return its offset when the log has it; a copy may stand before it.

        Raises BatchTooLarge and LogUnavailable where it is certain that nothing was stored;
        CommandUnknown where the log gave no answer for REPEAT_MS.
        """
        if self._closed:
            raise ClientClosed
        value, header = self._codec.encode(command), None
        if self._signer is not None:
            run_id, command_id = command.run_id, command.command_id
            header = self._signer.header(self._log.facts.namespace, run_id, command_id, value)
        entry = Entry(command.run_id.encode(), value, header)
        size, size_max = batch_size([entry]), self._log.facts.batch_size_max
        if size > size_max:
            raise BatchTooLarge(
                topic=Topic.COMMANDS.value,
                partition=self._partition,
                size=size,
                size_max=size_max,
            )
        sending = _Sending(entry, command, asyncio.get_running_loop().create_future())
        self._waiting.append(sending)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._drain(), name=f"outbox-{self._partition}")
        return await asyncio.shield(sending.done)

    async def close(self) -> None:
        """Wait a little for what is under way; what waits behind it hears that it was not sent."""
        self._closed = True
        waiting, self._waiting = self._waiting, []
        for sending in waiting:
            _tell(sending, ClientClosed())
        if self._task is not None and not self._task.done():
            try:
                await asyncio.wait({self._task}, timeout=CLOSE_MS / 1000)
            finally:
                self._task.cancel()
            await asyncio.wait({self._task})

    async def _drain(self) -> None:
        await asyncio.sleep(0)  # commands of one turn of the loop go together
        while self._waiting:
            batch = self._next_batch()
            try:
                said = await self._append(batch)
                if isinstance(said, BatchTooLarge) and len(batch) > 1 and not self._closed:
                    # The log takes less than it said, and says so from now on: each may still fit.
                    self._waiting = batch + self._waiting
                else:
                    _tell_all(batch, said)
            except asyncio.CancelledError:
                _tell_all(batch, _NoAnswer("the client was closed before the log had answered"))
                raise
            except Exception as defect:  # nobody else would hear of it
                _tell_all(batch, defect)

    def _next_batch(self) -> list[_Sending]:
        size = 0
        limit = gathered_max(BATCH_BYTES_MAX, self._log.facts.batch_size_max) - batch_size([])
        for count, sending in enumerate(self._waiting):
            size += entry_size(sending.entry)
            if size > limit and count > 0:
                break
        else:
            count = len(self._waiting)
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    async def _append(self, batch: list[_Sending]) -> BaseException | int:
        """The offset where stored; an error that is certain; _NoAnswer when it stays unknown."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REPEAT_MS / 1000
        pause = 0.05
        unknown: _NoAnswer | None = None
        while True:
            said = await self._try(batch)
            if isinstance(said, int):
                return said
            if not isinstance(said, _NoAnswer):
                # Certain of this try alone: an earlier one may have stored the batch.
                then = said.message if isinstance(said, RefoldError) else said
                return said if unknown is None else _NoAnswer(f"{unknown}; repeated: {then}")
            unknown = said
            if loop.time() + pause >= deadline or self._closed:
                return said
            await asyncio.sleep(pause)
            pause = min(2 * pause, 2.0)

    async def _try(self, batch: list[_Sending]) -> BaseException | int:
        entries = [sending.entry for sending in batch]
        append = asyncio.ensure_future(self._log.append(Topic.COMMANDS, self._partition, entries))
        # Not wait_for: it may swallow a cancellation that arrives with the answer.
        append.add_done_callback(_drop)
        try:
            await asyncio.wait({append}, timeout=ANSWER_MS / 1000)
        finally:
            answered = append.done()
            append.cancel()
        if not answered:
            return _NoAnswer(f"no answer within {ANSWER_MS} ms")
        try:
            ack = append.result()
        except (BatchTooLarge, BatchRefused, LogClosed, LogMissing, LogForeign) as error:
            return error
        except LogUnavailable as error:
            # Known not to be stored: a full disk, a read-only file. Anything else may be stored.
            return error if error.stored is False else _NoAnswer(error.message)
        except RefoldError as error:
            return _NoAnswer(error.message)
        except Exception as error:  # no port error: nobody can tell what became of the batch
            return _NoAnswer(f"{type(error).__name__}: {error}")
        offset = ack.stored_at
        return _NoAnswer("the log answered without an offset") if offset is None else offset


class _NoAnswer(Exception):
    """It is not known whether the batch is stored."""


def _drop(append: "asyncio.Future[Ack]") -> None:
    """Take an answer that comes too late: it was counted as unknown, whatever it says now."""
    if not append.cancelled():
        append.exception()


def _tell_all(batch: list[_Sending], said: BaseException | int) -> None:
    for at, sending in enumerate(batch):
        if isinstance(said, _NoAnswer):
            command = sending.command
            unknown = CommandUnknown(
                command.run_id, type(command).__name__, command.command_id, str(said)
            )
            _tell(sending, unknown)
        else:
            _tell(sending, said + at if isinstance(said, int) else said)


def _tell(sending: _Sending, said: BaseException | int) -> None:
    if sending.done.done():
        return
    if isinstance(said, int):
        sending.done.set_result(said)
    else:
        sending.done.set_exception(said)
        sending.done.exception()  # the caller may have gone: that is no fault
