"""Random histories of a partition: every kind of event, and what must not count."""

import copy
from random import Random
from typing import Any

from refold.log import Record, Topic
from refold.log.memory import MemoryBroker
from refold_schemas.events import (
    AttemptReported,
    CommandRejected,
    EvidenceConflict,
    RunBlocked,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunFailed,
    RunResumed,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepResolved,
    TimerFired,
    TimerScheduled,
)
from refold_schemas.values import ErrorInfo, ModelUse, encode_value
from support.written_log import KEY, NOON_MS, Writer, done, intended, started

ERROR = ErrorInfo("CardDeclined", "app:CardDeclined", "no", None)
OK = encode_value("ok")


class Log:
    """A hand-written partition, and its records."""

    def __init__(self, at_ms: int = NOON_MS) -> None:
        self.broker = MemoryBroker("figures", partition_count=1, now_ms=self._now_ms)
        self.broker.exists = True
        self.writer = Writer(self.broker, at_ms=at_ms)

    def _now_ms(self) -> int:
        return self.writer.at_ms if hasattr(self, "writer") else NOON_MS

    @property
    def records(self) -> list[Record]:
        return list(self.broker.records(Topic.EVENTS, 0))


STEPS = ("charge", "mail", "load")


def history(seed: int, length: int, *, at_ms: int = NOON_MS) -> list[Record]:
    """A random log: claims, runs, steps of every outcome, fenced and duplicate records."""
    random = Random(seed)
    log = Log(at_ms)
    writer = log.writer
    writer.claim()
    old = writer
    runs: list[str] = []
    for number in range(length):
        run_id = random.choice([f"run-{number}", *runs[-4:], *runs[-4:], "run-never"])
        step = random.choice(STEPS)
        slot = random.choice([f"{step}#1", f"{step}#2", f"gather#1[a]/{step}#1"])
        attempt = random.randint(1, 2)
        resolved = random.choice(["done", "absent", "failed", "never_started"])
        choice = random.randrange(22)
        if choice == 0:
            old = copy.copy(writer)
            writer.claim(f"worker-{number}", process=f"p{number}")
        elif choice == 1:
            old.write(run_id, *started())  # fenced, unless nobody has claimed since
            if old is not writer and old.claim_id == writer.claim_id:
                writer.n = old.n
        elif choice == 2:
            writer.again(run_id, done(slot), n=max(writer.n - 1, 0))
        elif choice == 3:
            writer.raw(run_id, b"junk", header=b"?")
        elif choice == 4:
            reported = AttemptReported(slot, attempt, KEY, "completed", OK, None, "w")
            writer.report(run_id, reported, writer.claim_id, 1)
        else:
            if run_id not in runs and run_id != "run-never":
                runs.append(run_id)
                writer.write(run_id, *started(run=random.choice(["shop", "refund"])))
            event: Any = random.choice(
                [
                    done(slot),
                    intended(slot, attempt=attempt),
                    intended(slot, attempt=attempt),
                    StepCompleted(
                        slot, attempt, OK, None, ModelUse("m", None, 3, 1, 5), None, None, None
                    ),
                    StepFailed(
                        slot, attempt, ERROR, random.random() < 0.5, False, None, None, None
                    ),
                    StepInDoubt(slot, attempt, "timeout", random.random() < 0.3),
                    StepResolved(
                        slot,
                        attempt,
                        resolved,
                        "lookup",
                        None,
                        None,
                        random.random() < 0.5,
                        None,
                        None,
                        None,
                    ),
                    EvidenceConflict(slot, attempt, "absent", "completed"),
                    TimerScheduled(slot, 1, random.choice(["sleep", "proof"]), slot, 5),
                    TimerFired(slot, 1),
                    RunBlocked("limit", "x"),
                    RunResumed(None, None, None, False, None),
                    RunCancelRequested("ann", "no", f"c{number}"),
                    random.choice([RunCompleted(OK), RunFailed(ERROR), RunCancelled("no")]),
                    random.choice([RunCompleted(OK), RunFailed(ERROR), RunCancelled("no")]),
                    CommandRejected(f"c{number}", "StartRun", 1, "run_exists", "x", None),
                ]
            )
            writer.write(run_id, event)
        writer.at_ms += random.choice([0, 0, 500, 30_000, 600_000])
    return log.records
