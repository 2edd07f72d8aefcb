"""The consumer group that suggests owners: static members, sticky shares, no consumer.

What aiokafka's own group consumer does beside (fetching, committing, leaving the group after five
minutes without a poll, revoking everything at each rebalance) is what an owner must not have: here
a member serves on until it knows its new share.
Source: Kafka's group protocol (JoinGroup, SyncGroup, Heartbeat), KIP-345 for static membership.
"""

import asyncio
import json
from collections.abc import Collection, Mapping

from aiokafka import errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.coordinator.protocol import ConsumerProtocol
from aiokafka.protocol.admin import DescribeGroupsRequest
from aiokafka.protocol.commit import OffsetCommitRequest
from aiokafka.protocol.group import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)

from refold.log.leases import shares_of

SESSION_MS = 6_000
"""How long a member that is not heard of keeps its partitions."""
REBALANCE_MS = 10_000
"""How long the group waits for a member to join again before it goes on without it."""
HAND_OVER_MS = 1_000
"""How long a partition that moves from a living member is left to it, so that it can release."""
BEAT_MS_MAX = 1_000
"""How often a member is heard of, and hears that the shares are made anew."""
RETRY_S = 0.2
OUTAGE_S = 5.0
"""A coordinator that moves, or is made with the cluster's first group, takes a few seconds."""
PROTOCOL = "refold-sticky"
PROTOCOL_TYPE = "consumer"
_NEW_MEMBER = ""


class Coordinator:
    """Asks the broker that coordinates a group, whichever it is now."""

    def __init__(self, client: AIOKafkaClient, group: str) -> None:
        self.client, self.group = client, group
        self._node: int | None = None

    async def ask(self, request: object, connection: object) -> object:
        """The answer. Raises aiokafka's errors; after one the coordinator is looked up again."""
        try:
            if self._node is None:
                self._node = await self.client.coordinator_lookup(
                    CoordinationType.GROUP, self.group
                )
            return await self.client.send(self._node, request, group=connection)
        except BaseException as error:
            if isinstance(error, errors.KafkaError) and error.invalid_metadata:
                await self.client.force_metadata_update()
            self.forget()
            raise

    def forget(self) -> None:
        """The coordinator may be another one."""
        self._node = None

    async def is_held(self, topic: str, partition: int) -> bool | None:
        """Whether a member of the group holds the partition; None while shares are made anew."""
        answer = await self.ask(DescribeGroupsRequest([self.group]), ConnectionGroup.COORDINATION)
        [(code, _, state, _, _, members, *_)] = answer.groups  # type: ignore[attr-defined]
        error = errors.for_code(code)
        if error is errors.GroupIdNotFound or state in ("Dead", "Empty"):
            return False
        if error is not errors.NoError or state != "Stable":
            self.forget()
            return None
        return any(partition in _partitions(member[4], topic) for member in members)


class Member:
    """One owner as a member of the group: a task that joins, beats, and joins again."""

    def __init__(
        self,
        coordinator: Coordinator,
        owner: str,
        topic: str,
        partition_count: int,
        *,
        session_ms: int = SESSION_MS,
        hand_over_ms: int = HAND_OVER_MS,
    ) -> None:
        self.owner = owner
        self.failure: BaseException | None = None
        """Why the group cannot be asked, once that has lasted for `OUTAGE_S`."""
        self._coordinator, self._topic = coordinator, topic
        self._partition_count = partition_count
        self._session_ms, self._hand_over_ms = session_ms, hand_over_ms
        self._member_id = _NEW_MEMBER
        self._generation = -1
        self._held: frozenset[int] = frozenset()
        self._coming: dict[int, float] = {}
        self._heard = asyncio.get_running_loop().time()
        self._joining = False
        # Heartbeats must not wait behind a JoinGroup, which the broker answers late.
        self._connection = (owner, "beats")
        self.joined: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the group has answered, or could not be asked, for the first time."""
        self._task = asyncio.create_task(self._run())

    @property
    def partitions(self) -> frozenset[int]:
        """What is suggested now. A rebalance alone changes nothing; a lost session takes all."""
        if not self._joining:  # the group takes its time then, and knows that we are there
            self._expire()
        now = asyncio.get_running_loop().time()
        for partition, from_time in list(self._coming.items()):
            if now >= from_time:
                self._held |= {partition}
                del self._coming[partition]
        return self._held

    async def leave(self) -> None:
        """Leave the group at once, so that another member gets the partitions."""
        await self.stop()
        self._held = frozenset()
        self._coming.clear()
        if self._member_id != _NEW_MEMBER:
            request = LeaveGroupRequest(self._coordinator.group, self._member_id)
            await self._coordinator.ask(request, self._connection)

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Tell the group how far its partitions were read: for tools that show lag."""
        places = [(partition, offset, "") for partition, offset in offsets.items()]
        request = OffsetCommitRequest(
            self._coordinator.group,
            self._generation,
            self._member_id,
            OffsetCommitRequest.DEFAULT_RETENTION_TIME,
            [(self._topic, places)],
        )
        answer = await self._coordinator.ask(request, self._connection)
        for _, partitions in answer.topics:  # type: ignore[attr-defined]
            for _, code in partitions:
                _check(code)

    async def stop(self) -> None:
        """End the task; the group is told nothing and waits for the session to expire."""
        self._task.cancel()
        await asyncio.wait({self._task})  # not awaited itself: our own cancellation is kept
        if not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        while True:
            try:
                self._joining = True
                await self._join()
                self._joining, self.failure = False, None
                self._first_answer()
                await self._beat()
            except Exception as error:
                # Whatever it was: a task that ended here would leave its owner without partitions,
                # and without a word why, for the life of its process.
                self._joining = False
                if asyncio.get_running_loop().time() - self._heard > OUTAGE_S:
                    self.failure = error
                if isinstance(error, errors.UnknownMemberIdError):
                    self._member_id = _NEW_MEMBER
                elif isinstance(error, errors.KafkaError) and not error.retriable:
                    self._coordinator.forget()
                self._expire()
                self._first_answer()
                await asyncio.sleep(RETRY_S)

    def _first_answer(self) -> None:
        if not self.joined.done():
            self.joined.set_result(None)

    def _expire(self) -> None:
        """The group has given our partitions away: it has not heard of us for too long.

        Whoever was frozen notices when it is asked, not once the group has told it so: else it
        claims against the new owner meanwhile. Until it has joined again nobody can say more.
        """
        silent_s = asyncio.get_running_loop().time() - self._heard
        if silent_s > self._session_ms / 1000:
            self._held = frozenset()
            self._coming.clear()
            if self.failure is None:
                self.failure = TimeoutError(f"not a word of it for {silent_s:.1f} s")

    async def _join(self) -> None:
        loop = asyncio.get_running_loop()
        coordinator = self._coordinator
        said = json.dumps(sorted(self.partitions)).encode()
        metadata = ConsumerProtocol.METADATA(0, [self._topic], said).encode()
        join = JoinGroupRequest(
            coordinator.group,
            self._session_ms,
            REBALANCE_MS,
            self._member_id,
            self.owner,
            PROTOCOL_TYPE,
            [(PROTOCOL, metadata)],
        )
        joined = await coordinator.ask(join, self._connection)
        _check(joined.error_code)  # type: ignore[attr-defined]
        self._heard = loop.time()
        self._member_id = joined.member_id  # type: ignore[attr-defined]
        self._generation = joined.generation_id  # type: ignore[attr-defined]
        shares: list[tuple[str, bytes]] = []
        if joined.leader_id == self._member_id:  # type: ignore[attr-defined]
            members = {member[0]: member[-1] for member in joined.members}  # type: ignore[attr-defined]
            shares = self._assign(members)
        sync = SyncGroupRequest(
            coordinator.group, self._generation, self._member_id, self.owner, shares
        )
        synced = await coordinator.ask(sync, self._connection)
        _check(synced.error_code)  # type: ignore[attr-defined]
        self._heard = loop.time()
        share = synced.member_assignment  # type: ignore[attr-defined]
        self._take(_partitions(share, self._topic), _handed_over(share))

    def _assign(self, members: dict[str, bytes]) -> list[tuple[str, bytes]]:
        """The leader's work: the share of each member, and which of it another one holds yet."""
        held = {name: _held(metadata) for name, metadata in members.items()}
        shares: list[tuple[str, bytes]] = []
        for name, share in shares_of(held, self._partition_count).items():
            others = {p for other, partitions in held.items() if other != name for p in partitions}
            moved = json.dumps(sorted(share & others)).encode()
            assignment = ConsumerProtocol.ASSIGNMENT(0, [(self._topic, sorted(share))], moved)
            shares.append((name, assignment.encode()))
        return shares

    def _take(self, share: Collection[int], handed_over: Collection[int]) -> None:
        now = asyncio.get_running_loop().time()
        held = self.partitions
        late = {p: now + self._hand_over_ms / 1000 for p in set(share) - held}
        self._held = held & frozenset(share)
        self._coming = {p: late[p] if p in handed_over else now for p in late}

    async def _beat(self) -> None:
        """Heartbeats until the group makes its shares anew. Raises what the group says."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(self._session_ms / 5, BEAT_MS_MAX) / 1000)
            beat = HeartbeatRequest(self._coordinator.group, self._generation, self._member_id)
            try:
                answer = await self._coordinator.ask(beat, self._connection)
                _check(answer.error_code)  # type: ignore[attr-defined]
            except errors.RebalanceInProgressError:
                self._heard = loop.time()
                return
            self._heard = loop.time()


def _check(code: int) -> None:
    error = errors.for_code(code)
    if error is not errors.NoError:
        raise error()


def _held(metadata: bytes) -> list[int]:
    try:
        said = json.loads(ConsumerProtocol.METADATA.decode(metadata).user_data or b"[]")
    except (ValueError, RecursionError):
        return []  # another program has joined the group: it holds nothing that we know of
    return [p for p in said if isinstance(p, int)] if isinstance(said, list) else []


def _partitions(assignment: bytes, topic: str) -> frozenset[int]:
    if not assignment:
        return frozenset()
    places = ConsumerProtocol.ASSIGNMENT.decode(assignment).partitions()
    return frozenset(place.partition for place in places if place.topic == topic)


def _handed_over(assignment: bytes) -> frozenset[int]:
    if not assignment:
        return frozenset()
    return frozenset(json.loads(ConsumerProtocol.ASSIGNMENT.decode(assignment).user_data or b"[]"))
