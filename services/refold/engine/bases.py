"""From where a fold goes on, and the checkpoint record that says it.

Source: design, section 3.3.
"""

from typing import NamedTuple

from refold_projections.fold import Facts, OrdersKept, ParkedCommand, Position
from refold_schemas.snapshots import Checkpoint, ParkedKept


class Base(NamedTuple):
    """From where a fold goes on: a position, what the claims before it say, what is still owed."""

    position: Position
    facts: Facts
    orders: OrdersKept = OrdersKept()


def checkpoint_of(partition: int, base: Base, run_count: int | None = None) -> Checkpoint:
    """The record of a durable position. Every run's snapshot reaches up to it or beyond.

    `run_count`: of so many runs a snapshot stands, None where nobody counted.
    """
    position, facts, orders = base
    return Checkpoint(
        partition=partition,
        offset_next=position.offset_next,
        claim_epoch=position.claim_epoch,
        claim_id=position.claim_id,
        n_next=position.n_next,
        claim_broken=position.claim_broken,
        command_next=position.command_next,
        time_last_ms=position.time_last_ms,
        last_offset=position.last_offset,
        last_claim_id=position.last_claim_id,
        last_n=position.last_n,
        redo_offset=position.offset_next,
        process=facts.process,
        owner=facts.owner,
        app=facts.app,
        topic_ids=facts.topic_ids,
        partition_count=facts.partition_count,
        format_level=facts.format_level,
        released=facts.released,
        unclean_total=facts.unclean_total,
        unclean_row=facts.unclean_row,
        published_to=orders.published_to,
        outbox=tuple(offset for offset in orders.outbox if offset >= orders.published_to),
        parked=tuple(ParkedKept(*one) for one in orders.parked),
        run_count=run_count,
    )


def base_of(checkpoint: Checkpoint) -> Base:
    """What `checkpoint_of` was given."""
    position = Position(
        checkpoint.offset_next,
        checkpoint.claim_epoch,
        checkpoint.claim_id,
        checkpoint.n_next,
        checkpoint.claim_broken,
        checkpoint.command_next,
        checkpoint.time_last_ms,
        checkpoint.last_offset,
        checkpoint.last_claim_id,
        checkpoint.last_n,
    )
    facts = Facts(
        checkpoint.process,
        checkpoint.owner,
        checkpoint.app,
        checkpoint.partition_count,
        checkpoint.topic_ids,
        checkpoint.format_level,
        checkpoint.released,
        checkpoint.unclean_total,
        checkpoint.unclean_row,
    )
    parked = tuple(
        ParkedCommand(one.offset, one.key, one.schema_id, one.since_ms, one.unknown_ms)
        for one in checkpoint.parked
    )
    orders = OrdersKept(checkpoint.published_to, tuple(checkpoint.outbox), parked)
    return Base(position, facts, orders)
