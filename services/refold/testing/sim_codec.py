"""One codec for all workers of a process: what it has compiled stays."""

from functools import lru_cache
from typing import Any

from refold_schemas.codec import Codec
from refold_schemas.registry import FileRegistry


@lru_cache(maxsize=1)
def shared_codec() -> Codec:
    """The codec of the files, whose readers and writers know no state.

    A worker that starts lets go of compiled writers, since a registry may give out other ids. Those
    of the files stay as they are, and in a simulation workers start all the time.
    """
    codec = Codec(FileRegistry())
    codec._writers = _Lasting()
    return codec


class _Lasting(dict[type, Any]):
    def clear(self) -> None:
        """Nothing goes."""
