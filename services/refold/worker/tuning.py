"""Settings of a whole process that hosts a worker; a library must not touch them, an entry may."""

import gc
import sys

GC_THRESHOLD = 200_000
SWITCH_INTERVAL_S = 0.0005


def tune_process() -> None:
    """Fewer collections over a large, live heap; a log's writer thread gets the interpreter sooner.

    What is loaded by now is never garbage. Without the second setting a busy loop makes the
    thread that commits wait for up to 5 ms for each batch.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
