"""One set of tables as its writer sees it: positions, runs read back, and batches put in one go.

A batch counts only if the position's row still is what its writer saw last (compare-and-set under
the row's lock), so rows and position belong together, whoever else writes.
"""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from refold_projections.fold import Facts, Position
from refold_projections.tables.book import ANSWER, Noted, Rows
from refold_projections.tables.database import Connection
from refold_projections.tables.following import At, Kept
from refold_projections.tables.keeping import unpack
from refold_projections.tables.names import Names
from refold_projections.tables.shapes import TABLES, Row
from refold_projections.tables.showing import name, text
from refold_schemas.codec import Codec
from refold_schemas.errors.tables import TablesDiffer, TablesOfAnother

RUNS_AT_ONCE = 500
MANY = 300
"""From so many rows on they are copied beside the table first: cheaper each, dearer to begin."""
NOBODY = b""


class Superseded(Exception):
    """Somebody else has written the position meanwhile: what is in memory is out of date."""


class Token(NamedTuple):
    """Who wrote the position last, and the how-manieth batch that was."""

    writer: bytes
    batch: int


class Live(NamedTuple):
    """Which set readers see. `generation` rises at each swap."""

    name: str
    generation: int
    namespace: str
    topic_ids: tuple[str, ...]


_POSITION = (
    *("offset_next", "claim_epoch", "claim_id", "n_next", "claim_broken", "command_next"),
    *("time_last_ms", "last_offset", "last_claim_id", "last_n"),
)
_FACTS = (
    *("process", "owner", "app", "partition_count", "topic_ids", "format_level", "released"),
    *("unclean_total", "unclean_row"),
)


async def live_of(connection: Connection, names: Names) -> Live:
    """The live set. Raises TablesDiffer where the row that says it is gone."""
    row = await connection.fetchrow(
        f"select live, generation, namespace, topic_ids from {names.schema}.refold_live"
    )
    if row is None:
        raise TablesDiffer(names.schema, "refold_live has no row, so neither set is live")
    return Live(row[0], row[1], row[2], tuple(row[3]))


async def take(
    connection: Connection, names: Names, namespace: str, topic_ids: Sequence[str]
) -> Live:
    """Take tables that nobody has for this namespace; the live set.

    Raises TablesOfAnother where they are of another one.
    """
    await connection.execute(
        f"update {names.schema}.refold_live set namespace = $1, topic_ids = $2 "
        "where namespace = ''",
        namespace,
        list(topic_ids),
    )
    live = await live_of(connection, names)
    if live.namespace != namespace:
        raise TablesOfAnother(names.schema, live.namespace, namespace)
    return live


def escaped(facts: Facts) -> Facts:
    """The facts, their texts as tables show them."""
    return facts._replace(
        process=text(facts.process),
        owner=text(facts.owner),
        app=text(facts.app),
        topic_ids=tuple(map(text, facts.topic_ids)),
    )


def _shown(facts: Facts) -> list[Any]:
    """Facts as Postgres can hold them."""
    return list(escaped(facts))


class Store:
    """The tables of one set. Each method takes the connection that it is to use."""

    def __init__(self, names: Names, of_set: str, codec: Codec) -> None:
        self.names, self.set_name, self.codec = names, of_set, codec
        self.schema = names.of_set(of_set)
        self._put_beside = {one.name: one.put_beside(self.schema) for one in TABLES.values()}
        self._put = {one.name: one.put(self.schema) for one in TABLES.values()}
        self._cas = (
            f"update {self.schema}.positions set "
            + ", ".join(f"{one} = ${i}" for i, one in enumerate((*_POSITION, *_FACTS), 1))
            + ", claimed_at = timestamptz 'epoch' + $20::bigint * interval '1 millisecond'"
            ", log_end = greatest(log_end, $21, $1)"
            ", read_at = to_timestamp($22::float8), applied_at = to_timestamp($22::float8)"
            ", writer = $23, batch = $24 where partition = $25 and writer = $26 and batch = $27 "
            f"returning (select generation from {names.schema}.refold_live)"
        )

    async def position(self, connection: Connection, partition: int) -> tuple[At, Token] | None:
        """How far the partition is; None where nothing of it was written yet."""
        row = await connection.fetchrow(
            f"select {', '.join((*_POSITION, *_FACTS))}, writer, batch, "
            "(extract(epoch from claimed_at) * 1000)::bigint as claimed_ms "
            f"from {self.schema}.positions where partition = $1",
            partition,
        )
        if row is None:
            return None
        position = Position(*(row[one] for one in _POSITION))
        said: list[Any] = [tuple(row[o]) if o == "topic_ids" else row[o] for o in _FACTS]
        facts = Facts(*said)
        return At(position, facts, row["claimed_ms"]), Token(row["writer"], row["batch"])

    async def begin(self, connection: Connection, partition: int, at: At, token: Token) -> None:
        """Write the first position of a partition. Raises Superseded where there is one."""
        values = (*at.position, *_shown(at.facts))
        numbers = ", ".join(f"${i}" for i in range(2, 2 + len(values)))
        made = await connection.fetchval(
            f"insert into {self.schema}.positions (partition, {', '.join((*_POSITION, *_FACTS))}, "
            "claimed_at, writer, batch, log_end, read_at, applied_at) "
            f"values ($1, {numbers}, timestamptz 'epoch' + $21::bigint * interval '1 millisecond', "
            "$22, $23, $2, to_timestamp($24::float8), to_timestamp($24::float8)) "
            "on conflict do nothing returning 1",
            partition,
            *values,
            at.claimed_ms,
            *token,
            time.time(),
        )
        if made is None:
            raise Superseded

    async def put(
        self,
        connection: Connection,
        partition: int,
        rows: Rows,
        at: At,
        before: Token,
        after: Token,
        log_end: int,
    ) -> int:
        """Write a batch and its position in one transaction; return the generation of live.

        Raises Superseded where the position is not the one that `before` wrote: nothing is written.
        """
        async with connection.transaction():
            generation = await connection.fetchval(
                self._cas,
                *at.position,
                *_shown(at.facts),
                at.claimed_ms,
                log_end,
                time.time(),
                *after,
                partition,
                *before,
            )
            if generation is None:
                raise Superseded
            await self.put_rows(connection, rows)
        return int(generation)

    async def put_rows(self, connection: Connection, rows: Rows, *, more: bool = False) -> None:
        """Write rows, in a transaction of the caller's; `more` of them follow in the same one."""
        for table in TABLES.values():
            found: list[Row] = getattr(rows, table.name)
            if len(found) >= MANY:
                await connection.execute(table.make_beside())
                await connection.copy_records_to_table(table.beside, records=found)
                await connection.execute(self._put_beside[table.name])
                if more:
                    await connection.execute(f"delete from {table.beside}")
            elif found:
                await connection.execute(self._put[table.name], *table.values(found))
        if rows.timers_gone:
            await connection.execute(
                f"delete from {self.schema}.timers t using unnest($1::text[], $2::text[]) "
                "as gone(run_id, timer_id) "
                "where t.run_id = gone.run_id and t.timer_id = gone.timer_id",
                *zip(*rows.timers_gone, strict=True),
            )

    async def runs(
        self, connection: Connection, partition: int, run_ids: Collection[str]
    ) -> dict[str, Kept]:
        """The runs of these that there are, as they were when their rows were written."""
        found: dict[str, Kept] = {}
        asked = list(run_ids)
        for first in range(0, len(asked), RUNS_AT_ONCE):
            part = asked[first : first + RUNS_AT_ONCE]
            found |= await self._runs(connection, partition, part)
            await asyncio.sleep(0)
        return found

    async def _runs(
        self, connection: Connection, partition: int, asked: Sequence[str]
    ) -> dict[str, Kept]:
        ids = [name(one) for one in asked]
        runs = await connection.fetch(
            f"select run_id, kept from {self.schema}.runs "
            "where run_id = any($1::text[]) and partition = $2",
            ids,
            partition,
        )
        if not runs:
            return {}
        there = [row["run_id"] for row in runs]
        slots: dict[str, list[bytes]] = {}
        for run_id, kept in await connection.fetch(
            f"select run_id, kept from {self.schema}.steps where run_id = any($1::text[])", there
        ):
            slots.setdefault(run_id, []).append(kept)
        effects: dict[str, list[Any]] = {}
        for row in await connection.fetch(
            f"select run_id, slot, generation, evidence from {self.schema}.effects "
            f"where run_id = any($1::text[]) and evidence <> '{ANSWER}'",
            there,
        ):
            effects.setdefault(row["run_id"], []).append(row)
        found: dict[str, Kept] = {}
        for row in runs:
            state, mark = unpack(self.codec, row["kept"], slots.get(row["run_id"], ()))
            slot_names = {name(one): one for one in state.slots}
            noted = Noted({})
            for effect in effects.get(row["run_id"], ()):
                place = (slot_names.get(effect["slot"], effect["slot"]), effect["generation"])
                noted.evidence[place] = effect["evidence"]
            found[state.run_id] = Kept(state, mark, noted)
        return found

    async def open_runs(self, connection: Connection, partition: int) -> set[str]:
        """The runs of the partition that have an unsettled attempt, by their true ids."""
        rows = await connection.fetch(
            f"select kept from {self.schema}.runs where partition = $1 and open_count > 0",
            partition,
        )
        return {self.codec.decode(row["kept"]).run_id for row in rows}

    async def looked(self, connection: Connection, ends: Mapping[int, int]) -> None:
        """Note where the log of each partition ends, and that it was looked at now."""
        if ends:
            await connection.execute(
                f"update {self.schema}.positions p set log_end = greatest(g.log_end, p.offset_next)"
                ", read_at = to_timestamp($3::float8) "
                "from unnest($1::int[], $2::bigint[]) as g(partition, log_end) "
                "where p.partition = g.partition",
                list(ends),
                list(ends.values()),
                time.time(),
            )
