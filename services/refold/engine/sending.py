"""Sends what durable events ask for: forwarded commands, and rejections as dead letters.

Source: design, sections 3.2 (output commit) and 3.3 (the published mark). An append that ends
unknown is repeated: the same `command_id` is applied once, a dead letter is a copy for people.
"""

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from refold.engine.letters import letter_of
from refold.engine.lookup import Lookup
from refold.engine.outages import UNSENT
from refold.log import batch_size, entry_size
from refold.log.port import Entry, Record, Topic
from refold.log.sizes import gathered_max
from refold_schemas.codec.learning import decode
from refold_schemas.errors import AppendUnknown, UndecodableRecord
from refold_schemas.errors.log import PartitionMissing
from refold_schemas.events import CommandEmitted, CommandRejected
from refold_schemas.values import line_of

if TYPE_CHECKING:
    from refold.engine.owner import PartitionOwner

AT_ONCE: Final = 200
"""So many events are looked at before their messages leave."""
BATCH_BYTES: Final = 512 * 1024

Place = tuple[Topic, int]


class Sender:
    """The outbox of one claim: `books.orders_durable` says what stands in it."""

    def __init__(self, owner: "PartitionOwner") -> None:
        self.owner = owner
        self._wake = asyncio.Event()
        self._full = False

    def wake(self) -> None:
        """Something stands in the outbox."""
        self._wake.set()

    @property
    def owes(self) -> bool:
        """Whether anything has still to leave."""
        return bool(self.owner.books.orders_durable.outbox)

    async def room(self) -> None:
        """Wait while as much stands in it as may: the next commands stay in the log."""
        owner, count_max = self.owner, self.owner.settings.outbox_max
        while len(owner.books.orders_durable.outbox) >= count_max:
            if owner.ended or owner.draining:
                return
            if not self._full:
                self._full = True
                told = f"{count_max:,} messages wait to be sent; commands are taken once some leave"
                owner.warn("R026", None, told)
            await asyncio.sleep(0.1)
        self._full = False

    async def run(self) -> None:
        """Until the claim ends. What cannot be sent for a moment is tried again."""
        owner, settings = self.owner, self.owner.settings
        events = Lookup(owner.log, Topic.EVENTS, owner.partition)
        commands = Lookup(owner.log, Topic.COMMANDS, owner.partition)
        pause_ms = settings.outbox_first_ms
        while not owner.ended:
            self._wake.clear()
            if not self.owes:
                await self._wake.wait()
                continue
            try:
                await self._send(events, commands)
            except Exception as error:  # it stays in the outbox, whatever it was
                owner.cannot(UNSENT, error, line_of(error))
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, settings.outbox_max_ms)
            else:
                owner.can(UNSENT)
                pause_ms = settings.outbox_first_ms

    async def _send(self, events: Lookup, commands: Lookup) -> None:
        """Send the first of what waits. Raises what the log raises, also where that is unknown."""
        owner = self.owner
        orders = owner.books.orders_durable
        waiting: dict[Place, list[tuple[int, Entry]]] = {}
        size = 0
        for offset in list(islice(orders.outbox, AT_ONCE)):
            record = await events.at(offset)
            found = None if record is None else await self._message(record, commands)
            if found is None:  # its event is gone or unreadable: nobody can send it any more
                orders.sent((offset,), owner.tail.position.offset_next)
                continue
            place, entry = found
            waiting.setdefault(place, []).append((offset, entry))
            size += entry_size(entry)
            if size > BATCH_BYTES:
                break
        failed: Exception | None = None
        for place, messages in waiting.items():
            try:
                await self._append(place, [entry for _, entry in messages])
            except Exception as error:  # what goes elsewhere leaves all the same
                failed = failed or error
            else:
                orders.sent((offset for offset, _ in messages), owner.tail.position.offset_next)
        if failed is not None:
            raise failed

    async def _message(self, record: Record, commands: Lookup) -> tuple[Place, Entry] | None:
        owner = self.owner
        try:
            # Whoever took over behind a checkpoint has not read it: its schema may be unknown yet.
            event = await decode(owner.codec, record.value or b"")
        except UndecodableRecord:
            return None
        if isinstance(event, CommandEmitted):
            place = (Topic.COMMANDS, event.partition)
            # With its signature, which stands in the header of the record that came.
            came = await commands.at(event.command_offset)
            header = None if came is None else came.header
            return place, Entry(event.run_id.encode(), event.raw, header)
        if not isinstance(event, CommandRejected):
            return None
        command = await commands.at(event.command_offset)
        namespace, partition = owner.namespace, owner.partition
        size_max = owner.log.facts.batch_size_max
        letter = letter_of(namespace, partition, record, event, command, size_max)
        return (Topic.DEAD_LETTERS, partition), letter

    async def _append(self, place: Place, entries: list[Entry]) -> None:
        topic, partition = place
        log = self.owner.log
        size_max = gathered_max(BATCH_BYTES, log.facts.batch_size_max)
        while entries:
            batch, size = [entries[0]], batch_size(entries[:1])
            for entry in entries[1:]:
                size += entry_size(entry)
                if size > size_max:
                    break
                batch.append(entry)
            entries = entries[len(batch) :]
            async with asyncio.timeout(self.owner.settings.append_timeout_ms / 1000):
                try:
                    ack = await log.append(topic, partition, batch)
                except PartitionMissing:
                    if topic is not Topic.DEAD_LETTERS:
                        raise
                    ack = await log.append(topic, 0, batch)
            if ack.stored_at is None:
                told = f"it was acknowledged with offset {ack.offset}"
                raise AppendUnknown(topic=topic.value, partition=partition, reason=told)
