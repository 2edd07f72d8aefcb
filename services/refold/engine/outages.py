"""Outages: what partitions of one worker meet together is told once, and once that it is over."""

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from refold_schemas.errors.base import told

GATHER_S: Final = 5.0
"""How long the first partition's trouble waits for those that meet the same."""


class Trouble(NamedTuple):
    """What one partition, or several, cannot do for now; `code` is the warning's, ` (R016)`."""

    one: str
    many: str
    code: str


UNCLAIMED: Final = Trouble(
    "partition {partition} is not claimed", "{count} partitions are not claimed", ""
)
UNREAD: Final = Trouble(
    "commands cannot be read", "commands of {count} partitions cannot be read", " (R016)"
)
NO_CHECKPOINT: Final = Trouble(
    "no checkpoint could be written",
    "no checkpoint of {count} partitions could be written",
    " (R016)",
)
NOT_DELETED: Final = Trouble(
    "old snapshots could not be deleted",
    "old snapshots of {count} partitions could not be deleted",
    " (R016)",
)
NO_SCHEMA: Final = Trouble(
    "parked commands wait", "parked commands of {count} partitions wait", " (R024)"
)
UNSENT: Final = Trouble(
    "messages wait to be sent", "messages of {count} partitions wait to be sent", " (R026)"
)

Kind = tuple[Trouble, type[BaseException]]


class Outages:
    """The troubles that the partitions of one worker have at this moment.

    A kind of trouble is told when every partition has it or GATHER_S after the first one had: so
    its number is known. It is told again once no partition has had it in between: a registry that
    is away for days keeps no outage of a broker quiet. That all is over is told when no partition
    has any trouble. `tell(kind, partition, text)` is told of it, the partition -1 for several;
    `count` says how many partitions the worker has.
    """

    def __init__(
        self,
        tell: Callable[[str, int, str], None],
        count: Callable[[], int],
        boot_ms: Callable[[], int],
    ) -> None:
        self._tell, self._count, self._boot_ms = tell, count, boot_ms
        self._now: dict[tuple[int, Trouble], type[BaseException]] = {}
        self._texts: dict[Kind, str] = {}
        """Of kinds that are gathered, what the first one said."""
        self._timers: dict[Kind, asyncio.TimerHandle] = {}
        self._told: set[Kind] = set()
        self._concerned: set[int] = set()
        self._since_ms = 0

    def has(
        self, partition: int, trouble: Trouble, error: BaseException, text: str | None = None
    ) -> None:
        """The partition cannot do it, and tries again. `text` says why; else the error does."""
        if not self._now:
            self._since_ms = self._boot_ms()
        kind = (trouble, type(error))
        self._now[partition, trouble] = kind[1]
        self._concerned.add(partition)
        if kind in self._told:
            return
        if kind not in self._timers:
            self._texts[kind] = text or told(str(error)).brief
            later = asyncio.get_running_loop().call_later(GATHER_S, self._say, kind)
            self._timers[kind] = later
        if len(self._those(kind)) >= self._count():
            self._say(kind)

    def mended(self, partition: int, trouble: Trouble | None = None) -> None:
        """The partition can do it again; None: whatever it was."""
        if self._drop(partition, trouble) and not self._now:
            what = f"partition {partition}"
            count = len(self._concerned)
            if count > 1:
                what = f"{count} partitions"
            lasted_s = (self._boot_ms() - self._since_ms) / 1000
            self._end()
            text = f"what was tried again works again, after {lasted_s:.0f} s ({what})"
            self._tell("going_on", partition if count == 1 else -1, text)

    def left(self, partition: int) -> None:
        """The partition is not this worker's any more: nobody knows whether it is over."""
        if self._drop(partition, None) and not self._now:
            self._end()

    def _drop(self, partition: int, trouble: Trouble | None) -> bool:
        """Forget troubles; what was not told yet is told first. Whether there was any."""
        if not self._now:
            return False
        found = [
            key
            for key in self._now
            if key[0] == partition and (trouble is None or key[1] == trouble)
        ]
        for key in found:
            kind = (key[1], self._now[key])
            if kind in self._timers and len(self._those(kind)) == 1:
                self._say(kind)
            del self._now[key]
        if found:
            lasting = {trouble for _, trouble in self._now}
            self._told = {kind for kind in self._told if kind[0] in lasting}
        return bool(found)

    def _end(self) -> None:
        for kind in list(self._timers):
            self._timers.pop(kind).cancel()
        self._texts.clear()
        self._told.clear()
        self._concerned.clear()

    def _those(self, kind: Kind) -> list[int]:
        trouble, error = kind
        return [n for (n, what), why in self._now.items() if what == trouble and why is error]

    def _say(self, kind: Kind) -> None:
        self._timers.pop(kind).cancel()
        text, those = self._texts.pop(kind), self._those(kind)
        trouble = kind[0]
        if not those:  # each has another trouble by now, which is told
            return
        self._told.add(kind)
        partition = those[0] if len(those) == 1 else -1
        what = trouble.one if len(those) == 1 else trouble.many
        what = what.replace("{partition}", str(partition)).replace("{count}", str(len(those)))
        self._tell("warning", partition, f"{what}; it is tried again: {text}{trouble.code}")
