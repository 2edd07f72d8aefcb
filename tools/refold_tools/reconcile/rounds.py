"""One look at a window of effects: select, ask, judge, and put on record what is new."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from refold.app import App
from refold.client import Client
from refold.log import Topic
from refold_projections.fold import Finding, PartitionFold, RunState
from refold_schemas.codec.learning import decode
from refold_schemas.commands import RecordFinding
from refold_schemas.errors import (
    BadCommandText,
    OffsetOutOfRange,
    SchemaUnavailable,
    UndecodableRecord,
)
from refold_schemas.errors.cli import CommandRefused, CommandUndecided, CommandUnknown
from refold_schemas.values import Value
from refold_tools.reconcile.asking import Asking, Limits
from refold_tools.reconcile.judging import Answer, Judged, Recorded, judge, settled_ms
from refold_tools.reconcile.selecting import (
    ASK,
    YOUNG,
    Effect,
    Place,
    Window,
    fold_and_claim,
    result_of,
    results_in_log,
    select,
)

WITHIN_S = 10.0
WITHIN_ALONE_S = 1.0
BY = "reconcile"
CARRIED_MAX = 100_000
"""So many keys that gave no answer are asked again in the next round."""

NEW, KNOWN, ACCEPTED = "new", "known", "accepted"


class Told(NamedTuple):
    """A finding as this look left it.

    `state`: new (or changed), known (on record already), accepted (a person has dealt with it).
    `recorded`: it stands on record; False where no worker has taken it yet, or in a dry run.
    """

    run_id: str
    finding: Finding
    state: str
    recorded: bool


class Unanswered(NamedTuple):
    """An effect of which the far system said nothing that could be believed, or compared."""

    effect: Effect
    why: str


@dataclass
class Report:
    """What one look came to. `agreed` counts effects of which nothing was found.

    `settled` are findings of earlier looks that agree now. `not_asked` counts effects by why:
    young, busy, no_lookup, no_code, beyond (more than one round asks).
    """

    window: Window
    dry: bool = False
    asked: int = 0
    lookups: int = 0
    agreed: int = 0
    findings: list[Told] = field(default_factory=list)
    settled: list[Told] = field(default_factory=list)
    unknown: list[Unanswered] = field(default_factory=list)
    not_asked: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)
    """What was refused, so that it is not on record, in the refusal's words."""
    unrecorded: list[str] = field(default_factory=list)
    """Of what nobody knows whether it is on record, and why; a later look sees."""

    @property
    def has_findings(self) -> bool:
        """Whether anything is open that no person has dealt with."""
        return any(one.state != ACCEPTED for one in self.findings)


class Reconciler:
    """Looks again and again; between two looks it remembers what it could not learn.

    `now_ms` is the wall clock. Nothing is repaired: what it writes are findings.
    """

    def __init__(
        self,
        client: Client,
        app: App,
        now_ms: Callable[[], int],
        *,
        limits: Limits | None = None,
        by: str = BY,
        within: timedelta | None = None,
        dry: bool = False,
    ) -> None:
        self._client, self._app, self._now_ms = client, app, now_ms
        self._limits = limits or Limits()
        self._by, self._within, self._dry = by, within, dry
        self._again: frozenset[str] = frozenset()
        self._alone: dict[int, bool] = {}

    async def look(self, window: Window) -> Report:
        """One look at the effects of the window, and at what earlier ones left open.

        Raises what reading the log raises. Far systems that do not answer are in the report.
        """
        report = Report(window, self._dry)
        again: set[str] = set()
        left = self._limits.keys_max
        self._alone = {}
        for partition in range(self._client.routed):
            left = await self._partition(partition, window, report, again, left)
        self._again = frozenset(sorted(again)[:CARRIED_MAX])
        return report

    async def _partition(
        self, partition: int, window: Window, report: Report, again: set[str], left: int
    ) -> int:
        fold, claim_id = await fold_and_claim(self._client, partition)
        to_ask: list[Effect] = []
        judged: list[tuple[Effect, Judged]] = []
        now_ms = self._now_ms()
        nothing = Recorded(None, "")
        for effect in select(fold, claim_id, partition, self._app, window, self._again, now_ms):
            if effect.how == ASK and len(to_ask) < left:
                to_ask.append(effect)
                continue
            report.not_asked["beyond" if effect.how == ASK else effect.how] += 1
            if effect.how in (ASK, YOUNG):
                again.add(effect.entry.effect_key)
            judged.append((effect, self._judge(effect, None, nothing, now_ms)))
        answers: list[tuple[Effect, Answer]] = []
        asking = Asking(self._limits)
        await asking.ask_all(to_ask, lambda effect, answer: answers.append((effect, answer)))
        report.asked += len(to_ask)
        report.lookups += asking.lookups
        results = await self._results(partition, answers)
        now_ms = self._now_ms()
        for effect, answer in answers:
            recorded = result_of(effect) or _from_log(results, effect)
            said = self._judge(effect, answer, recorded, now_ms)
            judged.append((effect, said))
            if said.unknown:
                report.unknown.append(Unanswered(effect, said.unknown))
                if answer.kind == "none":
                    again.add(effect.entry.effect_key)
            elif not said.findings:
                report.agreed += 1
        await self._record(partition, fold, judged, report)
        return left - len(to_ask)

    def _judge(
        self, effect: Effect, answer: Answer | None, recorded: Recorded, now_ms: int
    ) -> Judged:
        returns = None if effect.definition is None else effect.definition.returns
        return judge(effect.state, effect.slot, effect.entry, answer, recorded, returns, now_ms)

    async def _results(
        self, partition: int, answers: list[tuple[Effect, Answer]]
    ) -> dict[Place, Value]:
        """Results that snapshots do not hold, of what was found there; one pass, or none."""
        places = frozenset(
            effect.place
            for effect, answer in answers
            if answer.kind == "found" and result_of(effect) is None
        )
        return await results_in_log(self._client, partition, places) if places else {}

    # ---- on record

    async def _record(
        self,
        partition: int,
        fold: PartitionFold,
        judged: list[tuple[Effect, Judged]],
        report: Report,
    ) -> None:
        waiting = await self._waiting(partition, fold)
        for effect, said in judged:
            known = effect.state.findings
            run_id = effect.state.run_id
            for finding in said.findings:
                kept = known.get(finding.finding_id)
                if kept is not None and kept.detail == finding.detail and kept.status != "agreed":
                    state = KNOWN if kept.is_open else ACCEPTED
                    report.findings.append(Told(run_id, kept, state, True))
                    continue
                recorded = await self._say(partition, run_id, finding, waiting, report)
                report.findings.append(Told(run_id, finding, NEW, recorded))
            self._still_open(effect, said, report)
            for kept in _agreed(effect.state, effect.entry.effect_key, said):
                recorded = await self._say(partition, run_id, kept, waiting, report)
                report.settled.append(Told(run_id, kept, NEW, recorded))

    @staticmethod
    def _still_open(effect: Effect, said: Judged, report: Report) -> None:
        """What is open on record, and was neither found again nor agrees: nothing new is known."""
        found = {one.finding_id for one in said.findings}
        for kept in effect.state.findings.values():
            about = kept.effect_key == effect.entry.effect_key and kept.is_open
            if about and kept.finding_id not in found and kept.kind not in said.agrees:
                report.findings.append(Told(effect.state.run_id, kept, KNOWN, True))

    async def _waiting(
        self, partition: int, fold: PartitionFold
    ) -> frozenset[tuple[str, str, str]]:
        """Findings that were sent before and that no worker has decided yet."""
        if self._dry:
            return frozenset()
        log, codec = self._client.log, self._client.codec
        _, end = await log.bounds(Topic.COMMANDS, partition)
        offset = fold.position.command_next
        found: set[tuple[str, str, str]] = set()
        while offset < end:
            try:
                records = await log.read(Topic.COMMANDS, partition, offset)
            except OffsetOutOfRange:
                break
            for record in records:
                try:
                    command = await decode(codec, record.value or b"")
                except (UndecodableRecord, SchemaUnavailable):
                    continue
                if isinstance(command, RecordFinding):
                    found.add((command.finding_id, command.status, command.detail))
            if not records:
                break
            offset = records[-1].offset + 1
        return frozenset(found)

    async def _say(
        self,
        partition: int,
        run_id: str,
        finding: Finding,
        waiting: frozenset[tuple[str, str, str]],
        report: Report,
    ) -> bool:
        """Have it put on record; False where that is not certain yet."""
        if self._dry or (finding.finding_id, finding.status, finding.detail) in waiting:
            return False
        within = await self._patience(partition)
        try:
            await self._client.record_finding(run_id, finding, by=self._by, within=within)
        except CommandUndecided:
            self._alone[partition] = True  # nobody takes commands here: wait for no further one
            return False
        except CommandUnknown as error:
            report.unrecorded.append(error.message)
            return False
        except (CommandRefused, BadCommandText) as error:
            report.refused.append(error.message)
            return False
        return True

    async def _patience(self, partition: int) -> timedelta:
        if self._alone.get(partition):
            return timedelta(0)
        if self._within is not None:
            return self._within
        alone = await self._client.owner_lives(partition) is False
        return timedelta(seconds=WITHIN_ALONE_S if alone else WITHIN_S)


def _agreed(state: RunState, effect_key: str, said: Judged) -> list[Finding]:
    """Open findings of this effect that are not so any more, as they are to be settled."""
    return [
        kept._replace(status="agreed", at_ms=0)
        for kept in state.findings.values()
        if kept.is_open and kept.effect_key == effect_key and kept.kind in said.agrees
    ]


def _from_log(results: dict[Place, Value], effect: Effect) -> Recorded:
    value = results.get(effect.place)
    if value is None:
        return Recorded(None, "its result is in the log no more (archived), or nobody can read it")
    return Recorded(value)


async def accept(
    client: Client, finding_id: str, *, by: str, why: str, within: timedelta | None
) -> tuple[str, Finding] | None:
    """Say that a person has dealt with a finding; None where no run has one of this id.

    Reads all partitions until it is found. Raises NothingToSettle, CommandUndecided, and what
    reading the log raises.
    """
    for partition in range(client.routed):
        fold = await client.fold_of(partition)
        for state in fold.runs.values():
            kept = state.findings.get(finding_id)
            if kept is None:
                continue
            said = kept._replace(status="accepted")
            if within is None:
                alone = await client.owner_lives(partition) is False
                within = timedelta(seconds=WITHIN_ALONE_S if alone else WITHIN_S)
            await client.record_finding(state.run_id, said, by=by, why=why, within=within)
            return state.run_id, said
        await asyncio.sleep(0)
    return None


__all__ = ["Reconciler", "Report", "Told", "Unanswered", "accept", "settled_ms"]
