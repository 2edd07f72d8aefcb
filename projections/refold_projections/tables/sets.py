"""The two sets: which one is filled beside the live one, how it is emptied, and how they swap."""

import asyncio
from typing import NamedTuple

from refold_projections.tables import database
from refold_projections.tables.database import Connection, Pool
from refold_projections.tables.migrating import LOCK
from refold_projections.tables.names import Names
from refold_projections.tables.shapes import TABLES
from refold_projections.tables.store import Live, live_of
from refold_schemas.errors.tables import DatabaseUnavailable, RebuildUnderWay

EMPTY_WITHIN_S = 60.0
EMPTY_LOCK_MS = 300
"""So long a reader may have to wait behind us, who wait for readers that came before."""


class Beside(NamedTuple):
    """The set that is not live. `begun`: a rebuild of it was stopped and can be taken up."""

    name: str
    begun: bool


class Building(NamedTuple):
    """A rebuild that is under way, or was stopped: records in the other set, and those it lacks."""

    done: int
    left: int


async def building(connection: Connection, names: Names, live: str) -> Building | None:
    """How far the set beside the live one is; None where it is not being built."""
    other = names.other(live)
    state = await connection.fetchval(
        f"select state from {names.schema}.refold_sets where name = $1", other
    )
    if state != "building":
        return None
    row = await connection.fetchrow(
        "select coalesce(sum(beside.offset_next), 0)::bigint, coalesce(sum(greatest("
        "live.log_end - coalesce(beside.offset_next, 0), 0)), 0)::bigint "
        f"from {names.of_set(live)}.positions live "
        f"left join {names.of_set(other)}.positions beside using (partition)"
    )
    return Building(row[0], row[1])


async def reserve(connection: Connection, names: Names) -> Beside:
    """Take the other set for a rebuild, for as long as the connection lives.

    Raises RebuildUnderWay where somebody else has it.
    """
    taken = await connection.fetchval(
        "select pg_try_advisory_lock($1::int, hashtext($2))", LOCK % 2**31, names.schema
    )
    if not taken:
        raise RebuildUnderWay(names.schema)
    other = names.other((await live_of(connection, names)).name)
    state = await connection.fetchval(
        f"select state from {names.schema}.refold_sets where name = $1", other
    )
    return Beside(other, state == "building")


async def mark(connection: Connection, names: Names, of_set: str, state: str) -> None:
    """Note what a set is: empty, building, verified or filled."""
    await connection.execute(
        f"update {names.schema}.refold_sets set state = $1, since = now() where name = $2",
        state,
        of_set,
    )


async def empty(pool: Pool, names: Names, of_set: str) -> None:
    """Empty a set that is not live, and mark it as being built.

    A reader's statement locks both sets until its transaction ends, so nobody loses rows under
    their eyes; we ask for the tables again and again rather than keep readers waiting behind us.
    """
    tables = ", ".join(f"{names.of_set(of_set)}.{one}" for one in (*TABLES, "positions"))
    deadline = asyncio.get_running_loop().time() + EMPTY_WITHIN_S
    while True:
        try:
            async with pool.connection() as connection, connection.transaction():
                await connection.execute(f"set local lock_timeout = {EMPTY_LOCK_MS}")
                await connection.execute(f"truncate {tables}")
                await mark(connection, names, of_set, "building")
            return
        except Exception as error:
            if not database.is_away(error) or asyncio.get_running_loop().time() > deadline:
                if database.is_away(error):
                    reason = f"set {of_set} is read by somebody for {EMPTY_WITHIN_S:g} s"
                    raise DatabaseUnavailable(database.shown(pool.url), reason) from error
                raise
        await asyncio.sleep(0.2)


async def live_once_decided(connection: Connection, names: Names) -> Live:
    """The live set, behind a swap whose end nobody has seen: its row is locked until then.

    Raises as `live_of`, and what says that it has not ended in time.
    """
    async with connection.transaction():
        await connection.fetch(f"select 1 from {names.schema}.refold_live for update")
        return await live_of(connection, names)


async def swap(connection: Connection, names: Names, of_set: str) -> int:
    """Make this set the live one, in a transaction of the caller's; the new generation."""
    await mark(connection, names, of_set, "filled")
    await mark(connection, names, names.other(of_set), "filled")
    generation = await connection.fetchval(
        f"update {names.schema}.refold_live set live = $1, generation = generation + 1, "
        "swapped_at = now() returning generation",
        of_set,
    )
    return int(generation)
