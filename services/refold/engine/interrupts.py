"""Whether a KeyboardInterrupt is the operator's, or was raised by the code that it came out of."""

import signal
import threading


def is_the_operators(error: BaseException) -> bool:
    """Whether Ctrl-C may have raised it: then it is meant for the process, and no run fails by it.

    Python's own handler leaves no frame, so while that one is set nobody can tell the two apart.
    Another one is the innermost frame of what it raises; a loop's raises nothing.
    """
    if not isinstance(error, KeyboardInterrupt):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # Python hands signals to the main thread alone
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        return True
    handler = getattr(handler, "func", handler)  # asyncio.run's is a partial of a method
    frames = error.__traceback__
    while frames is not None and frames.tb_next is not None:
        frames = frames.tb_next
    return frames is not None and frames.tb_frame.f_code is getattr(handler, "__code__", None)
