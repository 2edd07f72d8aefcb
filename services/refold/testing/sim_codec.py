"""One codec for all workers of a process: what it has compiled stays."""

from functools import lru_cache

from refold_schemas.codec import Codec
from refold_schemas.registry import FileRegistry


@lru_cache(maxsize=1)
def shared_codec() -> Codec:
    """The codec of the files, whose readers and writers know no state.

    In a simulation workers start all the time, and compiling is most of what a start costs.
    """
    return Codec(FileRegistry())
