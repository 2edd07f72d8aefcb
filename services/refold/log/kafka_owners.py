"""The owners of this process in the group, on a thread of their own.

Run code that blocks the engine's loop must not lose the partitions: it is warned about (R021), and
the log's order decides in any case. So heartbeats do not wait for that loop.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from aiokafka import errors
from aiokafka.client import AIOKafkaClient

from refold.log.kafka_access import connect
from refold.log.kafka_group import Coordinator, Member

LEAVE_S = 1.0
"""How long the end of the thread waits for the group to let an owner go."""
JOIN_S = 0.25
"""How long the first question of an owner waits for the group's first answer."""

Answer = TypeVar("Answer")


class Owners:
    """Members of the group `group`, each made at its first `suggest`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        group: str,
        make_member: Callable[[Coordinator, str], Member],
    ) -> None:
        self._settings, self._group, self._make_member = dict(settings), group, make_member
        self._members: dict[str, Member] = {}
        self._client: AIOKafkaClient | None = None
        self._coordinator: Coordinator | None = None
        self._connecting: asyncio.Lock | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="refold-log-owners", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._connecting = asyncio.Lock()
        self._loop.run_forever()
        self._loop.close()

    async def suggest(self, owner: str) -> tuple[frozenset[int], BaseException | None]:
        """What the owner has now, and why the group cannot be asked, if so. Raises KafkaError."""
        return await self._there(self._suggest(owner))

    async def give_up(self, owner: str) -> None:
        """Leave the group. Raises KafkaError: then the session expires."""
        await self._there(self._give_up(owner))

    async def commit(self, owner: str, offsets: Mapping[int, int]) -> None:
        """Tell the group how far the owner has read. Raises KafkaError."""
        await self._there(self._commit(owner, offsets))

    async def close(self, *, leave: bool) -> None:
        """End the thread; without `leave` the group is told nothing."""
        await self._there(self._end(leave))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    async def _there(self, asking: Coroutine[Any, Any, Answer]) -> Answer:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asking, self._loop))

    # On the thread

    async def _suggest(self, owner: str) -> tuple[frozenset[int], BaseException | None]:
        member = self._members.get(owner)
        if member is None:
            coordinator = await self._connected()
            member = self._members.get(owner)
            if member is None:
                member = self._members[owner] = self._make_member(coordinator, owner)
            await asyncio.wait([member.joined], timeout=JOIN_S)
        return member.partitions, member.failure

    async def _connected(self) -> Coordinator:
        assert self._connecting is not None, "the thread has made it before it runs its loop"
        async with self._connecting:
            if self._coordinator is None:
                self._client = await connect(self._settings)
                self._coordinator = Coordinator(self._client, self._group)
            return self._coordinator

    async def _commit(self, owner: str, offsets: Mapping[int, int]) -> None:
        member = self._members.get(owner)
        if member is not None:
            await member.commit(offsets)

    async def _give_up(self, owner: str) -> None:
        member = self._members.pop(owner, None)
        if member is not None:
            await member.leave()

    async def _end(self, leave: bool) -> None:
        for member in self._members.values():
            if leave:
                # Else its session expires.
                with contextlib.suppress(errors.KafkaError, OSError, TimeoutError):
                    async with asyncio.timeout(LEAVE_S):
                        await member.leave()
            await member.stop()
        self._members.clear()
        if self._client is not None:
            await self._client.close()
