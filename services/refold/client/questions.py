"""What a client can be asked of runs and of their partitions' owners: it reads the log alone."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass

from refold.client.claims import ClaimSeen, claim_of
from refold.client.following import PartitionFeed
from refold.client.history import HistoryRecord, read_elsewhere, read_history
from refold.client.orders import OrderRecord, read_orders
from refold.client.reading import Meter, metered
from refold.client.states import StateReader, claim_as_seen
from refold.log import Log, Topic, partition_for
from refold_projections.fold import Boundary, ParkedCommand, PartitionFold, RunState, boundary
from refold_schemas.codec import Codec
from refold_schemas.errors.cli import ClientClosed, RunUnknown

RUNS_AT_ONCE = 500
FOLLOWED_MAX = 256
FOLLOWED_BYTES_MAX = 8 << 20
"""Records, and their bytes, that wait for one who follows a run."""


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


class Questions:
    """The questions of a `Client`. They need no worker and change nothing."""

    def __init__(self, log: Log, codec: Codec, meter: Meter) -> None:
        self._log, self._codec, self._meter = log, codec, meter
        self._states: dict[int, StateReader] = {}
        self._feeds: dict[int, PartitionFeed] = {}
        self._is_open = False
        self._routed = 0

    @property
    def log(self) -> Log:
        """The log that is read and written."""
        return self._log

    @property
    def codec(self) -> Codec:
        """The codec of its records."""
        return self._codec

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
        # All of one position: while the rest is asked, another question may take the fold further.
        position, facts = fold.position, fold.facts
        by_this_claim = fold.marks[run_id].claim_id == fold.claim_id
        parked = tuple(one for one in fold.parked.values() if one.key == run_id.encode())
        owner_lives = await self.owner_lives(partition)
        claim_id = claim_as_seen(position.claim_id, facts, owner_lives=owner_lives)
        _, command_end = await self._log.bounds(Topic.COMMANDS, partition)
        return BoundaryAt(
            boundary(state, claim_id),
            state,
            partition,
            position.offset_next,
            facts.owner,
            owner_lives,
            facts.released,
            by_this_claim,
            position.command_next,
            max(0, command_end - position.command_next),
            parked,
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
            lives = await self.owner_lives(partition)
            claim_id = claim_as_seen(fold.claim_id, fold.facts, owner_lives=lives)
            # Of those that there are now: meanwhile another question may take the fold further.
            for number, run_id in enumerate(tuple(fold.runs)):
                if number % RUNS_AT_ONCE == RUNS_AT_ONCE - 1:
                    await asyncio.sleep(0)  # others of this loop, and who wants to cancel it
                state = fold.runs.get(run_id)
                if state is None or (run is not None and state.run != run):
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
        them, wait to be taken, and ClientClosed.
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
