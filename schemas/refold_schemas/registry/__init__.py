"""The schema-lookup port; adapters: files."""

from refold_schemas.registry.files import FileRegistry
from refold_schemas.registry.port import Registry, Schema

__all__ = ["FileRegistry", "Registry", "Schema"]
