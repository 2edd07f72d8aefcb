"""Reads a record whose schema has to be asked for first. Where the registry cannot say, it waits.

Where the registry says that there is no such schema, it is a wrong registry, or nobody's record:
`SchemaUnavailable.mends` is False then, and who reads a log knows by the claim in force which.
"""

from typing import Any

from refold_schemas.codec.codec import Codec
from refold_schemas.errors import SchemaUnavailable, UnknownSchemaId


async def learn(codec: Codec, unknown: SchemaUnavailable) -> None:
    """Return once the schema is known. Raises SchemaUnavailable, also for one that nobody has."""
    try:
        await codec.learn(unknown.schema_id)
    except UnknownSchemaId as error:
        raise SchemaUnavailable(unknown.schema_id, error.reason, mends=False) from error


async def decode(codec: Codec, data: bytes) -> Any:
    """The message, its schema learnt first if need be. Raises as `Codec.decode` and `learn`."""
    try:
        return codec.decode(data)
    except SchemaUnavailable as unknown:
        await learn(codec, unknown)
        return codec.decode(data)


async def name_of(codec: Codec, data: bytes) -> str | None:
    """The short record name by the frame's id, learnt first if need be; None if there is none."""
    try:
        return codec.name_of(data, strict=True)
    except SchemaUnavailable as unknown:
        await learn(codec, unknown)
        return codec.name_of(data)
