"""Lets a crowd of callers through a few at a time, so that what the first have made is under way.

Of five hundred commands that are published at once, all would be encoded in one turn of the loop
before the first is sent, and the worker would stand idle for as long as that takes.
"""

import asyncio
from collections import deque


class Turns:
    """So many callers in one turn of the loop; the others in the next ones, in their order."""

    def __init__(self, at_once: int) -> None:
        self._at_once = self._left = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._armed = False

    async def take(self) -> None:
        """Return when it is the caller's turn: at once, unless there is a crowd."""
        loop = asyncio.get_running_loop()
        if not self._armed:
            self._armed = True
            loop.call_soon(self._next)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        self._left = self._at_once
        while self._waiting and self._left > 0:
            turn = self._waiting.popleft()
            if not turn.done():  # a caller that gave up takes nobody's turn
                turn.set_result(None)
                self._left -= 1
        self._armed = self._left < self._at_once
        if self._armed:
            asyncio.get_running_loop().call_soon(self._next)
