"""Parked commands of a partition: asks for their schemas, and has them decided from the log.

Source: design, section 3.1 (commands); docs/adr/0020. That the registry is away says nothing of a
command: it waits. That the registry has no such schema is believed after a while.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from refold.engine import decide
from refold.engine.intake import NotYet, key_of
from refold.engine.lookup import Lookup
from refold.engine.outages import NO_SCHEMA
from refold.log.port import Record, Topic
from refold_projections.fold import ParkedCommand
from refold_schemas.codec.codec import FRAME_MAGIC, FRAME_SIZE
from refold_schemas.errors import RefoldError, SchemaUnavailable, UnknownSchemaId
from refold_schemas.values import line_of

if TYPE_CHECKING:
    from refold.engine.owner import PartitionOwner

ASKS_AT_ONCE = 4
YIELD_COMMANDS = 50
"""After so many decisions others of the loop have their turn."""
REFUSED_MAX = 1_000
"""Ids that the registry surely does not have, of which so many are remembered."""
GONE = "its record is not in ns.commands any more, where it was parked"


class Parking:
    """What is parked stands in `books.orders`; this asks, waits and decides."""

    def __init__(self, owner: "PartitionOwner") -> None:
        self.owner = owner
        self._asking: set[int] = set()
        self._asks = asyncio.Semaphore(ASKS_AT_ONCE)
        self._refused: set[int] = set()
        self._changed = asyncio.Event()
        self._full = False
        self._commands: Lookup | None = None

    def park(self, record: Record, state: str, why: str) -> None:
        """Queue that a command waits, and go on behind it."""
        event = decide.parked(record.offset, key_of(record), frame_id(record), state, why)
        self.owner.books.commit(None, (event,), command_next=record.offset + 1)
        self._changed.set()

    async def room(self) -> None:
        """Wait while as many commands are parked as may be: the others stay in the log."""
        owner, settings, orders = self.owner, self.owner.settings, self.owner.books.orders
        while (
            len(orders.parked) >= settings.parked_max
            or orders.parked_bytes >= settings.parked_bytes_max
        ):
            if owner.ended or owner.draining:
                return
            if not self._full:
                self._full = True
                owner.warn(
                    "R025",
                    None,
                    f"{len(orders.parked):,} commands are parked; the next ones are taken "
                    "once some of them are decided",
                )
            await asyncio.sleep(0.1)
        self._full = False

    async def run(self) -> None:
        """Until the claim ends: somebody asks for each schema that a parked command waits for."""
        owner = self.owner
        while not owner.ended and not owner.draining:
            self._changed.clear()
            for head in owner.books.orders.heads():
                if head.schema_id not in self._asking:
                    self._asking.add(head.schema_id)
                    owner.background(self._settle(head.schema_id))
            await self._changed.wait()

    async def _settle(self, schema_id: int) -> None:
        """Decide, and ask for what is missing, until nothing waits for this schema any more."""
        settings = self.owner.settings
        pause_ms, learnt = settings.schema_ask_first_ms, False
        try:
            while self._goes_on and self._heads(schema_id):
                missing = await self._try(schema_id)
                if missing is None and not learnt:
                    learnt = True
                    continue
                if missing is not None and not isinstance(missing, UnknownSchemaId):
                    self.owner.cannot(NO_SCHEMA, missing)
                learnt = False
                if self._goes_on and self._heads(schema_id):
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, settings.schema_ask_max_ms)
        finally:
            self._asking.discard(schema_id)
            if not self._asking and self._goes_on:
                self.owner.can(NO_SCHEMA)
            self._changed.set()

    @property
    def _goes_on(self) -> bool:
        return not self.owner.ended and not self.owner.draining

    async def _try(self, schema_id: int) -> RefoldError | None:
        """Decide what can be read; else ask. None: decided, or what was missing is known now."""
        try:
            await self._decide(schema_id)  # a command that waits behind others needs no question
        except SchemaUnavailable as error:
            missing = await self._ask(error.schema_id)
            if isinstance(missing, UnknownSchemaId) and self._goes_on:
                try:
                    await self._unknown(schema_id, missing)
                except NotYet as unreadable:
                    return unreadable
            return missing
        except NotYet as error:  # the log
            return error
        return None

    async def _ask(self, schema_id: int) -> RefoldError | None:
        """None once the schema is known here; else why it is not."""
        limit_s = self.owner.settings.schema_ask_timeout_ms / 1000
        async with self._asks:
            try:
                async with asyncio.timeout(limit_s):
                    await self.owner.codec.learn(schema_id)
            except TimeoutError:
                return SchemaUnavailable(schema_id, f"no answer within {limit_s:g} s")
            except RefoldError as error:
                return error
            except Exception as error:  # whatever it was, it says nothing of the command
                return SchemaUnavailable(schema_id, f"it cannot be asked for: {line_of(error)}")
        self.owner.can(NO_SCHEMA)
        return None

    def _heads(self, schema_id: int) -> list[ParkedCommand]:
        return [one for one in self.owner.books.orders.heads() if one.schema_id == schema_id]

    async def _decide(self, schema_id: int) -> None:
        """Decide what waits for this schema alone, in order. Raises `NotYet`."""
        async for head, record in self._in_turn(schema_id):
            if record is None:
                self._refuse(head, None, GONE)
            else:
                self.owner.intake.decide_one(record, head)

    async def _unknown(self, schema_id: int, error: UnknownSchemaId) -> None:
        """The registry has no such schema: it may be registered in a moment, or never be."""
        self.owner.can(NO_SCHEMA)
        books, limit_ms = self.owner.books, self.owner.settings.schema_unknown_ms
        if schema_id not in self._refused:
            self._note_unknown(schema_id, error)
        now_ms = books.now_ms()
        async for head, record in self._in_turn(schema_id):
            since_ms = head.unknown_ms
            if schema_id not in self._refused and (
                since_ms is None or now_ms - since_ms < limit_ms
            ):
                continue
            why = f"{error}; it was asked for during {limit_ms / 1000:g} s"
            self._refuse(head, record, why if record is not None else GONE)
            if len(self._refused) < REFUSED_MAX:
                self._refused.add(schema_id)

    async def _in_turn(self, schema_id: int) -> AsyncIterator[tuple[ParkedCommand, Record | None]]:
        """What waits for this schema and for nothing else, each with its record if there is one.

        Once one is decided, the next with its key is told. Ends with the claim. Raises `NotYet`.
        """
        owner, told = self.owner, 0
        for first in self._heads(schema_id):
            head: ParkedCommand | None = first
            while head is not None and head.schema_id == schema_id:
                record = await self._record(head)
                await owner.room()
                told += 1
                if told % YIELD_COMMANDS == 0:
                    await asyncio.sleep(0)
                if not self._goes_on:
                    return
                yield head, record
                following = owner.books.orders.head_of(head.key)
                head = None if following == head else following

    def _note_unknown(self, schema_id: int, error: UnknownSchemaId) -> None:
        """In the log, so that whoever takes over goes on counting from here."""
        books = self.owner.books
        for one in list(books.orders.parked.values()):
            if one.schema_id == schema_id and one.unknown_ms is None:
                why = error.message
                event = decide.parked(one.offset, one.key, schema_id, "unknown", why)
                books.commit(None, (event,))

    def _refuse(self, head: ParkedCommand, record: Record | None, why: str) -> None:
        found = Record(head.offset, head.key, None, None, 0) if record is None else record
        self.owner.intake.refuse(found, head, why)

    async def _record(self, head: ParkedCommand) -> Record | None:
        """The command where it was found. Raises what the log raises."""
        owner = self.owner
        if self._commands is None:
            self._commands = Lookup(owner.log, Topic.COMMANDS, owner.partition)
        return await self._commands.at(head.offset)


def frame_id(record: Record) -> int:
    """The schema id of a record's frame; 0 where it has none."""
    data = record.value or b""
    if len(data) < FRAME_SIZE or data[0] != FRAME_MAGIC:
        return 0
    return int.from_bytes(data[1:FRAME_SIZE], "big")
