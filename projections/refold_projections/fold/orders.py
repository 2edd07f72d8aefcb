"""What a partition still owes to commands: those that are parked, and events to be sent out.

Source: design, section 3.1 (commands) and 3.3 (what a checkpoint keeps); docs/adr/0020.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from refold_schemas.events import CommandEmitted, CommandParked, CommandRejected

APPLIED_BEFORE: Final = frozenset({"duplicate", "run_exists"})
"""Reasons of rejections that lose nothing: what was asked for is done, or being done."""

PARKED_OVERHEAD: Final = 48
"""Bytes that a parked command takes at most in a checkpoint, beside its key."""

OrderEvent = CommandParked | CommandEmitted | CommandRejected


class ParkedCommand(NamedTuple):
    """A command that waits in `ns.commands` for its schema, or behind one with the same key.

    `key` is the record's, None where it names no run. `since_ms`: when it was parked. `unknown_ms`:
    when the registry first said that it has no such schema, None while it has not.
    """

    offset: int
    key: bytes | None
    schema_id: int
    since_ms: int
    unknown_ms: int | None


class OrdersKept(NamedTuple):
    """Orders as a checkpoint keeps them."""

    published_to: int = 0
    outbox: tuple[int, ...] = ()
    parked: tuple[ParkedCommand, ...] = ()


NOTHING: Final = OrdersKept()


class Orders:
    """Parked commands by offset, and offsets of `ns.events` that are still to be sent; both rising.

    Everything that had to be sent and stands before `published_to` was sent.
    """

    def __init__(self, kept: OrdersKept = NOTHING) -> None:
        self.published_to = kept.published_to
        self.outbox: dict[int, None] = dict.fromkeys(kept.outbox)
        self.parked: dict[int, ParkedCommand] = {}
        self.parked_bytes = 0
        """What they take in a checkpoint, at most."""
        self._queues: dict[bytes, dict[int, None]] = {}
        """Of each key the offsets of its parked commands, rising."""
        for one in kept.parked:
            self._put(one)

    def apply(self, event: OrderEvent, offset: int, at_ms: int) -> None:
        """Fold an event at its offset in `ns.events`."""
        if isinstance(event, CommandParked):
            self.park(event, at_ms)
        elif offset >= self.published_to and is_sent(event):
            self.outbox[offset] = None

    def park(self, event: CommandParked, at_ms: int) -> None:
        """A command is parked, still is, or is decided now."""
        place = event.command_offset
        before = self.parked.get(place)
        if event.state == "decided":
            if before is not None:
                self._take(before)
            return
        since_ms = at_ms if before is None else before.since_ms
        unknown_ms = None if before is None else before.unknown_ms
        if event.state == "unknown" and unknown_ms is None:
            unknown_ms = at_ms
        self._put(ParkedCommand(place, event.key, event.schema_id, since_ms, unknown_ms))

    def _put(self, command: ParkedCommand) -> None:
        if command.offset not in self.parked:
            self.parked_bytes += PARKED_OVERHEAD + len(command.key or b"")
        self.parked[command.offset] = command
        if command.key is not None:
            self._queues.setdefault(command.key, {})[command.offset] = None

    def _take(self, command: ParkedCommand) -> None:
        del self.parked[command.offset]
        self.parked_bytes -= PARKED_OVERHEAD + len(command.key or b"")
        queue = self._queues.get(command.key) if command.key is not None else None
        if queue is not None and command.key is not None:
            queue.pop(command.offset, None)
            if not queue:
                del self._queues[command.key]

    def sent(self, offsets: Iterable[int], offset_next: int) -> None:
        """These stand where they belong; `offset_next` is the reader's position."""
        for offset in offsets:
            self.outbox.pop(offset, None)
        self.published_to = max(self.published_to, next(iter(self.outbox), offset_next))

    def holds(self, key: bytes | None) -> bool:
        """Whether a command with this key is parked, so that another one has to wait behind it."""
        return key is not None and key in self._queues

    def head_of(self, key: bytes | None) -> ParkedCommand | None:
        """The first parked command with this key; None where there is none, or no key."""
        queue = self._queues.get(key) if key is not None else None
        return self.parked[next(iter(queue))] if queue else None

    def heads(self) -> list[ParkedCommand]:
        """The parked commands that wait for nothing but their schema, in order."""
        return [
            one
            for one in self.parked.values()
            if one.key is None or next(iter(self._queues[one.key])) == one.offset
        ]

    @property
    def parked_first(self) -> int | None:
        """The smallest parked offset of `ns.commands`: nothing from it on may be trimmed."""
        return next(iter(self.parked), None)

    def kept(self) -> OrdersKept:
        """For a checkpoint, or a copy."""
        return OrdersKept(self.published_to, tuple(self.outbox), tuple(self.parked.values()))


def is_sent(event: CommandEmitted | CommandRejected) -> bool:
    """Whether an event has to leave: to another partition, or to the dead letters."""
    return isinstance(event, CommandEmitted) or event.reason not in APPLIED_BEFORE
