"""A way to Postgres that breaks at the commit of a swap: before it, behind it, or for good."""

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit

SWAP, COMMIT = b"set live = $1", b"COMMIT;"


class Breaking:
    """Passes on to `url`; the connection on which a swap is committed is cut once.

    `passed_on`: the database gets the commit, and only its answer is lost. `for_good`: nobody
    gets through any more then.
    """

    def __init__(self, url: str, *, passed_on: bool, for_good: bool) -> None:
        self._target = urlsplit(url)
        self._passed_on, self._for_good = passed_on, for_good
        self.cut = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> str:
        """The URL to connect to."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        user, target = self._target.username, self._target
        password = f":{target.password}" if target.password else ""
        return f"{target.scheme}://{user}{password}@127.0.0.1:{port}{target.path}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            if self.cut and self._for_good:
                return
            there = await asyncio.open_connection(self._target.hostname, self._target.port)
            try:
                await self._between(reader, writer, *there)
            finally:
                there[1].close()
        finally:
            writer.close()

    async def _between(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        to_there: asyncio.StreamWriter,
    ) -> None:
        back = asyncio.create_task(_pipe(there, writer))
        swaps = False
        try:
            while data := await reader.read(1 << 16):
                swaps = swaps or SWAP in data
                if swaps and COMMIT in data and not self.cut:
                    self.cut += 1
                    back.cancel()
                    await asyncio.wait({back})
                    if self._passed_on:
                        to_there.write(data)
                        await there.read(1)  # it is committed: this is the answer
                    return
                to_there.write(data)
                await to_there.drain()
        finally:
            back.cancel()
            await asyncio.wait({back})


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.close()
