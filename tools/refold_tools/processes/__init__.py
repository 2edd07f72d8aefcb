"""Children that do not outlive the process that started them, however it ends."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
"""Source: prctl(2). The signal comes when the thread that started the child has ended."""

__all__ = ["ends_with_parent"]


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
