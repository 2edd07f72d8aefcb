"""What must hold in every world, and when a run has settled. Each broken property is one sentence.

The checks compare the log's fold with what the far system did and with the reports that were
stored, neither of which the protocol is shown.
"""

from model.decide import has_lookup
from model.fold import (
    DENIED,
    DONE,
    EXCLUDED,
    NEVER,
    STEP_FAILED,
    UNSETTLED,
    State,
    conflicts,
    excess,
    is_under_way,
)
from model.records import INTENTS, SAYS_COMPLETED, Event, Report
from model.settings import ESCALATE
from model.transitions import DECIDES, SENDS, Action, Protocol
from model.world import CANCEL, OWNS, START, Call, World


def broken_property(protocol: Protocol, action: Action, world: World) -> str | None:
    """The first property that does not hold in `world`, reached by `action`; None if all hold."""
    state = protocol.state(world.end)
    was_cut = world.budget.cuts < protocol.settings.cuts
    return (
        _readers(protocol, world, state)
        or _commands(world, state)
        or (None if was_cut else _ownership(protocol, world, state))
        or _start_of_an_effect(protocol, action, world, state, was_cut)
        or _effects(protocol, world, state, was_cut)
        or _boundary(protocol, world, state, was_cut)
        or _evidence(protocol, world, state, was_cut)
    )


def visible(state: State) -> tuple[object, ...]:
    """What a reader derives from the log and shows; its place under the claim rule left out."""
    attempts = tuple((x.status, x.generation, x.evidence, x.conflict) for x in state.attempts)
    return (state.started, state.cancels, state.ended, state.command_next, excess(state), attempts)


def _readers(protocol: Protocol, world: World, state: State) -> str | None:
    for reader in world.readers:
        other = protocol.state(reader)
        if visible(other) != visible(state):
            return "all readers equal: one that started in the middle of the log sees another run"
    return None


def _commands(world: World, state: State) -> str | None:
    if state.started > 1 or state.cancels > 1:
        return "commands once: a command was applied twice"
    passed = world.commands[: state.command_next]
    if START in passed and not state.started:
        return "commands once: the position passed StartRun, which was never applied"
    if CANCEL in passed and not state.cancels and not state.ended:
        return "commands once: the position passed CancelRun, which was never applied"
    return None


def _ownership(protocol: Protocol, world: World, state: State) -> str | None:
    if state.broken:
        return "no claim breaks: an n is missing in a log that was not cut"
    if excess(state):
        return "no effect without a counting intent: a report names an intent that does not count"
    for worker in world.workers:
        if worker.phase == OWNS:
            own = protocol.state(worker.state)
            if own.claim != state.claim and own.epoch >= state.epoch:
                return "epochs rise: a claim took over that its writer had made without the latest"
            read = protocol.interned.run(world.base, world.tail[: worker.position])
            if read != worker.state:
                return (
                    f"belief is the fold: the owner by claim {worker.claim} believes something else"
                )
    return None


def _start_of_an_effect(
    protocol: Protocol, action: Action, world: World, state: State, was_cut: bool
) -> str | None:
    name, claim, detail = action
    if name == SENDS:
        assert isinstance(detail, Call)
        intent = (detail.claim, detail.n)
        if state.attempts[detail.attempt].intent != intent:
            # A cut may take the intent of an owner that could not know yet.
            is_there = any(
                isinstance(r, Event) and (r.claim, r.n) == intent and r.kind in INTENTS
                for r in (protocol.interned.records[k] for k in world.tail)
            )
            if is_there or not was_cut:
                return "no effect without a counting intent: a call starts without one"
        earlier = state.attempts[: detail.attempt]
        if protocol.settings.policy == ESCALATE and any(
            x.status and x.status not in (NEVER, STEP_FAILED, DENIED) for x in earlier
        ):
            return "escalate stops: an attempt starts over one that nobody has excluded"
    if name == DECIDES:
        assert isinstance(detail, tuple)
        records = [protocol.interned.records[k] for k in detail[0]]
        intends = any(isinstance(r, Event) and r.kind in INTENTS for r in records)
        owner = next(w for w in world.workers if w.phase == OWNS and w.claim == claim)
        if intends and protocol.state(owner.state).cancels:
            return "cancel starts nothing: a cancelled run starts an attempt"
    return None


def _effects(protocol: Protocol, world: World, state: State, was_cut: bool) -> str | None:
    settings = protocol.settings
    count = sum(max(0, n) for n in world.effects)
    if count > 1 and (settings.deduplicates or (settings.faultless_declarations and not was_cut)):
        return f"effect once: it happened {count} times"
    known = any(x.status for x in state.attempts)
    if not known and not was_cut and (count or world.requests):
        return "boundary truthful: it says not started, and the effect has left"
    return None


def _boundary(protocol: Protocol, world: World, state: State, was_cut: bool) -> str | None:
    settings = protocol.settings
    count = sum(max(0, n) for n in world.effects)
    statuses = [x.status for x in state.attempts if x.status]
    unsettled = any(status in UNSETTLED for status in statuses)
    if DONE in statuses and not count and not settings.person_wrong:
        return "boundary truthful: it says done, and the effect never happened"
    if state.ended and unsettled:
        return "boundary truthful: the run ended with an attempt in doubt"
    if not statuses or DONE in statuses or unsettled or not count or was_cut:
        return None
    if settings.faultless_declarations:
        return "boundary truthful: it says absent or failed for good, and the effect happened"
    if all(status in (NEVER, STEP_FAILED) for status in statuses):
        return "boundary truthful: it says never started or failed, and the effect happened"
    return None


def _evidence(protocol: Protocol, world: World, state: State, was_cut: bool) -> str | None:
    settings = protocol.settings
    found = set(conflicts(protocol.rules, state))
    written = {a for a, x in enumerate(state.attempts) if x.conflict}
    if settings.faultless_declarations and not was_cut and (found or written):
        return "no false alarm: an EvidenceConflict without a contradiction"
    if was_cut:
        return _evidence_after_cut(protocol, world, state)
    for number in world.reported:
        report = protocol.interned.records[number]
        assert isinstance(report, Report)
        for a, attempt in enumerate(state.attempts):
            if not attempt.status or attempt.intent != (report.claim, report.n):
                continue
            if report.what not in attempt.evidence:
                return "evidence visible: a report is in the log, its attempt does not show it"
            contradicts = attempt.status in EXCLUDED and report.what == SAYS_COMPLETED
            if contradicts and a not in found | written:
                return "evidence visible: a report contradicts the boundary, no conflict shows"
    return None


def _evidence_after_cut(protocol: Protocol, world: World, state: State) -> str | None:
    """After a cut: what ran although its intent is gone is visible. Reads the log itself."""
    names = {x.intent for x in state.attempts if x.status}
    shown = {u[:2] for u in excess(state)}
    for number in world.tail:
        report = protocol.interned.records[number]
        if not isinstance(report, Report) or report.what != SAYS_COMPLETED:
            continue
        if (report.claim, report.n) not in names | shown:
            return "evidence visible: an attempt ran whose intent the cut took, nothing shows it"
    return None


def has_settled(protocol: Protocol, world: World) -> bool:
    """Whether the run needs nothing more, or only a person, and every contradiction is written."""
    settings, state = protocol.settings, protocol.state(world.end)
    if any(not state.attempts[a].conflict for a in conflicts(protocol.rules, state)):
        return False
    if state.command_next < len(world.commands):
        return False
    statuses = [x.status for x in state.attempts if x.status]
    if DONE in statuses:
        return True
    unsettled = [a for a, x in enumerate(state.attempts) if x.status in UNSETTLED]
    if unsettled:
        return _waits_for_a_person(protocol, world, state, unsettled)
    if state.ended or len(statuses) == settings.attempts:
        return _is_told(protocol, world, state)
    return False


def _waits_for_a_person(
    protocol: Protocol, world: World, state: State, unsettled: list[int]
) -> bool:
    if has_lookup(protocol.settings) or any(is_under_way(state, a) for a in unsettled):
        return False
    if any(state.attempts[a].evidence for a in unsettled):
        return False
    # `keyed` without a lookup asks a person only when it may not repeat any more.
    tried = sum(1 for x in state.attempts if x.status)
    may_repeat = tried < protocol.settings.attempts and not state.cancels and world.key == 0
    return protocol.settings.policy == ESCALATE or not may_repeat


def _is_told(protocol: Protocol, world: World, state: State) -> bool:
    """An ending on "absent" that was wrong has come out, where the far system can be asked."""
    if not any(n > 0 for n in world.effects) or not has_lookup(protocol.settings):
        return True
    return any(x.conflict for x in state.attempts)


def can_progress(protocol: Protocol, world: World) -> bool:
    """Whether progress may be demanded here: somebody owns to the end, or a claim is left."""
    settings = protocol.settings
    if settings.cuts:
        return False
    safe = not (settings.crashes or settings.unknowns or settings.hangs)
    return world.budget.claims > 0 or safe
