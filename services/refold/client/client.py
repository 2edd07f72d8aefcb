"""The async client: publishes commands, reads what became of them, and what is known of a run."""

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Self, get_args
from urllib.parse import parse_qs, urlsplit

from refold.client.claims import ClaimSeen, claim_of
from refold.client.following import PartitionFeed
from refold.client.history import HistoryRecord, read_elsewhere, read_history
from refold.client.orders import OrderRecord, read_orders
from refold.client.outbox import Outbox
from refold.client.reading import Meter, Progress, metered
from refold.client.states import StateReader, claim_as_seen
from refold.client.tail import Decision, PartitionTail, RunLife
from refold.log import Log, Topic, open_log, partition_for
from refold.log.routing import routing_count
from refold.settings import LOG_DEFAULT
from refold.settings.registry import open_registry
from refold.settings.signing import Signer, open_signer
from refold_projections.fold import (
    Boundary,
    Cancel,
    Ended,
    Finding,
    ParkedCommand,
    PartitionFold,
    RunState,
    boundary,
)
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
from refold_schemas.errors import RefoldError
from refold_schemas.errors.cli import (
    REFUSALS,
    ClientClosed,
    CommandIdReused,
    CommandRefused,
    CommandUndecided,
    CommandUnknown,
    ResultNotThere,
    RunCancelledError,
    RunFailedError,
    RunUnknown,
)
from refold_schemas.errors.log import LogUrlInvalid, OffsetOutOfRange
from refold_schemas.events import (
    CommandRejected,
    FindingRecorded,
    RunCancelRequested,
    RunResumed,
    RunStarted,
    StepResolved,
)
from refold_schemas.values import (
    canon_of,
    check_run_id,
    decode_value,
    decode_value_as,
    encode_value,
)

BY_DEFAULT = "client"
RUNS_AT_ONCE = 500
FOLLOWED_MAX = 256
FOLLOWED_BYTES_MAX = 8 << 20
"""Records, and their bytes, that wait for one who follows a run."""
SEND_MIN_S = 1.0
"""How long the log has to store a command, however short `within` is: 0 means do not wait for its
decision."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line about a run. `status`, `reason` and `needs` as in its boundary."""

    run_id: str
    run: str
    version: str
    status: str
    reason: str | None
    needs: str | None
    started_ms: int
    changed_ms: int
    partition: int
    event_count: int


@dataclass(frozen=True, slots=True)
class BoundaryAt:
    """A boundary, the log position that it holds at, and who owns the partition there.

    `offset` is the next one to be read. `owner` is that of the latest claim that counts;
    `owner_lives` is None where nobody can say. `by_this_claim`: the run's last record is of that
    claim, so its owner has looked at the run with the code that it has. `command_next` is the
    offset of the first command that is not decided there; `commands_waiting` counts from it on.
    `commands_parked` are those before it that have the run's key and wait for their schema.
    `archived`: the files that hold records of the run which the log holds no more.
    """

    boundary: Boundary
    state: RunState
    partition: int
    offset: int
    owner: str
    owner_lives: bool | None
    released: bool
    by_this_claim: bool
    command_next: int
    commands_waiting: int
    commands_parked: tuple[ParkedCommand, ...] = ()
    archived: tuple[str, ...] = ()


class Client:
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
        if isinstance(url_or_log, str):
            self._log = open_log(with_namespace(url_or_log, namespace))
        else:
            self._log = url_or_log
        self._namespace = namespace
        self.by = by or BY_DEFAULT
        self._create = create
        self._meter = Meter(on_progress)
        self._codec = Codec(open_registry(self._log.url, registry_url))
        self._may_write = False
        self._tails: dict[int, PartitionTail] = {}
        self._states: dict[int, StateReader] = {}
        self._outboxes: dict[int, Outbox] = {}
        self._feeds: dict[int, PartitionFeed] = {}
        self._is_open = False
        self._routed = 0
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
        for outbox in self._outboxes.values():
            await outbox.close()
        for tail in self._tails.values():
            await tail.close()
        for feed in self._feeds.values():
            await feed.close()
        if self._owns_log:
            await self._log.close()

    @property
    def log(self) -> Log:
        """The log that is read and written."""
        return self._log

    @property
    def codec(self) -> Codec:
        """The codec of its records."""
        return self._codec

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
    ) -> "RunHandle":
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

    # ---- questions

    def handle(self, run_id: str) -> "RunHandle":
        """A handle on a run, whether or not it exists yet."""
        check_run_id(run_id)
        return RunHandle(self, run_id, None)

    async def state(self, run_id: str) -> RunState:
        """The folded state at the log's end. Raises RunUnknown.

        Slots of a run that had ended at the latest checkpoint hold no values: `history` has them.
        """
        state, _ = await self._reader(self.partition_of(run_id)).of_run(run_id)
        if state is None:
            raise RunUnknown(run_id, self._log.facts.namespace)
        return state

    async def find(self, run_id: str) -> RunState | None:
        """The folded state at the log's end, None where there is no such run."""
        state, _ = await self._reader(self.partition_of(run_id)).of_run(run_id)
        return state

    async def boundary(self, run_id: str) -> Boundary:
        """What is done, under way, in doubt, failed and remaining at the log's end.

        Needs no worker. Where the partition's owner has released it or is known to be dead,
        nothing is under way any more: it is in doubt. Raises RunUnknown.
        """
        return (await self.boundary_at(run_id)).boundary

    async def boundary_at(self, run_id: str) -> BoundaryAt:
        """The boundary with the position that it holds at. Raises RunUnknown."""
        partition = self.partition_of(run_id)
        self._meter.begin(1)
        state, fold = await self._reader(partition).of_run(run_id)
        if state is None:
            raise RunUnknown(run_id, self._log.facts.namespace)
        owner_lives = await self.owner_lives(partition)
        claim_id = claim_as_seen(fold, owner_lives=owner_lives)
        _, command_end = await self._log.bounds(Topic.COMMANDS, partition)
        return BoundaryAt(
            boundary(state, claim_id),
            state,
            partition,
            fold.position.offset_next,
            fold.facts.owner,
            owner_lives,
            fold.facts.released,
            fold.marks[run_id].claim_id == fold.claim_id,
            fold.position.command_next,
            max(0, command_end - fold.position.command_next),
            tuple(one for one in fold.parked.values() if one.key == run_id.encode()),
            await self.archived(run_id),
        )

    async def runs(
        self,
        *,
        status: Iterable[str] | None = None,
        run: str | None = None,
        needs: str | None = None,
    ) -> list[RunSummary]:
        """All runs of the namespace, the most recently changed first; filters leave others out."""
        wanted = None if status is None else frozenset(status)
        found: list[RunSummary] = []
        self._meter.begin(self._routed)
        for partition in range(self._routed):
            fold = await self._reader(partition).of_all()
            claim_id = claim_as_seen(fold, owner_lives=await self.owner_lives(partition))
            for number, state in enumerate(fold.runs.values()):
                if number % RUNS_AT_ONCE == RUNS_AT_ONCE - 1:
                    await asyncio.sleep(0)  # others of this loop, and who wants to cancel it
                if run is not None and state.run != run:
                    continue
                seen = boundary(state, claim_id)
                if wanted is not None and seen.status not in wanted:
                    continue
                if needs is not None and seen.needs != needs:
                    continue
                found.append(
                    RunSummary(
                        state.run_id,
                        state.run,
                        state.version,
                        seen.status,
                        seen.reason,
                        seen.needs,
                        state.started_ms,
                        state.changed_ms,
                        partition,
                        state.event_count,
                    )
                )
        found.sort(key=lambda one: (-one.changed_ms, one.run_id))
        return found

    async def archived(self, run_id: str) -> tuple[str, ...]:
        """The archive files that hold records of the run which the log holds no more, in order."""
        return await self._reader(self.partition_of(run_id)).files_of(run_id)

    def history(self, run_id: str, *, claims: bool = False) -> AsyncIterator[HistoryRecord]:
        """The run's records in log order, decoded; those that do not count are marked.

        With `claims` also the claims between them. Ends at the log's end as of the first record.
        What was archived is not among them: `archived` names the files.
        """
        self._meter.begin(1)
        log = metered(self._log, self._meter, whole=Topic.EVENTS)
        return read_history(log, self._codec, self.partition_of(run_id), run_id, claims=claims)

    def follow(
        self,
        run_id: str,
        *,
        after: int | None = None,
        count_max: int = FOLLOWED_MAX,
        size_max: int = FOLLOWED_BYTES_MAX,
    ) -> AsyncGenerator[HistoryRecord, None]:
        """The run's records behind the offset `after` (None: from its start), and those to come.

        Claims are among them: they say that what was under way is in doubt. It never ends by
        itself. Raises FollowerTooSlow where more than `count_max` records, or `size_max` bytes of
        them, wait to be taken.
        """
        partition = self.partition_of(run_id)
        feed = self._feeds.get(partition)
        if feed is None:
            feed = self._feeds[partition] = PartitionFeed(self._log, self._codec, partition)
        return feed.follow(run_id, after=after, count_max=count_max, size_max=size_max)

    @property
    def routed(self) -> int:
        """Over how many partitions runs are routed; the topics may have more."""
        return self._routed

    async def history_elsewhere(self, run_id: str) -> AsyncIterator[HistoryRecord]:
        """What other partitions say of the run: commands for it that were found there.

        It reads all of them.
        """
        home = self.partition_of(run_id)
        for partition in range(self._log.facts.partition_count):
            if partition != home:
                async for record in read_elsewhere(self._log, self._codec, partition, run_id):
                    yield record

    async def orders(self, partition: int) -> AsyncIterator[OrderRecord]:
        """Commands of a partition that were rejected, parked or sent on, in log order."""
        async for record in read_orders(self._log, self._codec, partition):
            yield record

    def partition_of(self, run_id: str) -> int:
        """The partition in which the run lives, or would. Raises ClientClosed."""
        if not self._is_open:
            raise ClientClosed
        return partition_for(run_id, self._routed)

    def _tail(self, partition: int) -> PartitionTail:
        tail = self._tails.get(partition)
        if tail is None:
            tail = self._tails[partition] = PartitionTail(self._log, self._codec, partition)
        return tail

    def _reader(self, partition: int) -> StateReader:
        reader = self._states.get(partition)
        if reader is None:
            reader = self._states[partition] = StateReader(
                self._log, self._codec, partition, self._meter
            )
        return reader

    async def fold_of(self, partition: int) -> PartitionFold:
        """The fold of all runs of one partition at the log's end; it belongs to the client."""
        return await self._reader(partition).of_all()

    async def claim_of(self, partition: int) -> ClaimSeen:
        """Who owns a partition and with what, at the log's end; no runs are folded."""
        return await claim_of(self._log, self._codec, partition, self._meter)

    async def claims(self) -> list[ClaimSeen]:
        """`claim_of` for every partition that the topics have."""
        count = self._log.facts.partition_count
        self._meter.begin(count)
        return [await self.claim_of(partition) for partition in range(count)]

    async def owner_lives(self, partition: int) -> bool | None:
        """Whether the partition's owner is alive, as far as the log can say; None: unknown."""
        return await self._log.owner_lives(partition)

    # ---- inside

    async def _order(self, command: Command, within: timedelta | None) -> None:
        check_run_id(command.run_id)
        decision = await self._decide(command, within)
        event = decision.event
        if not isinstance(event, CommandRejected):
            return
        if event.reason == "duplicate" and isinstance(command, CancelRun):
            return  # somebody has asked for it before: it is being done
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
        loop = asyncio.get_running_loop()
        begun = loop.time()
        partition = self.partition_of(command.run_id)
        if not self._may_write:
            await self._codec.ready(*get_args(Command))
            self._may_write = True
        outbox = self._outboxes.get(partition)
        if outbox is None:
            outbox = self._outboxes[partition] = Outbox(
                self._log, self._codec, partition, self.signer
            )
        tail = self._tail(partition)
        await tail.begin()
        decided = tail.expect(command.command_id)
        try:
            if within is None:
                offset = await outbox.send(command)
                self.sent[type(command).__name__] += 1
            else:
                left_s = within.total_seconds() - (loop.time() - begun)
                sending = asyncio.ensure_future(outbox.send(command))
                if not await _done_within(sending, timedelta(seconds=max(left_s, SEND_MIN_S))):
                    raise CommandUnknown(
                        command.run_id,
                        type(command).__name__,
                        command.command_id,
                        f"it had not answered within {max(within.total_seconds(), SEND_MIN_S):g} s",
                    )
                offset = sending.result()
                self.sent[type(command).__name__] += 1
            decision = await self._read_decision(command, decided, within, begun)
        finally:
            tail.forget(command.command_id, decided)
        while decision is None:
            with _sent(command):
                await tail.begin()
            decided = tail.expect(command.command_id)
            try:
                with _sent(command):
                    decision = await self._passed_over(command, partition, offset)
                if decision is None:  # not decided yet: it is read by the new future
                    decision = await self._read_decision(command, decided, within, begun)
            finally:
                tail.forget(command.command_id, decided)
        if isinstance(decision.event, CommandRejected) and decision.event.reason == "duplicate":
            return await self._first_decision(command, partition, decision)
        return decision

    async def _read_decision(
        self,
        command: Command,
        decided: "asyncio.Future[Decision]",
        within: timedelta | None,
        begun: float,
    ) -> Decision | None:
        """The decision that the tail has read; None where the log was trimmed before it could.

        Raises CommandUndecided, CommandUnknown.
        """
        kind = type(command).__name__
        if within is not None:
            left_s = within.total_seconds() - (asyncio.get_running_loop().time() - begun)
            await asyncio.wait({decided}, timeout=max(left_s, 0.0))
            if not decided.done():
                ms = within // timedelta(milliseconds=1)
                raise CommandUndecided(command.run_id, kind, command.command_id, ms)
        with _sent(command), suppress(OffsetOutOfRange):
            # Others may wait for the same decision: one that gives up takes it from nobody.
            return await asyncio.shield(decided)
        return None

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
        raise CommandUnknown(
            command.run_id,
            type(command).__name__,
            command.command_id,
            "it was decided, and the decision was trimmed from the log before it was read",
            stored=True,
        )

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
                    _check_same(command, event)
                    return Decision(event, record.offset, None)  # type: ignore[arg-type]
        return repeated


class RunHandle:
    """One run, as a caller sees it. Handles are cheap; any number of them share one reader."""

    def __init__(self, client: Client, run_id: str, life: RunLife | None) -> None:
        self._client, self.run_id = client, run_id
        self._life = life
        self.existed: bool | None = None
        """Of a start: whether the run was there already. None: nobody has asked for a start."""

    def __repr__(self) -> str:
        """The handle with its run id."""
        return f"RunHandle({self.run_id!r})"

    async def result(self, *, as_type: object = None, within: timedelta | None = None) -> object:
        """Wait for the run's end and return what its function returned.

        `as_type` reads it into that type; without it the value comes back of its own kind, for
        which its class must be imported here. Raises RunFailedError, RunCancelledError, RunUnknown
        (no such run), ValueUnreadable, ResultNotThere after `within` (None waits for ever).
        """
        if within is not None and not await _done_within(self.ended(), within):
            raise ResultNotThere(self.run_id, within // timedelta(milliseconds=1))
        ended = await self.ended()
        raise_unless_completed(self.run_id, ended, self._cancel)
        value = ended.result
        if value is None:
            return None
        return decode_value(value) if as_type is None else decode_value_as(value, as_type)

    async def ended(self) -> Ended:
        """Wait for the run's end and return how it ended, its value still encoded."""
        client = self._client
        partition = client.partition_of(self.run_id)
        tail = client._tail(partition)
        if self._life is None:
            self._life = tail.life(self.run_id)
        life = self._life
        if life.ended is not None and life.ended.status == "failed":
            life.known = False  # a failed run may have been resumed since: look again
        while True:
            await tail.begin()  # anew where the log was trimmed while we waited
            if not life.known:
                state, fold = await client._reader(partition).of_run(self.run_id)
                if state is None:
                    raise RunUnknown(self.run_id, client.log.facts.namespace)
                if life.offset < fold.position.offset_next:
                    life.ended, life.cancel = state.ended, state.cancel
                    life.offset = fold.position.offset_next - 1
                life.known = True
            if life.problem is not None:
                raise life.problem
            if life.ended is not None:
                return life.ended
            await tail.end_of(life)

    @property
    def _cancel(self) -> Cancel | None:
        return None if self._life is None else self._life.cancel

    async def boundary(self) -> Boundary:
        """The run's boundary at the log's end. Raises RunUnknown."""
        return await self._client.boundary(self.run_id)

    async def state(self) -> RunState:
        """The run's folded state at the log's end. Raises RunUnknown."""
        return await self._client.state(self.run_id)

    async def wait(
        self,
        until: Callable[[Boundary], bool] | None = None,
        *,
        within: timedelta | None = None,
    ) -> Boundary:
        """Wait until the boundary satisfies `until` and return it.

        By default: until the run has ended, or waits for a person or for other code.
        Raises RunUnknown, and ResultNotThere after `within`.
        """
        done = stands_still if until is None else until
        loop = asyncio.get_running_loop()
        deadline = None if within is None else loop.time() + within.total_seconds()
        while True:
            seen = await self._client.boundary_at(self.run_id)
            if done(seen.boundary):
                return seen.boundary
            left = None if deadline is None else timedelta(seconds=max(0.0, deadline - loop.time()))
            if not await self.changed(seen.offset, within=left):
                assert within is not None
                raise ResultNotThere(self.run_id, within // timedelta(milliseconds=1))

    async def changed(self, offset: int, *, within: timedelta | None = None) -> bool:
        """Wait for a record of the run, or a claim, at or after `offset`; False if time is over."""
        tail = self._client._tail(self._client.partition_of(self.run_id))
        return await _done_within(tail.touched(self.run_id, offset), within)

    async def cancel(
        self, *, why: str = "", by: str | None = None, within: timedelta | None = None
    ) -> None:
        """Ask for the run's end; see `Client.cancel`."""
        await self._client.cancel(self.run_id, why=why, by=by, within=within)

    def history(self) -> AsyncIterator[HistoryRecord]:
        """The run's records; see `Client.history`."""
        return self._client.history(self.run_id)


async def _done_within(work: Awaitable[object], within: timedelta | None) -> bool:
    """Whether `work` ended in time. Never wait_for, which may swallow a cancellation."""
    waiting = asyncio.ensure_future(work)
    try:
        timeout = None if within is None else within.total_seconds()
        await asyncio.wait({waiting}, timeout=timeout)
    finally:
        if not waiting.done():
            waiting.cancel()
    if not waiting.done():
        await asyncio.wait({waiting})
    if waiting.cancelled():
        return False
    waiting.result()
    return True


def stands_still(seen: Boundary) -> bool:
    """Whether the run has ended, or nothing but a person or other code moves it."""
    return seen.status in ("completed", "failed", "cancelled") or seen.needs in ("person", "code")


def raise_unless_completed(run_id: str, ended: Ended, cancel: Cancel | None) -> None:
    """Raise RunFailedError or RunCancelledError for a run that did not complete."""
    if ended.status == "failed":
        error = ended.error
        raise RunFailedError(
            run_id, error.type if error else "unknown", error.message if error else ""
        )
    if ended.status == "cancelled":
        by, why = (cancel.by, cancel.why) if cancel is not None else ("", "")
        raise RunCancelledError(run_id, by, why)


def with_namespace(url: str, namespace: str | None) -> str:
    """The URL with a namespace that it does not name itself. Raises LogUrlInvalid for two names.

    >>> with_namespace("sqlite:///a.db", "refunds")
    'sqlite:///a.db?ns=refunds'
    """
    if namespace is None:
        return url
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        return url  # the URL itself names it; the client compares after opening
    named = parse_qs(parts.query).get("ns")
    if named is None:
        return f"{url}{'&' if parts.query else '?'}ns={namespace}"
    if named != [namespace]:
        raise LogUrlInvalid(url, f"it names another namespace than {namespace}")
    return url


DECIDED_BY = {
    StartRun: RunStarted,
    ResolveStep: StepResolved,
    CancelRun: RunCancelRequested,
    RetryRun: RunResumed,
    RecordFinding: FindingRecorded,
}
"""The event that a command becomes where it is accepted."""


def _check_same(command: Command, event: object) -> None:
    """Raise CommandIdReused where the first decision under an id was about another command."""
    kind = type(command).__name__
    if isinstance(event, CommandRejected):
        same, before = event.command_type == kind, event.command_type
    else:
        same, before = isinstance(event, DECIDED_BY[type(command)]), type(event).__name__
        if same and isinstance(command, ResolveStep) and isinstance(event, StepResolved):
            word = "done" if command.happened else "absent"
            same = (event.slot, event.verdict) == (command.slot, word)
            before = f"{event.slot}, {event.verdict}"
        if same and isinstance(command, RecordFinding) and isinstance(event, FindingRecorded):
            said = (command.finding_id, command.status)
            same, before = (event.finding_id, event.status) == said, f"finding {event.finding_id}"
        if same and isinstance(command, StartRun) and isinstance(event, RunStarted):
            same = command.run == event.run and canon_of(command.input) == canon_of(event.input)
            before = f"a start of {event.run} with other input"
    if not same:
        raise CommandIdReused(command.run_id, kind, command.command_id, before)


@contextmanager
def _sent(command: Command) -> Iterator[None]:
    """The log has the command: what keeps us from reading its decision does not say that it failed.

    Raises CommandUnknown for it.
    """
    try:
        yield
    except (ClientClosed, CommandIdReused, CommandUnknown):
        raise
    except RefoldError as error:
        kind = type(command).__name__
        raise CommandUnknown(
            command.run_id, kind, command.command_id, error.message, stored=True
        ) from error


def _is_granted(state: RunState, command: Command) -> bool:
    """Whether the run is as the command wants it, whoever asked for it first."""
    if isinstance(command, StartRun):
        return state.run == command.run and canon_of(state.input) == canon_of(command.input)
    return isinstance(command, CancelRun) and state.cancel is not None


def _new_id(command_id: str | None) -> str:
    return str(uuid.uuid4()) if command_id is None else command_id


__all__ = [
    "BoundaryAt",
    "Client",
    "RunHandle",
    "RunSummary",
    "raise_unless_completed",
    "stands_still",
    "with_namespace",
]
