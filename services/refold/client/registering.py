"""For tools that make what is missing: a registry that lacks our schemas gets them, and it is said.

Nothing else registers: workers and clients say what is missing, and stop.
"""

from refold.settings.registry import is_shared, open_registry, registry_access
from refold_schemas.codec import Codec
from refold_schemas.errors import SchemasUnregistered
from refold_schemas.registry import FileRegistry
from refold_schemas.registry.subjects import register


async def make_registered(log_url: str, codec: Codec | None = None) -> str | None:
    """Return once records of the log can be written, with a sentence if something was registered.

    Nothing is asked where no registry is set, or the log is written under our own ids. Raises
    RegistryUnavailable, RegistryRefused.
    """
    access = registry_access() if is_shared(log_url) else None
    if access is None:
        return None
    codec = codec or Codec(open_registry(log_url))
    try:
        await codec.ready()
    except SchemasUnregistered:
        done = [one async for one in register(access, FileRegistry())]
        await codec.ready()
        count = sum(one.what == "register" for one in done)
        return f"registered {count} schemas with {access.url}"
    return None
