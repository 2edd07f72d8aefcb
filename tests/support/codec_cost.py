"""What the codec's quick way saves: `PYTHONPATH=tests python tests/support/codec_cost.py`.

Prints microseconds for one message (the least of several rounds, the ways taking turns), written
and read: as messages by the codec; by fastavro, which starts from dicts and ends in them, so that
turning them into classes would come on top; and by the checked way, which the codec takes for older
versions and for whatever the quick way leaves.
"""

import io
import sys
from collections.abc import Callable
from timeit import timeit
from typing import Any

import fastavro
from fastavro.validation import validate

from refold_schemas.codec import Codec
from refold_schemas.codec.resolving import read, write
from refold_schemas.events import StepCompleted, StepIntended, TimerFired
from refold_schemas.registry import FileRegistry
from refold_schemas.registry.avro import parse
from support.messages import example

ROUNDS, TIMES = 40, 200


def _strictly(schema: Any, record: Any) -> None:
    validate(record, schema)
    fastavro.schemaless_writer(io.BytesIO(), schema, record, strict=True)


def ways(message: Any) -> dict[str, Callable[[], object]]:
    """Each way to write and to read this message, as a call."""
    registry = FileRegistry()
    codec = Codec(registry)
    data = codec.encode(message)
    parsed = parse(registry.schema(int.from_bytes(data[1:5], "big")))
    schema, body = parsed.schema, data[5:]
    record = read(body, parsed, parsed)
    return {
        "write: codec, strict, from the class": lambda: codec.encode(message),
        "write: fastavro, which coerces, from a dict": lambda: fastavro.schemaless_writer(
            io.BytesIO(), schema, record
        ),
        "write: fastavro, validated and strict, from a dict": lambda: _strictly(schema, record),
        "read: codec, quick, to the class": lambda: codec.decode(data),
        "read: fastavro, unchecked, to a dict": lambda: fastavro.schemaless_reader(
            io.BytesIO(body), schema, None
        ),
        "read: checked, by fastavro, to a dict": lambda: read(body, parsed, parsed),
        "read: checked, and written again strictly": lambda: write(
            read(body, parsed, parsed), parsed
        ),
    }


def main() -> None:
    """Print one table."""
    kinds = (TimerFired, StepIntended, StepCompleted)
    columns = [ways(example(kind)) for kind in kinds]
    least: dict[tuple[str, int], float] = {}
    for _ in range(ROUNDS):
        for index, column in enumerate(columns):
            for name, call in column.items():
                took = timeit(call, number=TIMES) / TIMES * 1e6
                least[name, index] = min(took, least.get((name, index), took))
    lines = [f"{'µs':52}" + "".join(f"{kind.__name__:>15}" for kind in kinds)]
    for name in columns[0]:
        lines.append(f"{name:52}" + "".join(f"{least[name, i]:15.1f}" for i in range(len(kinds))))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
