"""Whether a KeyboardInterrupt is the operator's, or was raised by the code that it came out of."""

import signal
import threading


def is_the_operators(error: BaseException) -> bool:
    """Whether Ctrl-C may have raised it: then it is meant for the process, and no run fails by it.

    A handler that raises is among the frames of what it raises; a loop's raises nothing. Python's
    own leaves no frame, nor does any that is not a Python function: while such a one is set nobody
    can tell the two apart, and what is not known must not fail a run.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # Python hands signals to the main thread alone
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        return False  # the signal is ignored, or ends the process without Python
    handler = getattr(handler, "func", handler)  # asyncio.run's is a partial of a method
    code = getattr(handler, "__code__", None)
    if code is None:
        return True
    frames = error.__traceback__
    while frames is not None:
        if frames.tb_frame.f_code is code:
            return True
        frames = frames.tb_next
    return False
