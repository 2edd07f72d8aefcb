"""Checkers apart from the system: they see the raw log, the far system and what owners do.

`Watch.look` is called after every turn of the universe, so that log, ledger and calls are compared
at every log position. Each check says in one sentence what does not hold.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from refold.log.memory import MemoryBroker
from refold.log.partitions import partition_for
from refold.log.port import Record, Topic
from refold.testing.sim_loop import SimProcess, Universe
from refold.testing.sim_report import Journal
from refold.testing.sim_shadow import DONE, Fact, Shadow, ShadowRun, ShadowSlot, differences
from refold.testing.sim_strangers import as_ours
from refold.testing.sim_world import Call, Deed, SimVendor
from refold_projections.fold import PartitionFold, RunState, boundary
from refold_projections.fold.boundary import Boundary
from refold_schemas.codec import Codec
from refold_schemas.errors import SchemaUnavailable, UndecodableRecord

RATE_SPREAD = 1.011
"""Two boot clocks that run 0.5 % fast and slow differ by this factor at most."""
EVENTS_OF_A_RUN_MAX = 2_000


@dataclass
class Acked:
    """When a process was told that its batch stands at `offset`, and when it had sent it."""

    process: SimProcess
    sent_boot_us: int
    told_us: int


@dataclass
class Sent:
    """A command as it was published."""

    kind: str
    run_id: str
    published: int = 0
    offsets: list[int] = field(default_factory=list)


class Watch:
    """Everything that is checked while a simulation goes on."""

    def __init__(
        self, universe: Universe, broker: MemoryBroker, codec: Codec, journal: Journal
    ) -> None:
        self.universe, self.broker, self.codec, self.journal = universe, broker, codec, journal
        self.partitions = [
            PartitionWatch(self, partition) for partition in range(broker.partition_count)
        ]
        self.vendor: SimVendor | None = None
        self.acked: dict[tuple[int, int], Acked] = {}
        self.calls: dict[tuple[str, str, int], Call] = {}
        self.sent: dict[str, Sent] = {}
        self.answers: dict[str, list[str]] = {}
        self.cancelled: set[str] = set()

    # What the world tells

    def attach(self, vendor: SimVendor) -> None:
        """Watch the far system."""
        self.vendor = vendor
        vendor.on_call, vendor.on_deed = self.called, self.acted

    def look(self) -> None:
        """Read what was stored since the last look."""
        for partition in self.partitions:
            partition.look()

    def batch_told(
        self, process: SimProcess, partition: int, offset: int, count: int, sent_boot_us: int
    ) -> None:
        """An owner was told the base offset of a batch of events."""
        acked = Acked(process, sent_boot_us, self.universe.now_us)
        for at in range(offset, offset + count):
            self.acked[partition, at] = acked

    def called(self, call: Call) -> None:
        """A step function with an intent is entered: may it act?"""
        self.look()
        who = f"{call.process.name} acts for {call.run_id} {call.slot} attempt {call.attempt}"
        self.journal.note(call.process.name, f"calls {call.service} {call.slot} #{call.attempt}")
        found = self.find(call.run_id)
        slot = None if found is None else found[1].slots.get(call.slot)
        attempt = None if slot is None else slot.attempt(call.attempt)
        if found is None or slot is None or attempt is None:
            self.journal.violate(f"{who} without an intent that counts in the log")
            return
        acked = self.acked.get((found[0].number, attempt.offset))
        if acked is None or acked.process is not call.process:
            self.journal.violate(f"{who}, whose intent was not acknowledged to that process")
            return
        if call.key not in slot.keys.values():
            self.journal.violate(f"{who} under a key that its intent does not name")
        name = (call.run_id, call.slot, call.attempt)
        if name in self.calls:
            self.journal.violate(f"{who}, which {self.calls[name].process.name} did before")
        self.calls[name] = call
        elapsed_ms = (call.process.boot_us() - acked.sent_boot_us) / 1000
        if elapsed_ms > attempt.timeout_ms:
            self.journal.violate(
                f"{who} {elapsed_ms:.0f} ms after its intent was sent, its deadline was "
                f"{attempt.timeout_ms} ms"
            )
        if attempt.status not in ("open", "in_doubt"):
            self.journal.violate(f"{who}, which is recorded as {attempt.status}")

    def acted(self, deed: Deed) -> None:
        """The far system did something: the boundary must not say that it did not."""
        self.look()
        found = self.find(deed.run_id)
        slot = None if found is None else found[1].slots.get(deed.slot)
        what = f"{deed.service} of {deed.run_id} {deed.slot} attempt {deed.attempt}"
        if slot is None:
            self.journal.violate(f"{what} happened while the log says it was not started")
            return
        assert self.vendor is not None
        deeds = self.vendor.done(deed.run_id, deed.slot)
        late = any(d.late for d in deeds)
        if len(deeds) > 1 and not late and slot.policy != "escalate":
            self.journal.violate(f"{what} happened {len(deeds)} times")
        if deed.late:
            self.journal.counts["late deeds"] += 1
            return
        attempt = slot.attempt(deed.attempt)
        if slot.outcome in ("failed", "absent"):
            self.journal.violate(f"{what} happened after the log said it was {slot.outcome}")
        elif attempt is not None and attempt.status in ("absent", "denied", "never_started"):
            self.journal.violate(f"{what} happened after the attempt was said {attempt.status}")
        elif slot.policy == "escalate" and len(deeds) > 1:
            self._twice_by_person(slot, deeds, what)

    def _twice_by_person(self, slot: ShadowSlot, deeds: list[Deed], what: str) -> None:
        """An escalated effect happens again only where a person denied every earlier attempt."""
        for earlier in deeds[:-1]:
            attempt = slot.attempt(earlier.attempt)
            if not earlier.late and (attempt is None or attempt.status != "denied"):
                self.journal.violate(f"{what} happened again without a person's word")

    def find(self, run_id: str) -> "tuple[PartitionWatch, ShadowRun] | None":
        """The run and its partition, as the raw log tells them."""
        for partition in self.partitions:
            run = partition.shadow.runs.get(run_id)
            if run is not None:
                return partition, run
        return None

    def runs(self) -> dict[str, ShadowRun]:
        """Every run in the log."""
        return {k: r for p in self.partitions for k, r in p.shadow.runs.items()}

    # The end

    def settle_accounts(self) -> None:
        """What must hold when faults have stopped and everything is quiet."""
        assert self.vendor is not None
        violate = self.journal.violate
        for run_id, run in self.runs().items():
            for slot in run.slots.values():
                self._account(run_id, run, slot)
            self._released(run_id, run)
            if run.parked == "diverged":
                violate(f"{run_id} diverged though its code did not change")
            if run.events > EVENTS_OF_A_RUN_MAX:
                violate(f"{run_id} has {run.events} events")
        for (run_id, slot_name), _ in self.vendor.by_slot.items():
            found = self.find(run_id)
            if found is None or slot_name not in found[1].slots:
                violate(
                    f"the far system acted for {run_id} {slot_name}, which the log does not know"
                )
        self._commands()

    def _released(self, run_id: str, run: ShadowRun) -> None:
        """What was acquired is given back once the run has ended, or somebody said that it is not.

        (In a run being cancelled "absent" is the last word of a release too: nobody tries again.)
        """
        if run.ended is None:
            return
        taken = [s for s in run.slots.values() if s.step == "lock" and s.outcome == "ok"]
        given = [s for s in run.slots.values() if s.step == "unlock" and s.outcome is not None]
        if len(given) != len(taken):
            self.journal.violate(
                f"{run_id} has {run.ended}: {len(taken)} locks taken, {len(given)} given back"
            )

    def _account(self, run_id: str, run: ShadowRun, slot: ShadowSlot) -> None:
        assert self.vendor is not None
        if not slot.has_effect:
            return
        deeds = self.vendor.done(run_id, slot.name)
        late = any(d.late for d in deeds)
        what = f"{slot.name} of {run_id} ({slot.policy})"
        if slot.outcome in ("ok", "unrecordable") and not deeds:
            self.journal.violate(f"{what} is done in the log, but the far system never saw it")
        if slot.outcome == "ok" and len(deeds) > 1 and not late:
            self.journal.violate(f"{what} is done, the far system has it {len(deeds)} times")
        if slot.outcome in ("failed", "absent") and deeds and not late:
            self.journal.violate(f"{what} is {slot.outcome} in the log, but the far system has it")
        if slot.conflicts and not late:
            self.journal.violate(f"{what} has an EvidenceConflict without a contradiction")
        keys = {call.key for name, call in self.calls.items() if name[:2] == (run_id, slot.name)}
        if not keys <= set(slot.keys.values()):
            self.journal.violate(f"{what} was sent under a key that is not in the log")
        if run.ended is not None and slot.outcome is None and slot.undecided():
            self.journal.violate(f"{what} is open though its run has {run.ended}")

    def _commands(self) -> None:
        for partition in self.partitions:
            end = partition.commands_end()
            if partition.shadow.command_next != end:
                self.journal.violate(
                    f"partition {partition.number}: commands up to {end} were published, "
                    f"those up to {partition.shadow.command_next} are decided"
                )
            if partition.parked:
                self.journal.violate(
                    f"partition {partition.number}: {sorted(partition.parked)} are parked for ever"
                )
        stored = self._stored()
        for command_id, sent in self.sent.items():
            answers = self.answers.get(command_id, [])
            applied, on = answers.count("applied"), answers.count("sent on")
            if applied > 1:
                self.journal.violate(f"{sent.kind} {command_id} was applied {applied} times")
            if stored[command_id] < sent.published + on:
                self.journal.violate(
                    f"{sent.kind} {command_id} was sent on {on} times and stands in the log "
                    f"{stored[command_id]} times"
                )
            if len(answers) != stored[command_id]:
                self.journal.violate(
                    f"{sent.kind} {command_id} was published {stored[command_id]} times and has "
                    f"{len(answers)} decisions"
                )

    def _stored(self) -> Counter[str]:
        """How often each command stands in the log: as published, and as sent on."""
        found: Counter[str] = Counter()
        for partition in self.partitions:
            for record in self.broker.records(Topic.COMMANDS, partition.number):
                try:
                    command = self.codec.decode(as_ours(record.value or b""))
                except (UndecodableRecord, SchemaUnavailable):
                    continue
                found[getattr(command, "command_id", "")] += 1
        return found


class PartitionWatch:
    """One partition: two folds side by side, and what every record means for the world."""

    def __init__(self, watch: Watch, number: int) -> None:
        self.watch, self.number = watch, number
        self.stream = watch.broker.stream(Topic.EVENTS, number)
        self.seen = 0
        self.shadow = Shadow(watch.codec)
        self.fold = PartitionFold(watch.codec)
        self.history: list[tuple[int, str, RunState]] = []
        self.stored_us: dict[int, int] = {}
        self.scheduled: dict[tuple[str, str, int], int] = {}
        self.fired: Counter[tuple[str, str, int]] = Counter()
        self.claimed_us: dict[bytes, int] = {}
        self.parked: set[int] = set()

    def look(self) -> None:
        """Read and check the records stored since the last look."""
        records = self.stream.records
        while self.seen < len(records):
            record = records[self.seen]
            self.seen += 1
            self._record(record)

    def _record(self, record: Record) -> None:
        journal = self.watch.journal
        self.stored_us[record.offset] = self.watch.universe.now_us
        command_next = self.shadow.command_next
        fact = self.shadow.feed(record)
        applied = self.fold.apply(record)
        counts = applied.verdict <= 2
        if counts != (fact is not None):
            journal.violate(
                f"offset {record.offset}: the fold says {applied.verdict.name}, the rule written "
                f"apart says {'counts' if fact else 'does not count'}"
            )
        if fact is None:
            journal.counts[applied.verdict.name.lower()] += 1
            what = applied.verdict.name.lower()
            journal.note("log", f"{self.number}/{record.offset}: skipped, {what}")
            if applied.verdict.name == "BROKEN":
                journal.violate(f"offset {record.offset}: an owner left out an n")
            return
        journal.counts["events"] += 1
        name = type(fact.event).__name__
        who = f"{self.number}/{record.offset}"
        journal.note("log", f"{who}: {name} {fact.run_id or ''}{told(fact)}")
        if fact.kind == "claim":
            self.claimed_us[fact.claim] = self.watch.universe.now_us
        if self.fold.position.command_next != self.shadow.command_next:
            journal.violate(f"offset {record.offset}: the folds differ about the next command")
        self._command(fact, command_next)
        check = getattr(self, f"_check_{name}", None)
        if check is not None:
            check(fact)
        self._compare(fact)

    def _compare(self, fact: Fact) -> None:
        """The two folds must agree about the run, and its boundary must be true."""
        run_ids = [fact.run_id] if fact.run_id is not None else list(self.shadow.runs)
        for run_id in run_ids:
            shadow, state = self.shadow.runs.get(run_id), self.fold.runs.get(run_id)
            if (shadow is None) != (state is None):
                self.watch.journal.violate(f"only one of the folds knows {run_id}")
            if shadow is None or state is None:
                continue
            if fact.run_id is not None:
                self.history.append((fact.offset, run_id, state))
            problem = differences(shadow, state) or self._untrue(
                shadow, boundary(state, self.fold.claim_id)
            )
            if problem:
                self.watch.journal.violate(f"{run_id} at offset {fact.offset}: {problem}")

    def _untrue(self, run: ShadowRun, told: Boundary) -> str | None:
        """What the boundary says that is not so, by the raw log and the far system."""
        vendor = self.watch.vendor
        done = {entry.slot for entry in told.done}
        under_way = {entry.slot for entry in told.under_way}
        in_doubt = {entry.slot for entry in told.in_doubt}
        failed = {entry.slot for entry in told.failed}
        for slot in run.slots.values():
            if slot.step == "sleep":
                continue
            undecided = slot.undecided()
            if slot.outcome in ("ok", "unrecordable"):
                place = done
            elif undecided and not slot.has_effect:
                continue  # in doubt it is as good as not started: it runs again
            elif undecided:
                mine = all(a.claim == self.shadow.claim and a.status == "open" for a in undecided)
                place = under_way if mine else in_doubt
            elif slot.outcome or any(a.status == "failed" for a in slot.attempts):
                place = failed
            else:
                place = set() if slot.attempts else failed
            if place and slot.name not in place:
                return f"the boundary has {slot.name} in the wrong place: {told}"
            acted = vendor is None or vendor.done(run.run_id, slot.name)
            if slot.name in done and slot.has_effect and not acted:
                return f"{slot.name} is said done, the far system never saw it"
        known = done | under_way | in_doubt | failed
        if not known <= set(run.slots):
            return (
                f"the boundary names slots that the log does not: {sorted(known - set(run.slots))}"
            )
        return None

    # Single events

    def _command(self, fact: Fact, before: int) -> None:
        watch, event = self.watch, fact.event
        command_id = getattr(event, "command_id", None)
        if fact.kind != "event":
            return
        if fact.command_next != self._following(before) and fact.command_next != before:
            watch.journal.violate(
                f"offset {fact.offset}: the next command goes from {before} to {fact.command_next}"
            )
        if command_id is not None:
            name = type(event).__name__
            kind = {"CommandRejected": "rejected", "CommandEmitted": "sent on"}.get(name, "applied")
            watch.answers.setdefault(command_id, []).append(kind)
        if fact.command_next > before and self._is_parked(fact):
            self.parked.add(event.command_offset)

    def _following(self, before: int) -> int:
        """The position behind the first command from there on; offsets may have holes."""
        commands = self.watch.broker.stream(Topic.COMMANDS, self.number)
        at = bisect_left(commands.offsets, before)
        return commands.offsets[at] + 1 if at < len(commands.offsets) else before + 1

    def commands_end(self) -> int:
        """The position behind the last command that stands there."""
        offsets = self.watch.broker.stream(Topic.COMMANDS, self.number).offsets
        return offsets[-1] + 1 if offsets else 0

    @staticmethod
    def _is_parked(fact: Fact) -> bool:
        event = fact.event
        if type(event).__name__ != "CommandParked":
            return False
        return (
            event.state in ("waiting", "behind") and event.command_offset == fact.command_next - 1
        )

    def _check_CommandParked(self, fact: Fact) -> None:
        event = fact.event
        if event.command_offset not in self.parked:
            self.watch.journal.violate(
                f"the command at {event.command_offset} is {event.state} and was not parked"
            )
        if event.state == "decided":
            self.parked.discard(event.command_offset)

    def _check_CommandEmitted(self, fact: Fact) -> None:
        event = fact.event
        if event.partition == self.number:
            self.watch.journal.violate(f"{event.command_id} is sent to where it is")

    def _check_RunStarted(self, fact: Fact) -> None:
        home = partition_for(fact.run_id or "", self.watch.broker.partition_count)
        if home != self.number:
            self.watch.journal.violate(f"{fact.run_id} was started on partition {self.number}")

    def _check_TimerScheduled(self, fact: Fact) -> None:
        event = fact.event
        name = (fact.run_id or "", event.timer_id, event.generation)
        if name in self.scheduled:
            self.watch.journal.violate(
                f"timer {event.timer_id} of {fact.run_id} is scheduled twice in generation "
                f"{event.generation}"
            )
        self.scheduled[name] = event.deadline_ms

    def _check_TimerFired(self, fact: Fact) -> None:
        event, journal = fact.event, self.watch.journal
        name = (fact.run_id or "", event.timer_id, event.generation)
        self.fired[name] += 1
        what = f"timer {event.timer_id} of {fact.run_id}, generation {event.generation},"
        if self.fired[name] > 1:
            journal.violate(f"{what} fired twice")
        if name not in self.scheduled:
            journal.violate(f"{what} fired without being scheduled")
        elif fact.at_ms < self.scheduled[name]:
            journal.violate(f"{what} fired {self.scheduled[name] - fact.at_ms} ms early")

    def _check_StepResolved(self, fact: Fact) -> None:
        event = fact.event
        if event.verdict != "absent" or event.evidence not in ("lookup", "person"):
            return
        run = self.shadow.runs[fact.run_id or ""]
        slot = run.slots[event.slot]
        now_us = self.watch.universe.now_us
        what = f"{event.slot} of {fact.run_id} was said absent by a {event.evidence}"
        vendor = self.watch.vendor
        if vendor is None:
            return
        deeds = vendor.done(run.run_id, slot.name)
        if deeds and not any(d.late for d in deeds):
            self.watch.journal.violate(f"{what}, but the far system has it")
        for attempt in slot.attempts:
            if attempt.settled_offset != fact.offset:
                continue
            call = self.watch.calls.get((run.run_id, slot.name, attempt.number))
            if attempt.claim == fact.claim:
                if call is None:
                    continue
                end_us = call.ended_us if call.ended_us is not None else now_us
                waited_us, least_ms = now_us - end_us, attempt.settle_ms
            else:
                waited_us = now_us - self.claimed_us[fact.claim]
                least_ms = attempt.timeout_ms + attempt.settle_ms
            if waited_us * RATE_SPREAD < least_ms * 1000:
                self.watch.journal.violate(
                    f"{what} {waited_us / 1000:.0f} ms after attempt {attempt.number} could still "
                    f"act, {least_ms} ms is the least"
                )

    def _check_StepFailed(self, fact: Fact) -> None:
        event = fact.event
        vendor = self.watch.vendor
        deeds = vendor.done(fact.run_id or "", event.slot) if vendor else []
        if any(d.attempt == event.attempt and not d.late for d in deeds):
            self.watch.journal.violate(
                f"{event.slot} of {fact.run_id}: attempt {event.attempt} is recorded as failed, "
                f"but the far system has it"
            )

    def _check_AttemptReported(self, fact: Fact) -> None:
        event, vendor = fact.event, self.watch.vendor
        if vendor is None:
            return
        run = self.shadow.runs.get(fact.run_id or "")
        slot = run.slots.get(event.slot) if run is not None else None
        named = [a for a in slot.attempts if (a.claim, a.n) == (fact.claim, fact.n)] if slot else []
        if not named and event.outcome == "never_started":
            return  # of an intent that does not count: nobody acted for it
        deeds = vendor.done(fact.run_id or "", event.slot)
        mine = [d for d in deeds if d.attempt == event.attempt]
        what = f"{event.slot} of {fact.run_id}: attempt {event.attempt} is reported {event.outcome}"
        has_effect = slot is None or slot.has_effect
        if event.outcome == "completed" and has_effect and not deeds:
            self.watch.journal.violate(f"{what}, but the far system never saw it")
        if event.outcome == "never_started" and mine:
            self.watch.journal.violate(f"{what}, but the far system has it")
        if event.outcome == "never_started":
            call = self.watch.calls.get((fact.run_id or "", event.slot, event.attempt))
            if call is not None:
                self.watch.journal.violate(f"{what}, but {call.process.name} had begun it")

    def _check_StepCompleted(self, fact: Fact) -> None:
        run = self.shadow.runs.get(fact.run_id or "")
        slot = None if run is None else run.slots.get(fact.event.slot)
        if slot is None or not slot.policy:
            return
        attempt = slot.attempt(fact.event.attempt)
        if attempt is None or attempt.status != DONE:
            self.watch.journal.violate(f"{slot.name} of {fact.run_id} completed without an intent")


_SHOWN = ("slot", "timer_id", "attempt", "verdict", "evidence", "outcome", "reason", "detail")


def told(fact: Fact) -> str:
    """What a line of the trace says of an event beside its name."""
    event = fact.event
    if fact.kind == "claim":
        return f"{fact.claim.hex()[:6]} of {event.process}"
    found = [str(getattr(event, name)) for name in _SHOWN if getattr(event, name, None)]
    return f" {' '.join(found)[:160]}" if found else ""


def states_at(history: list[tuple[int, str, Any]], offset_next: int) -> dict[str, Any]:
    """The state of each run before `offset_next`, from the states after each event."""
    states: dict[str, Any] = {}
    for offset, run_id, state in history:
        if offset >= offset_next:
            break
        states[run_id] = state
    return states
