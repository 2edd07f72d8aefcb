"""The handle on one run: waits for its end, or until its boundary is as one wants it."""

from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from refold.client.history import HistoryRecord
from refold.client.tail import RunLife
from refold.client.waiting import TimeOver, Within, done_within, result_within
from refold_projections.fold import Boundary, Cancel, Ended, RunState
from refold_schemas.errors.cli import (
    ResultNotThere,
    RunCancelledError,
    RunFailedError,
    RunUnknown,
)
from refold_schemas.values import decode_value, decode_value_as

if TYPE_CHECKING:
    from refold.client.client import Client


LOOK_MIN_S = 1.0
"""How long one look at the run may take, however short `within` is: 0 means look once."""


class RunHandle:
    """One run, as a caller sees it. Handles are cheap; any number of them share one reader."""

    def __init__(self, client: "Client", run_id: str, life: RunLife | None) -> None:
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
        try:
            ended = await result_within(self.ended(), within)
        except TimeOver:
            raise ResultNotThere(self.run_id, Within(within).given_ms) from None
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
        Raises RunUnknown, and ResultNotThere after `within`, the reading of the log included; each
        look at the run has LOOK_MIN_S.
        """
        done = stands_still if until is None else until
        time = Within(within)
        while True:
            looking = self._client.boundary_at(self.run_id)
            try:
                seen = await result_within(looking, time.left(LOOK_MIN_S))
            except TimeOver:
                raise ResultNotThere(self.run_id, time.given_ms) from None
            if done(seen.boundary):
                return seen.boundary
            if not await self.changed(seen.offset, within=time.left()):
                raise ResultNotThere(self.run_id, time.given_ms)

    async def changed(self, offset: int, *, within: timedelta | None = None) -> bool:
        """Wait for a record of the run, or a claim, at or after `offset`; False if time is over."""
        tail = self._client._tail(self._client.partition_of(self.run_id))
        return await done_within(tail.touched(self.run_id, offset), within)

    async def cancel(
        self, *, why: str = "", by: str | None = None, within: timedelta | None = None
    ) -> None:
        """Ask for the run's end; see `Client.cancel`."""
        await self._client.cancel(self.run_id, why=why, by=by, within=within)

    def history(self) -> AsyncIterator[HistoryRecord]:
        """The run's records; see `Client.history`."""
        return self._client.history(self.run_id)


def stands_still(seen: Boundary) -> bool:
    """Whether the run has ended, or nothing but a person or other code moves it."""
    return seen.status in ("completed", "failed", "cancelled") or seen.needs in ("person", "code")


def raise_unless_completed(run_id: str, ended: Ended, cancel: Cancel | None) -> None:
    """Raise RunFailedError or RunCancelledError for a run that did not complete."""
    error = end_error(run_id, ended, cancel)
    if error is not None:
        raise error


def end_error(
    run_id: str, ended: Ended | None, cancel: Cancel | None
) -> RunFailedError | RunCancelledError | None:
    """The error of a run that has ended and did not complete."""
    if ended is not None and ended.status == "failed":
        fault = ended.error
        return RunFailedError(
            run_id, fault.type if fault else "unknown", fault.message if fault else ""
        )
    if ended is not None and ended.status == "cancelled":
        by, why = (cancel.by, cancel.why) if cancel is not None else ("", "")
        return RunCancelledError(run_id, by, why)
    return None
