"""A TCP proxy between workers and one broker that can cut a direction, both, or be slow.

Cut, it keeps its connections and passes nothing on, as a network does that drops packets; what was
cut arrives when it is mended, if the connection still stands.
"""

import asyncio
import contextlib
from dataclasses import dataclass

PIECE = 64 * 1024


@dataclass
class Line:
    """The state of the network. `slow_s` delays each piece in each direction."""

    to_broker: bool = True
    from_broker: bool = True
    slow_s: float = 0.0


class Proxy:
    """Listens on `port` and passes on to `target`, both on 127.0.0.1."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self.target = port, target
        self.line = Line()
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def set(self, *, to_broker: bool = True, from_broker: bool = True, slow_s: float = 0) -> None:
        """Change the network from now on."""
        self.line = Line(to_broker, from_broker, slow_s)
        self._changed.set()
        self._changed = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            other_reader, other = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        pipes = [
            asyncio.create_task(self._pass_on(reader, other, to_broker=True)),
            asyncio.create_task(self._pass_on(other_reader, writer, to_broker=False)),
        ]
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
            for one in (writer, other):
                one.close()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_broker: bool
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                await self._open(to_broker=to_broker)
                if self.line.slow_s:
                    await asyncio.sleep(self.line.slow_s)
                writer.write(piece)
                await writer.drain()
            await self._open(to_broker=to_broker)  # an end is passed on as late as anything else

    async def _open(self, *, to_broker: bool) -> None:
        while not (self.line.to_broker if to_broker else self.line.from_broker):
            await self._changed.wait()
