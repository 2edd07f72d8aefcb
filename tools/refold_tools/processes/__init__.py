"""Children that do not outlive the process that started them, and the terminal that it outlives."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
"""Source: prctl(2). The signal comes when the thread that started the child has ended."""

__all__ = ["ends_with_parent", "hears_hangups", "interrupt_on_hangup"]


def ends_with_parent(number: signal.Signals) -> Callable[[], None] | None:
    """A `preexec_fn` by which the kernel sends `number` to the child when its parent has gone.

    SIGKILL leaves a parent no time to end anybody. None where the kernel has no such thing: it is
    Linux's. Start the child from a thread that lives as long as the process.
    """
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def ask_kernel() -> None:
        prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it has gone already, so no signal would come
            os.kill(os.getpid(), number)

    return ask_kernel


def hears_hangups() -> bool:
    """Whether SIGHUP has to be heard: not where `nohup` has said that the process is to go on."""
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def interrupt_on_hangup() -> None:
    """Let the end of the terminal be what Ctrl-C in it is, once: the process can clean up.

    Call this from the main thread. A process that ignores SIGINT stays as it is.
    """
    if hears_hangups() and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _interrupt_once)


def _interrupt_once(number: int, frame: object) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it comes from the shell and from the kernel
    signal.raise_signal(signal.SIGINT)
