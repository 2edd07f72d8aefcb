"""The worker of `refold dev`: a process that is ended gracefully and started anew on a change."""

import signal
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence

from refold_tools.processes import ends_with_parent

STOP_WITHIN_S = 30.0
"""How long a worker has to drain and release before it is killed; its own limits add up to less."""
LOOK_S = 0.05
AGAIN_AFTER_S, AGAIN_AFTER_MAX_S = 0.5, 30.0
"""How long after it ended by itself a worker is started again: twice as long each time."""
SETTLED_S = 60.0
"""A worker that has lived so long has started well: the next pause is the first one again."""
REFUSED = frozenset({2, 3})
"""Exit codes of a worker that has said why it does not serve: the code or the log is to blame."""


class WorkerChild:
    """Starts the worker and ends it. `tell(text)` says what happens to it."""

    def __init__(self, command: Sequence[str], tell: Callable[[str], None]) -> None:
        self.command, self.tell = list(command), tell
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._pause_s = AGAIN_AFTER_S
        self._again_at: float | None = None

    @property
    def lives(self) -> bool:
        """Whether one was started that has not been seen to end."""
        return self._process is not None

    def start(self) -> None:
        """Start it. Call this from the main thread: with that one's end the kernel ends it, too."""
        self._again_at = None
        self._began = time.monotonic()
        # A session of its own: Ctrl-C comes to us, and by us to it once. Twice ends it at once.
        with warnings.catch_warnings():
            # Python 3.12 and newer warn of a fork beside threads; ours in the child take no lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=ends_with_parent(signal.SIGTERM),
            )

    def look(self) -> None:
        """Say once if it has ended by itself; start it again once its pause is over.

        Call this from the main thread, as `start`.
        """
        if self._again_at is not None and time.monotonic() >= self._again_at:
            self.start()
        if self._process is None or (code := self._process.poll()) is None:
            return
        self._process = None
        if code in REFUSED:
            self.tell(
                "the worker does not start with this code, and the one before it has stopped. "
                "Runs wait in the log; it is started again on the next change"
            )
        else:
            now = time.monotonic()
            if now - self._began >= SETTLED_S:
                self._pause_s = AGAIN_AFTER_S
            self._again_at = now + self._pause_s
            self.tell(
                f"the worker {_end(code)}. Runs wait in the log; it is started again "
                f"in {self._pause_s:g} s"
            )
            self._pause_s = min(2 * self._pause_s, AGAIN_AFTER_MAX_S)

    def end(self) -> int | None:
        """SIGTERM, and wait: it drains and hands over. What takes too long is killed.

        Returns its exit code, None where none lives.
        """
        process, self._process = self._process, None
        self._again_at = None
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_WITHIN_S
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        if process.poll() is None:
            self.tell(f"the worker has not stopped within {STOP_WITHIN_S:g} s and is killed")
            process.kill()
        return process.wait()

    def hurry(self) -> None:
        """A second signal: it ends at once, without handing over."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


def _end(code: int) -> str:
    """How it ended, in words.

    >>> _end(-9), _end(1)
    ('was killed by SIGKILL', 'ended with 1')
    """
    if code >= 0:
        return f"ended with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
