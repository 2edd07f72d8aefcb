"""The processes that a demo starts: each is ended by its pid, whatever happens to the demo."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from refold_tools.processes import ends_with_parent

STOP_WITHIN_S = 3.0
LINES_KEPT = 20


class Child:
    """One process in a session of its own, so that Ctrl-C reaches the demo only."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name, self.process, self.pid = name, process, process.pid
        self.said: deque[str] = deque(maxlen=LINES_KEPT)
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        assert process.stdout is not None
        assert process.stderr is not None
        self._readers = [
            asyncio.create_task(self._read(process.stdout, self._lines)),
            asyncio.create_task(self._read(process.stderr, None)),
        ]

    @classmethod
    async def start(
        cls, name: str, command: Sequence[str], env: Mapping[str, str], folder: Path
    ) -> "Child":
        """Start `command` in `folder`; its output is read line by line."""
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(env),
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=ends_with_parent(signal.SIGKILL),
        )
        return cls(name, process)

    @property
    def ended(self) -> int | None:
        """Its exit code (negative: the signal that ended it), None while it lives."""
        return self.process.returncode

    def last_words(self) -> str:
        """The last line it wrote, for an error message."""
        return self.said[-1] if self.said else "it said nothing"

    async def line(self) -> str | None:
        """The next line of its output; None at its end."""
        return await self._lines.get()

    async def kill(self) -> None:
        """SIGKILL: nothing of it runs any more, no handler, no farewell."""
        self._signal(signal.SIGKILL)
        await self._gone()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if it takes too long."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self._gone()
        except TimeoutError:
            await self.kill()

    async def _gone(self) -> None:
        await self.process.wait()
        await asyncio.wait(self._readers)

    def _signal(self, number: int) -> None:
        if self.process.returncode is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:  # it ended meanwhile: that is what was wanted
                return

    async def _read(
        self, stream: asyncio.StreamReader, lines: "asyncio.Queue[str | None] | None"
    ) -> None:
        while raw := await stream.readline():
            text = raw.decode(errors="replace").rstrip()
            if text:
                self.said.append(text)
                if lines is not None:
                    lines.put_nowait(text)
        if lines is not None:
            lines.put_nowait(None)
