"""The async client: publishes commands and waits for what is decided; questions it inherits."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Self, get_args

from refold.client.handle import RunHandle
from refold.client.history import read_history
from refold.client.outbox import Outbox
from refold.client.questions import Questions
from refold.client.reading import Meter, Progress
from refold.client.repeats import check_same
from refold.client.tail import Decision, PartitionTail
from refold.client.urls import with_namespace
from refold.client.waiting import T, TimeOver, Within, result_within
from refold.log import Log, open_log
from refold.log.routing import routing_count
from refold.settings import LOG_DEFAULT
from refold.settings.registry import open_registry, registry_access
from refold.settings.signing import Signer, open_signer
from refold_projections.fold import Finding, RunState
from refold_schemas.codec import Codec
from refold_schemas.commands import (
    CancelRun,
    Command,
    RecordFinding,
    ResolveStep,
    RetryRun,
    StartRun,
    check_texts,
)
from refold_schemas.errors import RefoldError, RegistryUnavailable
from refold_schemas.errors.cli import (
    REFUSALS,
    ClientClosed,
    CommandIdReused,
    CommandRefused,
    CommandUndecided,
    CommandUnknown,
    RunUnknown,
)
from refold_schemas.errors.log import LogUnavailable, LogUrlInvalid, OffsetOutOfRange
from refold_schemas.events import CommandRejected
from refold_schemas.values import canon_of, check_run_id, encode_value

BY_DEFAULT = "client"
SEND_MIN_S = 5.0
"""How long the log has to store a command, however short `within` is: 0 means do not wait for its
decision. As long as a partition that changes its leader mostly takes."""


class Client(Questions):
    """Starts runs and asks about them. Use it as `async with Client(url) as client`.

    `url_or_log` is a log URL, or a `Log` that the caller has opened and will close. `namespace`
    is for URLs that do not name one. `by` is who asks, as commands record it. `create` makes the
    log where it is missing. `on_progress(reading)` is told while the log is read how far that has
    come. A client belongs to the event loop in which it was entered. `registry_url` is instead of
    `REFOLD_REGISTRY_URL`: the schema registry of a log on Kafka. It is asked before the first
    command, and when a record's schema is not known. `signer` is instead of `REFOLD_SIGNING_KEY`:
    the key that commands are signed with.
    """

    def __init__(
        self,
        url_or_log: str | Log = LOG_DEFAULT,
        *,
        namespace: str | None = None,
        by: str | None = None,
        create: bool = False,
        on_progress: Progress | None = None,
        registry_url: str | None = None,
        signer: Signer | None = None,
    ) -> None:
        self.signer = signer or open_signer()
        self._owns_log = isinstance(url_or_log, str)
        log = url_or_log
        if isinstance(log, str):
            log = open_log(with_namespace(log, namespace))
        super().__init__(log, Codec(open_registry(log.url, registry_url)), Meter(on_progress))
        self._namespace, self._registry_url = namespace, registry_url
        self.by = by or BY_DEFAULT
        self._create = create
        self._may_write = False
        self._tails: dict[int, PartitionTail] = {}
        self._outboxes: dict[int, Outbox] = {}
        self.sent: Counter[str] = Counter()
        """Commands that the log has acknowledged, by their kind."""

    async def __aenter__(self) -> Self:
        """Open the log (if the client was given a URL). Raises LogUnavailable, LogMissing."""
        if self._owns_log:
            await self._log.open(create=self._create)
        try:
            facts = self._log.facts
            if self._namespace not in (None, facts.namespace):
                raise LogUrlInvalid(
                    self._log.url,
                    f"it holds namespace {facts.namespace}, {self._namespace} was asked for",
                )
            self._routed = await routing_count(self._log, self._codec)
        except BaseException:
            if self._owns_log:
                await self._log.close()
            raise
        self._is_open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop reading, let appends under way end, and close the log if the client opened it."""
        await self.close()

    async def close(self) -> None:
        """What leaving the context does; a second call does nothing."""
        if not self._is_open:
            return
        self._is_open = False
        # From the last one on, each of them also where one is cancelled or fails: a second call
        # does nothing, so nobody else would.
        async with AsyncExitStack() as closing:
            if self._owns_log:
                closing.push_async_callback(self._log.close)
            for feed in self._feeds.values():
                closing.push_async_callback(feed.close)
            for tail in self._tails.values():
                closing.push_async_callback(tail.close)
            for outbox in self._outboxes.values():
                closing.push_async_callback(outbox.close)

    # ---- commands

    async def start(
        self,
        name: str,
        input: object = None,
        *,
        run_id: str | None = None,
        version: str | None = None,
        by: str | None = None,
        command_id: str | None = None,
        within: timedelta | None = None,
    ) -> RunHandle:
        """Start run `name` and return its handle once the owner has decided it.

        `input` is anything that a value can hold (plain data, a pydantic model, a dataclass).
        Without `run_id` a fresh one is made. A run that exists with the same name and input is not
        started again: its handle is returned, whoever began it.
        Raises BadRunId, ValueRefused, RunExists (other input), FunctionUnknown, InputInvalid,
        CommandUndecided after `within` (None waits for ever), CommandUnknown.
        """
        run_id = str(uuid.uuid4()) if run_id is None else run_id
        check_run_id(run_id)
        value = encode_value(input, path="input")
        command = StartRun(_new_id(command_id), run_id, name, value, version, by or self.by)
        decision = await self._decide(command, within)
        event = decision.event
        # "duplicate": this command has started it, and the record of that is archived by now.
        if isinstance(event, CommandRejected) and event.reason not in ("run_exists", "duplicate"):
            raise self.refusal(command, event)
        handle = RunHandle(self, run_id, decision.life)
        handle.existed = isinstance(event, CommandRejected) and event.reason == "run_exists"
        return handle

    async def resolve(
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
        """Say of a slot in doubt whether its effect happened; `result` is what it returned.

        `attempt` is the latest attempt that you know of: with it, the word is refused if another
        one was made since.
        Returns once the decision is recorded. Raises StepNotInDoubt, TooEarly (absence is not to
        be believed yet), RunUnknown, RunOver, ValueRefused, CommandUndecided, CommandUnknown.
        """
        value = encode_value(result, path="result") if happened else None
        await self._order(
            ResolveStep(
                _new_id(command_id), run_id, slot, attempt, happened, value, by or self.by, why
            ),
            within,
        )

    async def retry(
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
        """Let a parked run go on, or try the failed `slot` of a failed run again.

        `fresh_key`: under the next generation of its effect key, since providers replay a stored
        failure under the old one. Raises NotParked, RunUnknown, RunOver, CommandUndecided.
        """
        await self._order(
            RetryRun(_new_id(command_id), run_id, slot, fresh_key, by or self.by, why), within
        )

    async def cancel(
        self,
        run_id: str,
        *,
        by: str | None = None,
        why: str = "",
        command_id: str | None = None,
        within: timedelta | None = None,
    ) -> None:
        """Ask for the run's end: nothing new starts, open attempts are settled first.

        Returns once the request is recorded, not when the run is cancelled. Raises RunUnknown,
        RunOver, CommandUndecided, CommandUnknown.
        """
        await self._order(CancelRun(_new_id(command_id), run_id, by or self.by, why), within)

    async def record_finding(
        self,
        run_id: str,
        finding: Finding,
        *,
        by: str | None = None,
        why: str = "",
        command_id: str | None = None,
        within: timedelta | None = None,
    ) -> None:
        """Put on record what a reconciliation found of an effect, or that it is settled.

        `finding.at_ms` is not sent: the record has its own time. Returns once that is recorded, at
        once if it was before. Raises NothingToSettle, RunUnknown, CommandRefused, CommandUndecided.
        """
        try:
            await self._order(
                RecordFinding(
                    _new_id(command_id),
                    run_id,
                    *finding[:-1],
                    by or self.by,
                    why,
                ),
                within,
            )
        except CommandRefused as refused:
            if refused.reason != "duplicate":
                raise

    # ---- handles

    def handle(self, run_id: str) -> RunHandle:
        """A handle on a run, whether or not it exists yet."""
        check_run_id(run_id)
        return RunHandle(self, run_id, None)

    # ---- inside

    def _tail(self, partition: int) -> PartitionTail:
        tail = self._tails.get(partition)
        if tail is None:
            tail = self._tails[partition] = PartitionTail(self._log, self._codec, partition)
        return tail

    async def _order(self, command: Command, within: timedelta | None) -> None:
        check_run_id(command.run_id)
        decision = await self._decide(command, within)
        event = decision.event
        if not isinstance(event, CommandRejected):
            return
        if event.reason == "duplicate" and isinstance(command, (CancelRun, ResolveStep)):
            return  # decided before, and the run is as it asks: of any other `_decide` raises
        raise self.refusal(command, event)

    def refusal(
        self, command: Command, event: CommandRejected, *, sent: bool = True
    ) -> CommandRefused | RunUnknown:
        """The error of a command that is refused. Not `sent`: the refusal was foreseen."""
        if event.reason == "unknown_run":
            return RunUnknown(command.run_id, self._log.facts.namespace)
        kind = REFUSALS.get(event.reason, CommandRefused)
        name = type(command).__name__
        return kind(command.run_id, name, event.reason, event.detail, sent=sent)

    async def _decide(self, command: Command, within: timedelta | None) -> Decision:
        """Publish `command` and wait for the first decision that carries its id.

        `within` counts from the call: it is the time for the log and for the owner together.
        """
        check_texts(command)
        time = Within(within)
        run_id, command_id = command.run_id, command.command_id
        partition = self.partition_of(run_id)
        if not self._may_write:
            await self._learn_to_write(time)
            if not self._is_open:  # closed meanwhile: whatever were made now, nobody would close
                raise ClientClosed
        outbox = self._outboxes.get(partition)
        if outbox is None:
            outbox = self._outboxes[partition] = Outbox(
                self._log, self._codec, partition, self.signer
            )
        tail = self._tail(partition)
        await self._begin(tail, time)
        decided = tail.expect(run_id, command_id)
        try:
            offset = await self._send(outbox, command, time)
            decision = await self._read_decision(command, decided, time)
        finally:
            tail.forget(run_id, command_id, decided)
        while decision is None:
            with _sent(command):
                await self._timely(command, tail.begin(), time)
            decided = tail.expect(run_id, command_id)
            try:
                with _sent(command):
                    looking = self._passed_over(command, partition, offset)
                    decision = await self._timely(command, looking, time)
                if decision is None:  # not decided yet: it is read by the new future
                    decision = await self._read_decision(command, decided, time)
            finally:
                tail.forget(run_id, command_id, decided)
        if isinstance(decision.event, CommandRejected) and decision.event.reason == "duplicate":
            with _sent(command):
                return await self._repeated(command, partition, decision, time)
        return decision

    async def _learn_to_write(self, time: Within) -> None:
        """Have the ids of what is sent. Raises RegistryUnavailable; nothing was sent then."""
        left = time.left(SEND_MIN_S)
        try:
            await result_within(self._codec.ready(*get_args(Command)), left)
        except TimeOver:
            access = registry_access(self._registry_url)
            url = "" if access is None else access.url
            told = f"{_silent(time)}; the command was not sent"
            raise RegistryUnavailable(url, told) from None
        self._may_write = True

    async def _begin(self, tail: PartitionTail, time: Within) -> None:
        """Know where the log stands before anything is sent. Raises LogUnavailable."""
        left = time.left(SEND_MIN_S)
        try:
            await result_within(tail.begin(), left)
        except TimeOver:
            kept = "the command was not sent"
            raise LogUnavailable(self._log.url, _silent(time), kept=kept, stored=False) from None

    async def _send(self, outbox: Outbox, command: Command, time: Within) -> int:
        """Publish it and return its offset. Raises CommandUnknown, and what `Outbox.send` does."""
        kind, left = type(command).__name__, time.left(SEND_MIN_S)
        try:
            offset = await result_within(outbox.send(command), left)
        except TimeOver:
            raise CommandUnknown(command.run_id, kind, command.command_id, _silent(time)) from None
        self.sent[kind] += 1
        return offset

    async def _read_decision(
        self, command: Command, decided: "asyncio.Future[Decision]", time: Within
    ) -> Decision | None:
        """The decision that the tail has read; None where the log was trimmed before it could.

        Raises CommandUndecided, CommandUnknown.
        """
        left = time.left()
        if left is not None:
            await asyncio.wait({decided}, timeout=left.total_seconds())
            if not decided.done():
                kind = type(command).__name__
                raise CommandUndecided(command.run_id, kind, command.command_id, time.given_ms)
        with _sent(command), suppress(OffsetOutOfRange):
            # Others may wait for the same decision: one that gives up takes it from nobody.
            return await asyncio.shield(decided)
        return None

    async def _repeated(
        self, command: Command, partition: int, repeated: Decision, time: Within
    ) -> Decision:
        """What was decided when the command was first seen, or that the run is as it wants.

        Raises CommandIdReused, and CommandUnknown where nobody can say in time how it was decided.
        """
        left = time.left(SEND_MIN_S)
        looking = self._first_decision(command, partition, repeated)
        try:
            found = await result_within(looking, left)
        except TimeOver:
            limit_s = max(time.given_ms / 1000, SEND_MIN_S)
            raise _decided_unread(command, f"how was not read within {limit_s:g} s") from None
        if found is not repeated or not isinstance(command, (ResolveStep, RetryRun)):
            return found
        state = await self._timely(command, self.find(command.run_id), time)
        if state is not None and _is_granted(state, command):
            return found
        raise _decided_unread(command, "how is in the log no more")

    async def _timely(self, command: Command, work: Awaitable[T], time: Within) -> T:
        """What is read behind a decision that was trimmed. Raises CommandUnknown if it lasts."""
        try:
            return await result_within(work, time.left(SEND_MIN_S))
        except TimeOver:
            limit_s = max(time.given_ms / 1000, SEND_MIN_S)
            told = f"what the log still says of it was not read within {limit_s:g} s"
            kind = type(command).__name__
            unknown = CommandUnknown(command.run_id, kind, command.command_id, told, stored=True)
            raise unknown from None

    async def _passed_over(self, command: Command, partition: int, offset: int) -> Decision | None:
        """What was decided among records that were trimmed unread; None: nothing yet.

        `offset` is the command's own. Raises CommandUnknown where it was decided, and neither log
        nor checkpoint says how.
        """
        state, fold = await self._reader(partition).of_run(command.run_id)
        if offset >= fold.position.command_next or offset in fold.parked:
            return None
        unread = CommandRejected(command.command_id, "", offset, "duplicate", "archived", None)
        nothing = Decision(unread, -1, None)
        found = await self._first_decision(command, partition, nothing)
        if found is not nothing or (state is not None and _is_granted(state, command)):
            return found
        told = "the decision was trimmed from the log before it was read"
        raise _decided_unread(command, told)

    async def _first_decision(
        self, command: Command, partition: int, repeated: Decision
    ) -> Decision:
        """What was decided when the command was first seen, long before this client asked again.

        `repeated` where that is not in the log any more.
        """
        records = read_history(self._log, self._codec, partition, command.run_id, claims=False)
        with suppress(OffsetOutOfRange):
            async for record in records:
                event = record.event
                if (
                    record.counted
                    and getattr(event, "command_id", None) == command.command_id
                    and not (isinstance(event, CommandRejected) and event.reason == "duplicate")
                ):
                    check_same(command, event)
                    return Decision(event, record.offset, None)  # type: ignore[arg-type]
        return repeated


@contextmanager
def _sent(command: Command) -> Iterator[None]:
    """The log has the command: what keeps us from reading its decision does not say that it failed.

    Raises CommandUnknown for it.
    """
    try:
        yield
    except (CommandIdReused, CommandUnknown):
        raise
    except RefoldError as error:
        kind = type(command).__name__
        closed = isinstance(error, ClientClosed)
        reason = "the client was closed before it was decided" if closed else error.message
        raise CommandUnknown(
            command.run_id, kind, command.command_id, reason, stored=True
        ) from error


def _decided_unread(command: Command, why: str) -> CommandUnknown:
    kind = type(command).__name__
    reason = f"it was decided, and {why}"
    return CommandUnknown(command.run_id, kind, command.command_id, reason, stored=True)


def _silent(time: Within) -> str:
    return f"it had not answered within {max(time.given_ms / 1000, SEND_MIN_S):g} s"


def _is_granted(state: RunState, command: Command) -> bool:
    """Whether the run is as the command wants it, whoever asked for it first."""
    if isinstance(command, StartRun):
        return state.run == command.run and canon_of(state.input) == canon_of(command.input)
    if isinstance(command, ResolveStep):
        slot = state.slots.get(command.slot)
        if slot is None or slot.unsettled:
            return False
        outcome = slot.outcome
        if not command.happened:
            return outcome is None or outcome.kind == "absent"
        if outcome is None or outcome.kind not in ("ok", "unrecordable"):
            return False
        given, kept = command.result, outcome.value
        return given is None or kept is None or canon_of(given) == canon_of(kept)
    return isinstance(command, CancelRun) and state.cancel is not None


def _new_id(command_id: str | None) -> str:
    return str(uuid.uuid4()) if command_id is None else command_id
