"""Where an application gets its vendors: the service at WORLD_URL, or what a test puts there."""

from collections.abc import Iterator
from contextlib import contextmanager

from world.calls import VendorCalls

_in_use: VendorCalls | None = None


def vendors() -> VendorCalls:
    """The vendors to call. Steps ask for them at each call, so that a test can change them."""
    if _in_use is not None:
        return _in_use
    # Imported here: without the service nothing needs aiohttp.
    from world.client import WorldClient

    # A session of its own for each call: it belongs to no event loop and needs no closing.
    return WorldClient()


@contextmanager
def using(calls: VendorCalls) -> Iterator[VendorCalls]:
    """Let every application in this process call `calls` until the block ends."""
    global _in_use
    before, _in_use = _in_use, calls
    try:
        yield calls
    finally:
        _in_use = before
