"""The outside world that the examples act on: vendors with keys, lags, faults and a ledger.

`World` is the whole world in one object, for tests on virtual time; `python -m world` is the same
object behind HTTP in a process of its own. It knows nothing of refold.
"""

from world.core import Exchange, World
from world.faults import Fault, FaultMode
from world.messages import Answer, Json, Lost, Reply, Request
from world.settings import Settings

__all__ = [
    "Answer",
    "Exchange",
    "Fault",
    "FaultMode",
    "Json",
    "Lost",
    "Reply",
    "Request",
    "Settings",
    "World",
]
