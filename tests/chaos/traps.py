"""Moments at which a real worker kills or freezes itself: armed from outside, sprung once.

A trap is a file in `FOLDER/armed` that is named after its moment and holds a signal's name. The
worker that comes by takes it away, which only one can, and sends itself the signal.
"""

import os
import signal
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from refold.log.kafka import KafkaLog
from refold.log.port import Ack, Entry, Topic
from refold_schemas.codec import KIND_CLAIM, KIND_REPORT, Codec, RecordHeader
from refold_schemas.errors import UndecodableRecord
from refold_schemas.events import PartitionReleased, StepCompleted, StepIntended
from refold_schemas.registry import FileRegistry


class Moment(StrEnum):
    """Where a worker can be: around appends to the log, and around a step's call."""

    BEFORE_INTENT = "before-intent"
    AFTER_INTENT = "after-intent"
    BEFORE_CALL = "before-call"
    DURING_CALL = "during-call"
    AFTER_CALL = "after-call"
    BEFORE_OUTCOME = "before-outcome"
    AFTER_OUTCOME = "after-outcome"
    BEFORE_CHECKPOINT = "before-checkpoint"
    AFTER_CHECKPOINT = "after-checkpoint"
    BEFORE_CLAIM = "before-claim"
    AFTER_CLAIM = "after-claim"
    BEFORE_RELEASE = "before-release"


AROUND = {
    "intent": (Moment.BEFORE_INTENT, Moment.AFTER_INTENT),
    "outcome": (Moment.BEFORE_OUTCOME, Moment.AFTER_OUTCOME),
    "checkpoint": (Moment.BEFORE_CHECKPOINT, Moment.AFTER_CHECKPOINT),
    "claim": (Moment.BEFORE_CLAIM, Moment.AFTER_CLAIM),
    "release": (Moment.BEFORE_RELEASE, None),
}
_KINDS = {StepIntended: "intent", StepCompleted: "outcome", PartitionReleased: "release"}


class Traps:
    """The traps of a folder: armed by the one who does the faults, come by by the workers."""

    def __init__(self, folder: Path) -> None:
        self.armed, self.sprung = folder / "armed", folder / "sprung"
        self.armed.mkdir(parents=True, exist_ok=True)
        self.sprung.mkdir(exist_ok=True)

    def arm(self, moment: Moment, number: signal.Signals) -> None:
        """The next worker that comes by the moment sends itself the signal."""
        part = self.sprung / f".{moment}"
        part.write_text(number.name)
        part.rename(self.armed / moment)

    def disarm(self, moment: Moment) -> bool:
        """Take a trap away; False if somebody has come by it."""
        try:
            (self.armed / moment).unlink()
        except FileNotFoundError:
            return False
        return True

    def caught(self) -> list[tuple[str, int, int]]:
        """`(moment, pid, nanoseconds)` of each trap that was sprung."""
        found = [path.name.split(".") for path in self.sprung.glob("[!.]*")]
        return [(moment, int(pid), int(at)) for moment, pid, at in found]

    def passes(self, moment: Moment | None) -> None:
        """Come by a moment; a SIGKILL ends the process here, a SIGSTOP holds it here."""
        if moment is None:
            return
        taken = self.sprung / f"{moment}.{os.getpid()}.{time.time_ns()}"
        try:
            os.rename(self.armed / moment, taken)
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.Signals[taken.read_text()])

    def watch_log(self) -> None:
        """Let every Kafka log of this process come by the moments around its appends."""
        append = KafkaLog.append
        codec = Codec(FileRegistry())

        async def watched(
            log: KafkaLog, topic: Topic, partition: int, entries: Sequence[Entry]
        ) -> Ack:
            if not os.listdir(self.armed):
                return await append(log, topic, partition, entries)
            around = [AROUND[kind] for kind in kinds_of(codec, topic, entries)]
            for before, _ in around:
                self.passes(before)
            ack = await append(log, topic, partition, entries)
            for _, after in around:
                self.passes(after)
            return ack

        patched: Any = KafkaLog
        patched.append = watched


def kinds_of(codec: Codec, topic: Topic, entries: Sequence[Entry]) -> list[str]:
    """What a batch holds of what moments are named after, each once."""
    if topic is Topic.SNAPSHOTS:
        return ["checkpoint"]
    if topic is not Topic.EVENTS:
        return []
    found: dict[str, None] = {}
    for entry in entries:
        header = RecordHeader.unpack(entry.header or b"")
        if header.kind == KIND_CLAIM:
            found["claim"] = None
        elif header.kind != KIND_REPORT:
            try:
                event = codec.decode(entry.value or b"")
            except UndecodableRecord:
                continue
            kind = _KINDS.get(type(event))
            if kind is not None:
                found[kind] = None
    return list(found)
