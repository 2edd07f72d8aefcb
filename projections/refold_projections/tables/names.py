"""Where the tables are: a schema for the views, and beside it one for each of the two sets."""

import re
from typing import NamedTuple

from refold_schemas.errors.tables import DatabaseUrlInvalid

SETS = ("a", "b")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,59}")
VIEWS = (
    "v1_runs",
    "v1_boundary",
    "v1_steps",
    "v1_attempts",
    "v1_timers",
    "v1_effects",
    "v1_rejections",
    "v1_findings",
    "v1_partitions",
)


class Names(NamedTuple):
    """The names of everything, from the name of the views' schema.

    >>> names_in("public").of_set("a"), names_in("shop").of_set("b")
    ('refold_a', 'shop_b')
    """

    schema: str

    def of_set(self, name: str) -> str:
        """The schema of the set `a` or `b`."""
        return f"{'refold' if self.schema == 'public' else self.schema}_{name}"

    @staticmethod
    def other(name: str) -> str:
        """The set that is not this one."""
        return "b" if name == "a" else "a"


def names_in(schema: str) -> Names:
    """Names in this schema. Raises DatabaseUrlInvalid unless it is one that needs no quotes."""
    if not _SCHEMA.fullmatch(schema):
        raise DatabaseUrlInvalid(
            f"{schema!r} is no name of a schema: small letters, digits and _, at most 60"
        )
    if schema == "refold" or schema.startswith("pg_"):
        whose = "the sets of the schema public" if schema == "refold" else "Postgres's own schemas"
        raise DatabaseUrlInvalid(f"a schema {schema!r} would be in the way of {whose}")
    return Names(schema)
