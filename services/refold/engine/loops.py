"""`ctx.each`: batches of items, a cursor and a carried state; nothing else survives a batch."""

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from refold.app.context import Batch
from refold.engine.branches import Branch
from refold.engine.scopes import Scope
from refold_schemas.errors.run import LoopMisused
from refold_schemas.values import Value, decode_value, encode_value

if TYPE_CHECKING:
    from refold.engine.run_calls import RunCalls


class EachLoop:
    """One `async for batch, state in ctx.each(…)`. `state` is what was committed last.

    A cursor is asked when the loop goes on, not in `commit`: a body that leaves by break, return
    or an exception keeps its batch open, so that replay runs that body again from its record.
    """

    __slots__ = (
        "_batch",
        "_births",
        "_branch",
        "_calls",
        "_committed",
        "_cursor",
        "_items",
        "_outer",
        "every",
        "slot",
        "state",
    )

    def __init__(self, calls: "RunCalls", items: Sequence[Any], every: int, state: Any) -> None:
        """Nothing begins before the first turn of the loop."""
        self._calls, self._items, self.every, self.state = calls, items, every, state
        self._cursor = 0
        self._committed: Value | None = None
        self._batch: Batch[Any, Any] | None = None
        self._branch: Branch | None = None
        self._outer: Scope | None = None
        self._births = 0
        self.slot = ""

    def __aiter__(self) -> "EachLoop":
        """Take the loop's place in its scope."""
        if self._branch is not None:
            raise LoopMisused(
                self.slot, "the loop was begun a second time", "call ctx.each again for a new loop"
            )
        branch = self._calls.running("ctx.each")
        self._branch, self._outer = branch, branch.scope
        self.slot = branch.scope.slot("each")
        return self

    def __anext__(self) -> Coroutine[Any, Any, tuple[Batch[Any, Any], Any]]:
        """The next batch and the carried state. Raises LoopMisused without a commit."""
        return self._next()

    async def _next(self) -> tuple[Batch[Any, Any], Any]:
        branch = self._calls.running("ctx.each")
        outer = self._outer
        if branch is not self._branch or outer is None:
            raise LoopMisused(
                self.slot or "ctx.each",
                "the loop was carried on by another branch than the one that began it",
                "begin and end a loop in the same coroutine",
            )
        if self._batch is None:
            await self._resume_at_record(branch)
        else:
            self._end_batch(branch)
        start = self._cursor
        total = len(self._items)
        branch.scope = outer
        if start >= total:
            raise StopAsyncIteration
        stop = min(start + self.every, total)
        branch.scope = Scope(self._span(start, stop))
        self._batch = Batch(self._items[start:stop], start, self._commit)
        return self._batch, self.state

    async def _resume_at_record(self, branch: Branch) -> None:
        kept = await self._calls.enter_loop(branch, self.slot, len(self._items))
        if kept is not None:
            self._cursor, self.state = kept

    def _end_batch(self, branch: Branch) -> None:
        stop = min(self._cursor + self.every, len(self._items))
        if self._committed is None:
            raise LoopMisused(
                self._span(self._cursor, stop),
                "the body ended without batch.commit(state)",
                "make batch.commit(state) the last line of the body, on every way through it",
            )
        if self._outer is None or self._outer.births != self._births:
            raise LoopMisused(
                self._span(self._cursor, stop),
                "the body went on after batch.commit(state)",
                "make batch.commit(state) the last line of the body",
            )
        value, self._committed = self._committed, None
        self._cursor = stop
        self.state = decode_value(value)
        self._calls.ask_cursor(branch, self.slot, stop, len(self._items), value)

    def _commit(self, batch: Batch[Any, Any], state: object) -> None:
        branch = self._calls.running("batch.commit")
        if batch is not self._batch or self._committed is not None or branch is not self._branch:
            raise LoopMisused(
                self.slot,
                "a batch was committed twice or by another branch",
                "commit each batch once, in the body of its own loop",
            )
        value = encode_value(state, path="state")
        self._calls.check_size(f"loop {self.slot}: its state", value)
        self._committed = value
        # What follows is no part of the batch, or it would be passed over on replay.
        branch.scope = self._outer or branch.scope
        self._births = branch.scope.births

    def _span(self, start: int, stop: int) -> str:
        return f"{self.slot}[{start}..{stop - 1}]"
