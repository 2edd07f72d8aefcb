"""How far a partition's topics may be trimmed, by a checkpoint that the log confirms.

Source: design, section 3.3; docs/adr/0020 and 0022. Workers trim nothing themselves: `refold
archive` does.
"""

from refold.engine.bases import Base
from refold.engine.lookup import Lookup
from refold.log.port import Log, Topic
from refold_schemas.codec import Codec
from refold_schemas.codec.learning import decode
from refold_schemas.errors import UndecodableRecord
from refold_schemas.events import CommandRejected


def events_trimmable(base: Base) -> int:
    """The offset up to which no reader that begins at `base` needs an event, nor its sender.

    Every run has its records before it in a snapshot that stands. The last record that was read
    stays: readers verify the position by it. So does the first that is still to be sent.
    """
    return max(0, min((base.position.last_offset, *base.orders.outbox)))


async def commands_trimmable(log: Log, codec: Codec, partition: int, base: Base) -> int:
    """The offset up to which every command was decided, and no decision is still to be sent.

    A parked command is decided from the log later on, and a dead letter copies the command that
    was rejected. Raises what `Log.read` raises, and SchemaUnavailable.
    """
    limit = base.position.command_next
    if base.orders.parked:
        limit = min(limit, *(one.offset for one in base.orders.parked))
    events = Lookup(log, Topic.EVENTS, partition)
    for offset in base.orders.outbox:
        record = await events.at(offset)
        if record is None:
            continue  # gone: nobody can send it any more
        try:
            event = await decode(codec, record.value or b"")
        except UndecodableRecord:
            continue  # the sender cannot read it either
        if isinstance(event, CommandRejected):
            limit = min(limit, event.command_offset)
    return max(0, limit)


__all__ = ["commands_trimmable", "events_trimmable"]
