"""Where a partition's rows begin: at the log's first record, or with the snapshots of what is gone.

Source: docs/adr/0022: what was archived leaves the final snapshots of its runs.
"""

from itertools import islice

from refold.engine import checkpoints
from refold.log import Log, Topic
from refold_projections.fold import Facts, Position
from refold_projections.tables.database import Connection
from refold_projections.tables.following import At, Following, Kept
from refold_projections.tables.shapes import at
from refold_projections.tables.store import Store, Token

RUNS_AT_ONCE = 500


async def seed(
    connection: Connection, store: Store, log: Log, partition: int, token: Token
) -> tuple[At, int]:
    """Write the first position of a partition, and the runs it begins with, in one transaction.

    Returns it and how many runs came from snapshots. Raises Superseded where somebody else has
    begun, EventsGone where events are gone that nothing stands in for.
    """
    start, _ = await log.bounds(Topic.EVENTS, partition)
    if start == 0:
        begun = At(Position(), Facts(), None)
        await store.begin(connection, partition, begun, token)
        return begun, 0
    restored = await checkpoints.load(log, partition, store.codec)
    base = restored.base
    begun = At(base.position, base.facts, at(base.position.time_last_ms or None))
    states = restored.fold.runs
    async with connection.transaction():
        await store.begin(connection, partition, begun, token)
        ids = iter(list(states))
        while chunk := list(islice(ids, RUNS_AT_ONCE)):
            following = Following(store.codec, partition, begun)
            following.take_back(
                {one: Kept(states[one], restored.fold.marks[one], None) for one in chunk}
            )
            following.show_all(chunk)
            await store.put_rows(connection, following.rows(), more=True)
    return begun, len(states)
