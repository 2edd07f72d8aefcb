"""What the fold needs to go on with a run, packed into its rows: a snapshot, slot by slot.

A run's row holds its snapshot without slots, a slot's row a snapshot with that slot alone: so a
step costs the same whatever the run's length, and rows can be folded on from, as snapshots can.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

from refold_projections.fold import (
    Mark,
    RunState,
    Slot,
    from_snapshot,
    slot_from,
    slot_kept,
    to_snapshot,
)
from refold_schemas.codec import Codec
from refold_schemas.snapshots import RunSnapshot, SlotKept
from refold_schemas.values import Value

_NOTHING = Value("", 1, "j1", None, b"", None)
_NOBODY = to_snapshot(RunState("", "", "", _NOTHING, bytes(32), 0), Mark(0, bytes(16), 0), ())
_FIELDS = tuple(field.name for field in dataclasses.fields(_NOBODY))
_VALUES = tuple(getattr(_NOBODY, one) for one in _FIELDS)
_AT = _FIELDS.index("slots")
_BEFORE, _AFTER = _VALUES[:_AT], _VALUES[_AT + 1 :]


def pack_run(codec: Codec, state: RunState, mark: Mark) -> bytes:
    """The run without its slots."""
    return codec.encode(to_snapshot(state, mark, ()))


class Packer:
    """Packs slots: of the snapshots that hold one slot each only that differs.

    What stands before and behind it is the same in all of them, and so is encoded once.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._write = codec.part_writer(RunSnapshot, SlotKept)
        empty = _whole(codec, ())
        probe = slot_kept(Slot("s", "s", 0))
        one = _whole(codec, (probe,))
        # An array of Avro: how many items, those, and a zero; an empty one is the zero alone.
        head = 0
        while one[head] == empty[head]:
            head += 1
        self._before = empty[:head] + ONE_ITEM
        self._after = empty[head:]
        assert self._write(probe, self._before) + self._after == one

    def slot(self, slot: Slot) -> bytes:
        """One slot, values included."""
        kept = slot_kept(slot)
        try:
            return self._write(kept, self._before) + self._after
        except Exception:  # whatever it was, the whole message is refused with the field's name
            return _whole(self._codec, (kept,))


ONE_ITEM = b"\x02"
"""The number one as Avro has it."""


def _whole(codec: Codec, slots: tuple[SlotKept, ...]) -> bytes:
    values: Any = (*_BEFORE, slots, *_AFTER)
    return codec.encode(RunSnapshot(*values))


def unpack(codec: Codec, run: bytes, slots: Iterable[bytes]) -> tuple[RunState, Mark]:
    """The state and the mark that were packed. Raises as `Codec.decode`."""
    kept = [codec.decode(one).slots[0] for one in slots]
    kept.sort(key=lambda one: one.born)
    return from_snapshot(dataclasses.replace(codec.decode(run), slots=tuple(kept)))


def unpack_slot(codec: Codec, packed: bytes) -> Slot:
    """One slot. Raises as `Codec.decode`."""
    return slot_from(codec.decode(packed).slots[0])
