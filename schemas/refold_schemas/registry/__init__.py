"""The schema-lookup port; adapters: files, confluent."""

from refold_schemas.registry.avro import BadSchema, canonical_form, fingerprint
from refold_schemas.registry.compatibility import Incompatible, incompatibilities
from refold_schemas.registry.files import FileRegistry
from refold_schemas.registry.port import UNRELEASED, Registry, Schema

__all__ = [
    "UNRELEASED",
    "BadSchema",
    "FileRegistry",
    "Incompatible",
    "Registry",
    "Schema",
    "canonical_form",
    "fingerprint",
    "incompatibilities",
]
