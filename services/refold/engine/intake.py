"""Takes the commands of a partition, strictly in offset order: each yields exactly one decision.

One that cannot be read yet is parked, and decided later by the same rules (`parking`); one that
belongs elsewhere is sent on (`sending`).
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from refold.app.definitions import StepDef
from refold.engine import decide
from refold.engine.books import DecisionTooLarge
from refold.engine.decide import Offer
from refold.engine.ending import LogWasCut
from refold.engine.outages import UNREAD
from refold.log import batch_size, partition_for
from refold.log.port import Entry, Record, Topic
from refold.settings.signing import Judgement
from refold_projections.fold import ParkedCommand, RunState, is_under_way
from refold_schemas.commands import (
    CancelRun,
    Command,
    RecordFinding,
    ResolveStep,
    RetryRun,
    StartRun,
    too_long,
)
from refold_schemas.errors import (
    BadRunId,
    OffsetOutOfRange,
    RefoldError,
    SchemaUnavailable,
    UndecodableRecord,
    UnknownSchemaName,
)
from refold_schemas.events import (
    CommandEmitted,
    CommandRejected,
    FindingRecorded,
    RunResumed,
    RunStarted,
    StepResolved,
)
from refold_schemas.registry import BadSchema
from refold_schemas.values import check_run_id, decode_value_as, encode_value, values_differ

if TYPE_CHECKING:
    from refold.engine.owner import PartitionOwner

KEY_MAX: Final = 800
"""Bytes of the longest run id: a longer key names no run."""
NEVER: Final = (UndecodableRecord, BadRunId, UnknownSchemaName, BadSchema)
"""Errors that say that no waiting makes the command readable."""
NotYet = RefoldError
"""Any other: the schemas are not at hand. It says nothing of the command."""
RETRY_S: Final = 0.5
WAIT_MS: Final = 1_000
LOOK_MS: Final = 5_000
"""How often an owner without commands looks whether the log still holds those that it decided."""


class Intake:
    """Reads `ns.commands` from the folded position on. The position is part of the fold."""

    def __init__(self, owner: "PartitionOwner") -> None:
        self.owner = owner
        self.taken = 0
        self._none_from, self._none_boot_ms = 0, 0
        """From this offset on there was no command yet at that moment of the boot clock. Only of
        a log on this machine: a broker does not tell of what it has stored and not replicated."""

    async def run(self) -> None:
        """Until the claim ends. A log that cannot be read for a moment is tried again."""
        owner = self.owner
        looked_boot_ms = owner.clock.boot_ms()
        while not owner.ended and not owner.draining:
            offset = owner.books.command_next
            try:
                if not await owner.log.wait(
                    Topic.COMMANDS, owner.partition, offset, timeout_ms=WAIT_MS
                ):
                    if owner.clock.boot_ms() - looked_boot_ms >= LOOK_MS:
                        looked_boot_ms = owner.clock.boot_ms()
                        await self._look(offset)
                        owner.can(UNREAD)  # a wait that ends may not have been answered
                    continue
                records = await owner.log.read(Topic.COMMANDS, owner.partition, offset)
            except OffsetOutOfRange as gone:
                self._pass_over(offset, gone.start)
                continue
            except RefoldError as error:
                owner.cannot(UNREAD, error)
                await asyncio.sleep(RETRY_S)
                continue
            owner.can(UNREAD)
            if not records:  # only holes: nothing was asked there
                await asyncio.sleep(0.01)
                continue
            for record in records:
                await owner.room()
                await owner.parking.room()
                await owner.sender.room()
                if owner.ended or owner.draining:
                    return
                self.take(record)

    async def _look(self, offset: int) -> None:
        """Notice that the commands were cut or made anew: new ones would never be reached.

        Those that get the offsets of what was decided before would be passed over without a word.
        """
        owner = self.owner
        asked_boot_ms = owner.clock.boot_ms()
        _, end = await owner.log.bounds(Topic.COMMANDS, owner.partition)
        if end == offset and not owner.log.facts.broker_count:
            self._none_from, self._none_boot_ms = offset, asked_boot_ms
        if end < offset and not owner.ended:
            told = f"its commands end at {end}, below {offset}, up to which they were decided"
            owner.tail.end(LogWasCut(owner.partition, told))

    def _pass_over(self, offset: int, start: int) -> None:
        """Commands that were not decided are gone: say it once, in the record, and go on behind.

        Archiving never takes them: a retention did, or somebody by hand.
        """
        owner = self.owner
        told = f"commands {offset}\u2013{start - 1} are gone: deleted before they were decided"
        gone = CommandRejected("", "", offset, "gone", told, None)
        owner.books.commit(
            None, (gone,), command_next=start, then=lambda: owner.warn("R318", None, told)
        )

    def take(self, record: Record) -> None:
        """Decide one command, or park it; either way the position goes on."""
        owner = self.owner
        self.taken += 1
        if owner.books.orders.holds(key_of(record)):
            owner.parking.park(record, "behind", "an earlier command with its key is parked")
            return
        try:
            self.decide_one(record, None)
        except NotYet as error:
            if isinstance(error, SchemaUnavailable) and not error.mends:
                self.refuse(record, None, str(error))  # no registry is set: nobody can know it
                return
            owner.parking.park(record, "waiting", error.message)

    def decide_one(self, record: Record, parked: ParkedCommand | None) -> None:
        """Decide a command and queue that; the last event carries the command position.

        `parked` is it if it was. Raises one of `NotYet` where it cannot be read yet, and then does
        nothing.
        """
        owner = self.owner
        offset, data = record.offset, record.value or b""
        try:
            command = owner.codec.decode(data)
            if not isinstance(command, Command):
                raise UndecodableRecord(f"{type(command).__name__} is no command")
            run_id = self._run_id(command)
        except NEVER as error:
            self.refuse(record, parked, str(error))
            return
        place = partition_for(run_id, owner.routed)
        misplaced = place != owner.partition
        if misplaced:
            if self._forward(command, record, parked, place):
                return
            detail = (
                f"run {run_id} does not belong to partition {owner.partition} and it is too large "
                f"to be sent on: send it to partition {place}, keyed by run_id under murmur2"
            )
            events = decide.rejected(command, offset, "misplaced", detail)
        elif (long := too_long(command)) is not None:
            events = decide.rejected(command, offset, "too_large", long)
        elif (word := self._judged(command, record)).reason is not None:
            events = decide.rejected(command, offset, word.reason, word.detail)
        else:
            if word.by is not None:
                command = replace(command, by=word.by)
            try:
                events = self._with_end(run_id, self._decide(command, record))
            except Exception as fault:  # a defect, or an input whose own code raises
                detail = f"it could not be decided: {type(fault).__name__}"
                events = decide.rejected(command, offset, "input_invalid", detail)
        first = events[0]
        then: Callable[[], None] | None = None
        if isinstance(first, CommandRejected):
            then = self._teller(run_id, first)
        elif isinstance(first, StepResolved):
            then = owner.driver.then_deliver(run_id, first.slot)
        elif isinstance(first, FindingRecorded):
            told = f"{first.slot} {first.kind}, {first.status}: {first.detail}"
            then = partial(owner.tell, "finding", run_id, told)
        elif isinstance(first, RunStarted):
            # Not before it is durable: code that kills its process must leave a run behind that
            # can be parked, or its command would be taken again for ever.
            then = partial(owner.start_new, run_id)
        try:
            self._commit(run_id, events, offset, parked, then)
        except DecisionTooLarge as defect:
            # The same at every try: it must not keep the commands behind it waiting.
            (refused,) = events = decide.rejected(command, offset, "too_large", str(defect))
            assert isinstance(refused, CommandRejected)
            self._commit(run_id, events, offset, parked, self._teller(run_id, refused))
            return
        if not misplaced:
            owner.guarded(command.run_id, self._follow_up, command, first)

    def _with_end(self, run_id: str, events: decide.Events) -> decide.Events:
        """Where the record of a run that has ended stops, for whoever came too late."""
        first, books = events[0], self.owner.books
        if not isinstance(first, CommandRejected) or first.reason != "run_ended":
            return events
        if not books.is_durable(run_id) or run_id not in books.marks:
            return events
        detail = f"{first.detail}; its last record stands at offset {books.marks[run_id].offset}"
        return (replace(first, detail=detail[: decide.DETAIL_MAX]),)

    def refuse(self, record: Record, parked: ParkedCommand | None, why: str) -> None:
        """The one decision of a command that nobody can read."""
        rejection = decide.undecodable(record.offset, why, record.value or b"")
        told = f"command at offset {record.offset}: {why}"
        then = partial(self.owner.tell, "rejected", None, told)
        self._commit(None, (rejection,), record.offset, parked, then)

    def _commit(
        self,
        run_id: str | None,
        events: decide.Events | tuple[CommandEmitted],
        offset: int,
        parked: ParkedCommand | None,
        then: Callable[[], None] | None,
    ) -> None:
        # One that was parked is behind the position already.
        command_next = offset + 1 if parked is None else None
        beside = () if parked is None else (decide.unparked(parked),)
        self.owner.books.commit(run_id, events, command_next=command_next, then=then, beside=beside)

    def _forward(
        self, command: Command, record: Record, parked: ParkedCommand | None, place: int
    ) -> bool:
        """Have it sent to the partition of its run; False where that is surely impossible."""
        owner = self.owner
        data = record.value or b""
        size = batch_size([Entry(command.run_id.encode(), data)])
        if size > owner.log.facts.batch_size_max:
            return False
        event = decide.emitted(command, record.offset, place, data)
        told = f"{event.command_type} at offset {record.offset} is sent to partition {place}"
        then = partial(owner.tell, "forwarded", command.run_id, told)
        try:
            self._commit(None, (event,), record.offset, parked, then)
        except DecisionTooLarge:
            return False
        return True

    def _judged(self, command: Command, record: Record) -> Judgement:
        """Who speaks in it, or why it is refused; the partition of its run looks, no other."""
        owner = self.owner
        if owner.keyring is None:
            return Judgement()
        return owner.keyring.judge(
            owner.namespace,
            type(command).__name__,
            command.run_id,
            command.command_id,
            command.by,
            record.value or b"",
            record.header,
        )

    def _teller(self, run_id: str, event: CommandRejected) -> Callable[[], None] | None:
        if event.reason == "duplicate":  # nothing is lost, and nobody has to do anything
            return None
        told = f"{event.command_type}: {event.reason}: {event.detail}"
        return partial(self.owner.tell, "rejected", run_id, told)

    @staticmethod
    def _run_id(command: Command) -> str:
        check_run_id(command.run_id)
        return command.run_id

    def _decide(self, command: Command, record: Record) -> decide.Events:
        owner = self.owner
        offset = record.offset
        state = owner.books.states.get(command.run_id)
        if isinstance(command, StartRun):
            size = len(command.input.body or b"")
            if size > owner.settings.value_bytes_max:
                detail = (
                    f"its input has {size:,} bytes, {owner.settings.value_bytes_max:,} are allowed"
                )
                return decide.rejected(command, offset, "too_large", detail)
            offer = self._offer(state, command)
            return decide.start_run(state, command, offer, owner.entropy(32), offset)
        if isinstance(command, CancelRun):
            return decide.cancel_run(state, command, offset)
        if isinstance(command, RetryRun):
            return decide.retry_run(state, command, offset)
        if isinstance(command, RecordFinding):
            return decide.record_finding(state, command, offset)
        slot = None if state is None else state.slots.get(command.slot)
        if slot is None:
            return decide.resolve_step(state, command, offset, under_way=False, believe_in_ms=0)
        if command.happened and state is not None:
            try:
                command = self._typed(command, slot.step)
            except RefoldError as error:
                returns = _type_words(owner.app.steps, slot.step)
                detail = (
                    f"the result does not fit what {slot.step} returns{returns}: {error.message}"
                )
                return decide.rejected(command, offset, "input_invalid", detail)
        return decide.resolve_step(
            state,
            command,
            offset,
            under_way=any(is_under_way(a, owner.books.claim_id) for a in slot.unsettled),
            believe_in_ms=owner.word_believed_in_ms(
                command.run_id, slot, record.append_ms, self._came_after_ms(offset)
            ),
        )

    def _came_after_ms(self, offset: int) -> int | None:
        """A moment of the boot clock at which the command was not there yet; None: not known."""
        return self._none_boot_ms if self._none_boot_ms > 0 and offset >= self._none_from else None

    def _typed(self, command: ResolveStep, step: str) -> ResolveStep:
        """The person's result as the step would have returned it: run code gets its type."""
        definition = self.owner.app.steps.get(step)
        value = command.result if command.result is not None else encode_value(None)
        if definition is not None:
            value = encode_value(decode_value_as(value, definition.returns), path="result")
        return ResolveStep(
            command.command_id,
            command.run_id,
            command.slot,
            command.attempt,
            command.happened,
            value,
            command.by,
            command.why,
        )

    def _offer(self, state: RunState | None, command: StartRun) -> Offer | None:
        definition = self.owner.app.runs.get(command.run)
        if definition is None:
            return None
        problem, same = None, False
        try:
            given = definition.read_input(command.input)
            # Compared in today's type: a model from Python and plain JSON are the same input.
            kind = definition.input_type
            same = state is not None and values_differ(state.input, given, kind) is None
        except RefoldError as error:
            problem = error.message
        plan = None if definition.plan is None else tuple(definition.plan)
        return Offer(definition.version, plan, problem, same)

    def _follow_up(self, command: Command, first: object) -> None:
        """What the decision makes possible: run code goes on from the tentative state at once."""
        owner = self.owner
        if owner.ended:
            return
        run_id = command.run_id
        if isinstance(first, StepResolved):
            actor = owner.driver.actors.get(run_id)
            if actor is not None and (actor.session is not None or actor.lookups):
                owner.settling.after(run_id, first.slot)
            else:  # a session that starts now finds the outcome in the record
                owner.driver.activate(run_id)
        elif isinstance(command, CancelRun) and not isinstance(first, CommandRejected):
            owner.driver.cancel(run_id)
        elif isinstance(first, RunResumed):
            owner.driver.drop(run_id)
            owner.driver.activate(run_id)


def _type_words(steps: Mapping[str, StepDef], name: str) -> str:
    """` (int)`: the type that the step declares."""
    definition = steps.get(name)
    if definition is None:
        return ""
    returns = definition.returns
    return f" ({returns.__name__})" if isinstance(returns, type) else f" ({returns})"


def key_of(record: Record) -> bytes | None:
    """The key of a command as far as it can name a run."""
    key = record.key
    return key if key and len(key) <= KEY_MAX else None
