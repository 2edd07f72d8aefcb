"""What fastavro says of a schema: whether it is one, its canonical form, the fingerprints of it.

fastavro is imported by the first schema that is looked at, so that what reads none starts without.
Sources: Avro 1.12 specification, "Parsing Canonical Form for Schemas" and "Schema Fingerprints".
"""

from typing import Any, NamedTuple


class BadSchema(ValueError):
    """Something that is no Avro schema, or none that can be read safely; the text says why."""


class Parsed(NamedTuple):
    """A schema with full names, and the named types in it by full name."""

    schema: Any
    names: dict[str, Any]


def parse(schema: Any) -> Parsed:
    """Validate a schema given as parsed JSON and resolve its names. Raises BadSchema.

    >>> parse({"type": "fixed", "name": "x.F", "size": 2}).names
    {'x.F': {'type': 'fixed', 'name': 'x.F', 'size': 2}}
    """
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    names: dict[str, Any] = {}
    try:
        parsed = parse_schema(schema, names)
    except UnknownType as error:
        raise BadSchema(f"{error.name} is not defined before it is used") from error
    except (SchemaParseException, KeyError, TypeError, ValueError) as error:
        raise BadSchema(f"it is no Avro schema: {type(error).__name__}: {error}") from error
    if parsed == []:
        raise BadSchema("a union without branches")
    return Parsed(parsed, names)


def canonical_form(schema: Any) -> str:
    """Return the parsing canonical form: what decides how bytes are read, and nothing else.

    Documentation, defaults and the order of attributes are not in it.

    >>> canonical_form({"type": "fixed", "size": 2, "name": "F", "namespace": "x", "doc": "two"})
    '{"name":"x.F","type":"fixed","size":2}'
    """
    from fastavro.schema import to_parsing_canonical_form

    return to_parsing_canonical_form(parse(schema).schema)


def fingerprint(schema: Any, algorithm: str = "SHA-256") -> str:
    """Return the fingerprint of the canonical form in hexadecimal; CRC-64-AVRO is Rabin's.

    >>> fingerprint("string", "CRC-64-AVRO")
    'c70345637248018f'
    """
    from fastavro.schema import fingerprint as fingerprint_of

    return fingerprint_of(canonical_form(schema), algorithm)
