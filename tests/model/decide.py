"""What an owner may decide, from its durable state and from what it can learn of the world.

The owner of the model is free where the real one has a strategy: every decision that the rules
allow is explored, in any order.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from model.fold import (
    ABSENT,
    DENIED,
    DONE,
    OPEN,
    UNSETTLED,
    State,
    conflicts,
    is_under_way,
)
from model.records import (
    CANCEL_REQUESTED,
    CANCELLED,
    COMPLETED,
    CONFLICT,
    FAILED,
    IN_DOUBT,
    INTENDED,
    INTENDED_FRESH,
    PERSON_DENIED,
    PERSON_DONE,
    REJECTED,
    RESOLVED_ABSENT,
    RESOLVED_DONE,
    RESOLVED_FAILED,
    RESOLVED_NEVER,
    RESOLVED_REJECTED,
    RUN_STARTED,
    SAYS_COMPLETED,
    SAYS_FAILED,
    SAYS_NEVER,
)
from model.rules import Rules
from model.settings import ESCALATE, KEYED, RESOLVABLE, Settings
from model.world import (
    CANCEL,
    DEAF,
    IN_TIME,
    KEY_LIVES,
    PAST_SETTLE,
    READY,
    REFUSED,
    RETURNED,
    SENT,
    START,
    TOO_LATE,
    Call,
    Resolve,
    Worker,
    World,
)

BY_REPORT: Final = {
    SAYS_COMPLETED: RESOLVED_DONE,
    SAYS_NEVER: RESOLVED_NEVER,
    SAYS_FAILED: RESOLVED_FAILED,
}
BY_OUTCOME: Final = {RETURNED: COMPLETED, REFUSED: FAILED, TOO_LATE: RESOLVED_NEVER}


class Decision(NamedTuple):
    """The events of one decision, `(kind, attempt)` each, and why. `ends` is a call that raised."""

    events: tuple[tuple[str, int], ...]
    why: str
    is_command: bool = False
    ends: Call | None = None


def decisions(
    world: World, worker: Worker, state: State, settings: Settings, rules: Rules
) -> Iterator[Decision]:
    """Everything that the owner `worker`, knowing `state`, may decide now."""
    if rules.conflict_written and (rules.conflict_in_ended_run or not state.ended):
        for a in conflicts(rules, state):
            if not state.attempts[a].conflict:
                yield Decision(((CONFLICT, a),), "evidence contradicts what was settled")
    yield from _second_lookup(world, state, settings, rules)
    if state.command_next < len(world.commands):
        yield _command(world, state, rules)
    if not state.started or state.ended or any(x.status == DONE for x in state.attempts):
        return
    unsettled = [a for a, x in enumerate(state.attempts) if x.status in UNSETTLED]
    under_way = [a for a in unsettled if is_under_way(state, a)]
    if under_way:
        for a in under_way:
            yield from _outcome(world, worker, state, a, settings, rules)
    elif unsettled:
        yield from _in_doubt(world, worker, state, unsettled, settings, rules)
    if unsettled and state.cancels and not rules.cancel_waits:
        yield Decision(((CANCELLED, -1),), "cancel")
    if not unsettled:
        yield from _next(state, settings)
    elif settings.fresh_keys and not under_way and not rules.fresh_key_after_all_excluded:
        tried = _tried(state)
        if tried < settings.attempts and state.attempts[tried - 1].status not in UNSETTLED:
            yield Decision(((INTENDED_FRESH, tried),), "retry under a fresh key")


def _tried(state: State) -> int:
    return sum(1 for x in state.attempts if x.status)


def _next(state: State, settings: Settings) -> Iterator[Decision]:
    """Nothing is open: end a cancelled run, or start the next attempt."""
    tried = _tried(state)
    if state.cancels:
        yield Decision(((CANCELLED, -1),), "nothing is open")
    elif tried < settings.attempts:
        kind = INTENDED_FRESH if tried and settings.fresh_keys else INTENDED
        yield Decision(((kind, tried),), "next attempt" if tried else "first attempt")


def _command(world: World, state: State, rules: Rules) -> Decision:
    """The one decision of the next command (3.1, Commands): in order, whole, never silent."""
    command = world.commands[state.command_next]
    if command == START:
        if state.started and rules.command_deduplicated:
            return Decision(((REJECTED, -1),), "the run exists", is_command=True)
        return Decision(((RUN_STARTED, -1), (INTENDED, 0)), "StartRun", is_command=True)
    if command == CANCEL:
        known = state.cancels and rules.command_deduplicated
        if known or state.ended or not state.started:
            return Decision(((REJECTED, -1),), "CancelRun is known already", is_command=True)
        return Decision(((CANCEL_REQUESTED, -1),), "CancelRun", is_command=True)
    assert isinstance(command, Resolve)
    return _resolve(world, command, state, rules)


def _resolve(world: World, command: Resolve, state: State, rules: Rules) -> Decision:
    unsettled = [a for a, x in enumerate(state.attempts) if x.status in UNSETTLED]
    refused = Decision(((REJECTED, -1),), "ResolveStep is refused", is_command=True)
    if not unsettled or any(is_under_way(state, a) for a in unsettled):
        return refused
    last = unsettled[-1]
    if command.happened:
        return Decision(((PERSON_DONE, last),), "a person: it happened", is_command=True)
    if rules.person_held_back == "when asked" and not command.waited:
        return refused
    if rules.person_held_back == "when decided" and any(
        world.clocks[a] != PAST_SETTLE for a in unsettled
    ):
        return refused
    if rules.person_names_attempts and command.attempts_seen != _tried(state):
        return refused
    return Decision(((PERSON_DENIED, last),), "a person: it did not happen", is_command=True)


def _outcome(
    world: World, worker: Worker, state: State, a: int, settings: Settings, rules: Rules
) -> Iterator[Decision]:
    """An attempt under way: its call ends, raises, or outlives its timeout."""
    for call in worker.calls:
        if (call.attempt, call.claim, call.n) != (a, *state.attempts[a].intent):
            continue
        if call.where in BY_OUTCOME:
            yield Decision(((BY_OUTCOME[call.where], a),), "its call has ended")
        if call.where not in (SENT, DEAF):
            continue
        late = world.clocks[a] != IN_TIME
        if late and not rules.exception_is_doubt:
            yield Decision(((FAILED, a),), "timeout taken for a failure")
        if late and (settings.doubts or (call.where == DEAF and settings.hangs)):
            yield Decision(((IN_DOUBT, a),), "timeout, the thread runs on")
        raises = call.where == DEAF and not settings.hangs
        if raises or (settings.doubts and not settings.hangs):
            yield Decision(((IN_DOUBT, a),), "an exception", ends=call)


def _in_doubt(
    world: World,
    worker: Worker,
    state: State,
    unsettled: list[int],
    settings: Settings,
    rules: Rules,
) -> Iterator[Decision]:
    """Attempts in doubt and none under way: evidence first, then the policy (section 6)."""
    for a in unsettled:
        for says in state.attempts[a].evidence:
            yield Decision(((BY_REPORT[says], a),), "a report")
    last, tried = unsettled[-1], _tried(state)
    policy = settings.policy
    if policy == KEYED:
        key_is_sure = world.key == KEY_LIVES or not rules.key_life_watched
        cancelling = state.cancels and rules.cancel_starts_nothing
        if tried < settings.attempts and key_is_sure and not cancelling:
            yield Decision(((INTENDED, tried),), "again under the same key")
            return
        if not cancelling and key_is_sure and not rules.keyed_without_attempts_settles:
            return
        policy = RESOLVABLE if settings.lookup else ESCALATE
    if policy == RESOLVABLE:
        found = world.effects[state.attempts[last].generation]
        if found > 0:
            yield Decision(((RESOLVED_DONE, last),), "lookup: found")
        elif found < 0:
            yield Decision(((RESOLVED_REJECTED, last),), "lookup: rejected")
        if (found == 0 or not rules.settle_awaited) and _wait_over(
            world, worker, state, unsettled, rules
        ):
            yield Decision(((RESOLVED_ABSENT, last),), "lookup: absent")
    if policy == ESCALATE and not rules.escalate_waits and tried < settings.attempts:
        yield Decision(((INTENDED, tried),), "again, nobody asked")


def _wait_over(
    world: World, worker: Worker, state: State, unsettled: list[int], rules: Rules
) -> bool:
    """Whether "absent" may be believed: no attempt of the slot can act any more."""
    if not rules.settle_awaited:
        return True
    running = any(
        call.attempt in unsettled and call.where in (READY, SENT, DEAF) for call in worker.calls
    )
    must = unsettled if rules.settle_over_all_attempts else unsettled[-1:]
    if not rules.settle_from_own_end:
        must = [a for a in must if state.attempts[a].intent[0] != worker.claim]
        running = False
    return not running and all(world.clocks[a] == PAST_SETTLE for a in must)


def _second_lookup(
    world: World, state: State, settings: Settings, rules: Rules
) -> Iterator[Decision]:
    """The lookup a day later of an "absent" that is the slot's last word (section 6)."""
    if not rules.last_word_looked_up or not has_lookup(settings):
        return
    known = [x for x in state.attempts if x.status]
    if any(x.status == OPEN or x.status in UNSETTLED or x.status == DONE for x in known):
        return
    if not state.ended and len(known) < settings.attempts:
        return
    for a, x in enumerate(state.attempts):
        owed = x.status in (ABSENT, DENIED) and not x.conflict
        if owed and world.effects[x.generation] > 0:
            yield Decision(((CONFLICT, a),), "second lookup: found")


def has_lookup(settings: Settings) -> bool:
    """Whether the far system can be asked by our key."""
    return settings.policy == RESOLVABLE or (settings.policy == KEYED and settings.lookup)
