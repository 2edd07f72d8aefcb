"""Whether all versions of a record can read each other: FULL_TRANSITIVE, by Apache's checker.

fastavro has none. The package `avro` is imported only here, by the first check.
"""

import json
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

from refold_schemas.registry.port import Schema


class Incompatible(NamedTuple):
    """`reader` (a version) cannot read what `writer` (another one) writes, and why."""

    reader: int
    writer: int
    reason: str


def incompatibilities(versions: Mapping[int, Schema]) -> tuple[Incompatible, ...]:
    """Compare each version with each other one in both directions, in order of version.

    Empty for versions that are FULL_TRANSITIVE: every field that is not in all of them has a
    default, and no type has changed but by Avro's promotions in both directions.
    """
    from avro.compatibility import (
        ReaderWriterCompatibilityChecker,
        SchemaCompatibilityType,
    )
    from avro.schema import parse

    parsed = {version: parse(json.dumps(schema)) for version, schema in versions.items()}
    found = []
    for older, newer in combinations(sorted(parsed), 2):
        for reader, writer in ((newer, older), (older, newer)):
            result = ReaderWriterCompatibilityChecker().get_compatibility(
                parsed[reader], parsed[writer]
            )
            if result.compatibility is SchemaCompatibilityType.incompatible:
                kinds = sorted({kind.value for kind in result.incompatibilities})
                said = "; ".join(sorted(result.messages))
                at = ", ".join(sorted(result.locations))
                found.append(Incompatible(reader, writer, f"{', '.join(kinds)}: {said} at {at}"))
    return tuple(found)
