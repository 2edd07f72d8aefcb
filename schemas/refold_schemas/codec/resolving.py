"""Avro to plain data and back by fastavro: checked before it is read, strict when written."""

from io import BytesIO
from typing import Any

from refold_schemas.codec.bounds import check
from refold_schemas.registry.avro import Parsed


class Unresolved(Exception):
    """A record that the other schema cannot take; the text names the field and holds no value."""


def read(data: bytes, writer: Parsed, reader: Parsed) -> Any:
    """Read the bytes of `writer` as a value of `reader` by Avro's rules of resolution.

    Records are dicts, arrays lists. Raises bounds.Broken for bytes that are no value of `writer`,
    Unresolved where the two schemas do not fit.
    """
    from fastavro import schemaless_reader

    check(writer, data)
    try:
        return schemaless_reader(
            BytesIO(data), writer.schema, None if reader is writer else reader.schema
        )
    except Exception as error:  # whatever it is, the bytes stay in the log and the text says it
        raise Unresolved(str(error) or type(error).__name__) from error


def write(record: Any, parsed: Parsed) -> bytes:
    """Write plain data exactly: no field more, none less, no value of another type.

    Raises Unresolved. fastavro validates types and ranges first, since its writer alone would turn
    3.7 into 3; the writer then refuses fields too many or too few.
    """
    from fastavro import schemaless_writer
    from fastavro.validation import ValidationError, validate

    try:
        # fastavro's stub lacks the option; a tuple would name a branch of a union
        validate(record, parsed.schema, disable_tuple_notation=True)  # type: ignore[call-arg]
    except ValidationError as error:
        where = error.errors[0].field or "the record"
        raise Unresolved(f"{where} is missing or of another type") from error
    out = BytesIO()
    try:
        schemaless_writer(out, parsed.schema, record, strict=True, disable_tuple_notation=True)
    except Exception as fault:  # as above
        raise Unresolved(str(fault) or type(fault).__name__) from fault
    return out.getvalue()
