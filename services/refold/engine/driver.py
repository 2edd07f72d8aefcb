"""Drives the runs of a partition: sessions, what run code asks for, outcomes in log order."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, assert_never

from refold.app.definitions import StepDef
from refold.engine import decide, waits
from refold.engine.books import DecisionTooLarge
from refold.engine.outcomes import Fresh
from refold.engine.raised_at import console_traceback, encode_raised
from refold.engine.session import (
    Ask,
    ChunkAsked,
    CursorAsked,
    Diverged,
    LogLine,
    Raised,
    Returned,
    Session,
    SleepAsked,
    StepAsked,
    Unsettled,
)
from refold_projections.fold import FOR_A_PERSON, RunState, Slot, in_parallel_branch
from refold_schemas.errors import ValueRefused, ValueTooLarge
from refold_schemas.errors.run import RUN_RESULT
from refold_schemas.events import (
    CursorAdvanced,
    RunBlocked,
    RunCancelled,
    RunCompleted,
    RunDiverged,
    RunFailed,
    RunResumed,
)
from refold_schemas.values import Policy, encode_error, encode_value

if TYPE_CHECKING:
    from refold.engine.owner import PartitionOwner


class Actor:
    """A run that something is going on with. Idle runs have none: only their state is kept."""

    __slots__ = (
        "asked",
        "expired",
        "idle_since_ms",
        "lookups",
        "run_id",
        "session",
        "waits_for_log",
        "warned",
    )

    def __init__(self, run_id: str, *, waits_for_log: bool) -> None:
        self.run_id = run_id
        self.waits_for_log = waits_for_log
        """Whether its code is given outcomes only once they are durable."""
        self.session: Session | None = None
        self.asked: dict[str, StepAsked | ChunkAsked] = {}
        """What run code asked of slots that have no outcome yet."""
        self.expired: set[str] = set()
        """Acquisitions whose handle ran out and that are acquired again."""
        self.lookups: dict[str, asyncio.Task[None]] = {}
        self.idle_since_ms: int | None = None
        self.warned = False


class Driver:
    """One per owner. Everything here runs on the engine's loop."""

    def __init__(self, owner: "PartitionOwner") -> None:
        self.owner = owner
        self.actors: dict[str, Actor] = {}
        self._queue: deque[str] = deque()
        self._alone: str | None = None
        self._events_warned = owner.settings.events_max // 5
        self._bytes_warned = owner.settings.run_bytes_max // 5

    # ---- activation

    def activate_all(self, states: Iterable[RunState]) -> None:
        """After a claim: park what keeps killing its process, start what is not only waiting."""
        owner = self.owner
        live = sorted(
            (s for s in states if s.ended is None),
            key=lambda s: (s.started_ms, s.run_id),
        )
        suspicious = owner.suspicious
        parked_one = not suspicious
        for state in live:
            if _only_waits(state):
                continue
            open_ends = owner.books.facts.unclean_total - state.unclean_mark
            if (
                not parked_one
                and state.parked is None
                and open_ends >= owner.settings.unclean_parked
            ):
                # Runs start one at a time in this order, so the first without progress is the one.
                parked_one = True
                self.block(
                    state.run_id,
                    "crashes_worker",
                    f"its process ended without a word {open_ends} times while this run was open "
                    "and had no outcome of its own; `refold retry` lets it go on",
                )
                continue
            if suspicious:
                self._queue.append(state.run_id)
            else:
                owner.soon(self.activate, state.run_id)
        if suspicious:
            self._next_alone()

    def _next_alone(self) -> None:
        """While processes keep dying: the next run starts when the one before has made progress."""
        while self._queue:
            run_id = self._queue.popleft()
            state = self.owner.books.states[run_id]
            if state.ended is None:
                self._alone = run_id
                self.owner.soon(self.activate, run_id)
                return
        self._alone = None
        self.owner.suspicious = False  # all of them got somewhere: back to the usual way

    def begin(self, run_id: str) -> None:
        """A new run: its code starts at once, or in its turn while runs start one at a time."""
        if self._alone is None:
            self.owner.soon(self.activate, run_id)
        else:
            self._queue.append(run_id)

    def progressed(self, run_id: str) -> None:
        """An outcome of the run is durable, or it waits: if runs start alone, the next one may."""
        if run_id == self._alone:
            self._next_alone()

    def activate(self, run_id: str) -> None:
        """Give the run a session, replay its record, and do what its code asks for next."""
        owner = self.owner
        state = owner.books.states.get(run_id)
        if state is None or state.ended is not None or owner.ended:
            return
        actor = self.actor(run_id)
        if actor.session is not None:
            return
        if state.cancel is not None:
            self.cancelling(actor)
            return
        if self.waits_for_log(state) and not owner.books.is_durable(run_id):
            # Its record may hold outcomes that run code must not see yet.
            owner.books.when_durable(run_id, partial(owner.soon, self.activate, run_id))
            return
        if state.parked is not None and state.parked.reason in FOR_A_PERSON:
            self.drop(run_id)
            return
        owner.tell_resumed(state)
        definition = owner.app.runs.get(state.run)
        if definition is None:
            self.block(
                run_id, "unknown_function", f"no run function {state.run!r} is registered here"
            )
            self.drop(run_id)
            return
        session = Session(
            owner.app,
            definition,
            state,
            namespace=owner.namespace,
            now_ms=owner.books.now_ms(),
            value_bytes_max=owner.settings.value_bytes_max,
        )
        actor.session = session
        owner.running(run_id)
        try:
            asks = session.start()
        finally:
            owner.running(None)
        diverged = next((a for a in asks if isinstance(a, Diverged)), None)
        if state.parked is not None and diverged is None:
            owner.books.commit(
                run_id, (RunResumed(None, "the code matches the record", None, False, None),)
            )
        self.process(actor, asks)

    def actor(self, run_id: str) -> Actor:
        """The run's actor, made if there is none."""
        actor = self.actors.get(run_id)
        if actor is None:
            self.owner.books.unpack(run_id)
            state = self.owner.books.states[run_id]
            actor = self.actors[run_id] = Actor(run_id, waits_for_log=self.waits_for_log(state))
        return actor

    def drop(self, run_id: str) -> None:
        """Tear the run's coroutine down; its state stays. This is not cancellation."""
        actor = self.actors.pop(run_id, None)
        if actor is None:
            return
        self.owner.books.pack_later(run_id)
        for task in actor.lookups.values():
            task.cancel()
        self._close(actor)
        self.progressed(run_id)

    def _close(self, actor: Actor) -> None:
        """End the run's code in this process, if any of it is there."""
        session, actor.session = actor.session, None
        if session is None:
            return
        self.owner.running(actor.run_id)
        try:
            session.close()
        finally:
            self.owner.running(None)
        if session.swallowed_teardown:
            self.owner.warn(
                "R018",
                actor.run_id,
                "run code swallowed its teardown and was abandoned; nothing of it is lost",
            )

    def drop_all(self) -> None:
        """The claim is over."""
        for run_id in list(self.actors):
            self.drop(run_id)

    # ---- what run code asks for

    def process(self, actor: Actor, asks: list[Ask]) -> None:
        """Do what run code asked for, in the order in which it asked."""
        owner = self.owner
        run_id = actor.run_id
        for ask in asks:
            if owner.ended:
                return
            try:
                if isinstance(ask, (StepAsked, ChunkAsked)):
                    self._step_asked(actor, ask)
                elif isinstance(ask, Unsettled):
                    again = ask.ask or self._from_record(run_id, ask)
                    if again is not None:
                        actor.asked[ask.slot] = again
                    if ask.expired:
                        actor.expired.add(ask.slot)
                    owner.settling.look_at(run_id, ask.slot)
                elif isinstance(ask, SleepAsked):
                    at_ms = owner.books.now_ms()
                    state = owner.books.states[run_id]
                    event = decide.timer(
                        "sleep", ask.slot, at_ms + ask.duration_ms, state.event_count + 1
                    )
                    said = waits.sleeping(owner, run_id, ask.duration_ms)
                    owner.books.commit(run_id, (event,), at_ms=at_ms, then=said)
                elif isinstance(ask, CursorAsked):
                    cursor = CursorAdvanced(ask.slot, ask.cursor, ask.total, ask.state)
                    owner.books.commit(run_id, (cursor,), at_ms=ask.at_ms)
                elif isinstance(ask, LogLine):
                    owner.books.when_durable(run_id, partial(owner.log_line, run_id, ask))
                elif isinstance(ask, Diverged):
                    self.diverged(run_id, ask.slot, ask.detail)
                    return
                elif isinstance(ask, Returned | Raised):
                    self._ended(actor, ask)
                    return
                else:
                    assert_never(ask)
            except DecisionTooLarge as error:
                slot = getattr(ask, "slot", "the end of the run")
                self.block(run_id, "limit", f"{slot}: {error}")
                return
        self.check_limits(actor.run_id)

    def _from_record(self, run_id: str, ask: Unsettled) -> StepAsked | None:
        """What to ask again of a handle that ran out: what its record says."""
        if ask.definition is None:
            return None
        kept = self.owner.books.states[run_id].slots[ask.slot]
        return StepAsked(ask.slot, ask.definition, {}, kept.fingerprint, kept.arguments)

    def _step_asked(self, actor: Actor, ask: StepAsked | ChunkAsked) -> None:
        owner = self.owner
        actor.asked[ask.slot] = ask
        if owner.draining:
            return  # the next owner is asked the same; here only what is in flight is waited for
        if ask.definition.policy is Policy.RE_EXECUTABLE and not (
            owner.suspicious and isinstance(ask, StepAsked)
        ):
            owner.attempts.start_bare(actor.run_id, ask, 1)
        else:
            owner.attempts.intend(actor.run_id, ask.slot, ask)

    def diverged(self, run_id: str, slot: str, detail: str) -> None:
        """Code and record differ: park the run with the difference, once."""
        state = self.owner.books.states[run_id]
        parked = state.parked
        if parked is None or (parked.kind, parked.detail) != ("diverged", detail):
            definition = self.owner.app.runs.get(state.run)
            version = definition.version if definition is not None else ""
            self.owner.books.commit(
                run_id,
                (RunDiverged(slot, detail, version),),
                then=partial(self.owner.tell, "diverged", run_id, detail),
            )
        self.drop(run_id)

    def _ended(self, actor: Actor, ask: Returned | Raised) -> None:
        owner = self.owner
        run_id = actor.run_id
        state = owner.books.states[run_id]
        end: RunCompleted | RunFailed | RunCancelled
        shown = ""
        if state.cancel is not None:
            end = RunCancelled(state.cancel.why)
        elif isinstance(ask, Raised):
            end = RunFailed(encode_raised(ask.error))
            shown = console_traceback(ask.error)
        else:
            try:
                end = RunCompleted(encode_value(ask.result, path="result"))
            except ValueRefused as error:
                end = RunFailed(encode_error(error))
        self._end(run_id, end, shown)
        self.drop(run_id)

    def _end(
        self, run_id: str, end: RunCompleted | RunFailed | RunCancelled, shown: str = ""
    ) -> None:
        """Record how the run ended; `shown` is for the console only, once that is durable."""
        owner = self.owner
        state = owner.books.states[run_id]
        lookups = {d.name for d in owner.app.steps.values() if d.lookup is not None}
        proof_ms = owner.books.now_ms() + owner.settings.proof_after_ms
        events = decide.run_ended(state, end, proof_ms, lookups)

        def told() -> None:
            owner.tell_ended(run_id)
            if shown:
                owner.tell("traceback", run_id, shown)

        try:
            owner.books.commit(run_id, events, then=told)
        except DecisionTooLarge as error:
            # The effects are done and recorded; only the result cannot be kept.
            too_large = ValueTooLarge(run_id, RUN_RESULT, error.size, error.size_max)
            failure = RunFailed(encode_error(too_large))
            events = decide.run_ended(state, failure, proof_ms, lookups)
            owner.books.commit(run_id, events, then=lambda: owner.tell_ended(run_id))
        owner.attempts.forget_run(run_id)

    def block(self, run_id: str, reason: str, detail: str) -> None:
        """Park the run: no live worker can continue it. Counted and visible."""
        state = self.owner.books.states[run_id]
        if state.parked is not None and state.parked[:2] == ("blocked", reason):
            return
        self.owner.books.commit(
            run_id,
            (RunBlocked(reason, detail),),
            then=partial(self.owner.tell, "blocked", run_id, f"{reason}: {detail}"),
        )
        self.drop(run_id)

    def check_limits(self, run_id: str) -> None:
        """Park a run that is over its limit, warn once at a fifth of it. Its end has no limit."""
        states = self.owner.books.states
        state = states.live.get(run_id) or states.get(run_id)
        settings = self.owner.settings
        if state is None or (
            state.event_count <= self._events_warned and state.byte_count <= self._bytes_warned
        ):
            return
        if state.ended is not None or state.parked is not None:
            return
        actor = self.actors.get(run_id)
        if state.event_count > settings.events_max or state.byte_count > settings.run_bytes_max:
            if state.cancel is not None:
                return  # what is left to settle is small, and has to be settled
            self.block(
                run_id,
                "limit",
                f"{state.event_count:,} events and {state.byte_count:,} bytes; "
                f"{settings.events_max:,} and {settings.run_bytes_max:,} are allowed",
            )
        elif actor is not None and not actor.warned:
            actor.warned = True
            self.owner.warn(
                "R017",
                run_id,
                f"a fifth of a run's limit is used: {state.event_count:,} events, "
                f"{state.byte_count:,} bytes",
            )

    # ---- outcomes

    def outcome_recorded(
        self, run_id: str, slot: str, fresh: Fresh | None = None, *, durable: bool = False
    ) -> None:
        """The slot has an outcome in the tentative state: hand it to run code, `fresh` if it is.

        A run function with `durable="each"` gets it only once it is acknowledged.
        """
        owner = self.owner
        actor = self.actors.get(run_id)
        if actor is None or owner.ended:
            return
        session = actor.session
        if session is not None and actor.waits_for_log and not durable:
            return
        states = owner.books.states
        # An actor's run is not packed: written out, as this is done for every step.
        state = states.live.get(run_id) or states[run_id]
        if session is None:
            if state.cancel is not None:
                self.cancelling(actor)
            return
        outcome = state.slots[slot].outcome
        if outcome is None:
            return  # a failure that is tried again: run code still waits for it
        actor.asked.pop(slot, None)
        actor.expired.discard(slot)
        if not session.replaying and not session.waits_for(slot):
            # Told already, from a record that had it; or the run is being cancelled, and what only
            # releases its acquisitions does not wait for what its code waited for.
            return
        actor.idle_since_ms = None
        owner.running(run_id)
        try:
            asks = session.deliver(slot, outcome, fresh)
        finally:
            owner.running(None)
        self.process(actor, asks)

    def waits_for_log(self, state: RunState) -> bool:
        """Whether outcomes of this run are delivered only when durable."""
        definition = self.owner.app.runs.get(state.run)
        return definition is not None and definition.durable == "each"

    def then_deliver(
        self, run_id: str, slot: str, fresh: Fresh | None = None
    ) -> Callable[[], None] | None:
        """What to do when an outcome's event is acknowledged: nothing, or deliver it now."""
        actor = self.actors.get(run_id)
        if (
            self.waits_for_log(self.owner.books.states[run_id])
            if actor is None
            else actor.waits_for_log
        ):
            return partial(self._deliver_durable, run_id, slot, fresh)
        return None if self._alone is None else partial(self.progressed, run_id)

    def _deliver_durable(self, run_id: str, slot: str, fresh: Fresh | None) -> None:
        self.outcome_recorded(run_id, slot, fresh, durable=True)
        self.progressed(run_id)

    # ---- cancelling

    def cancel(self, run_id: str) -> None:
        """RunCancelRequested was decided: stop run code, settle what is open, then end."""
        owner = self.owner
        actor = self.actor(run_id)
        self._close(actor)
        owner.attempts.cancel_bare(run_id)
        self.cancelling(actor)

    def cancelling(self, actor: Actor) -> None:
        """Settle every open slot; with none left release acquisitions and end the run."""
        owner = self.owner
        run_id = actor.run_id
        state = owner.books.states[run_id]
        if state.ended is not None or owner.ended or actor.session is not None:
            return
        for slot in sorted(state.open_slots):
            owner.settling.look_at(run_id, slot)
        state = owner.books.states[run_id]
        if state.open_slots or state.ended is not None or owner.attempts.busy(run_id):
            return
        if not any(_may_release(owner.app.steps.get(s.step)) for s in state.slots.values()):
            reason = state.cancel.why if state.cancel else ""
            self._end(run_id, RunCancelled(reason))
            self.drop(run_id)
            return
        definition = owner.app.runs.get(state.run)
        if definition is None:
            self.block(run_id, "unknown_function", f"no run function {state.run!r} here")
            return
        session = Session(
            owner.app,
            definition,
            state,
            namespace=owner.namespace,
            now_ms=owner.books.now_ms(),
            cleanup_only=True,
            value_bytes_max=owner.settings.value_bytes_max,
        )
        actor.session = session
        owner.running(run_id)
        try:
            asks = session.start()
        finally:
            owner.running(None)
        self.process(actor, asks)

    # ---- idle runs

    def evict_idle(self) -> None:
        """Take the coroutine from runs that only wait; the event that wakes one rehydrates it."""
        owner = self.owner
        now_ms = owner.clock.boot_ms()
        for run_id, actor in list(self.actors.items()):
            state = owner.books.states[run_id]
            busy = (
                owner.attempts.busy(run_id) or actor.lookups or not owner.books.is_durable(run_id)
            )
            if busy or not _session_waits(actor, state):
                actor.idle_since_ms = None
                continue
            if actor.idle_since_ms is None:
                actor.idle_since_ms = now_ms
                self.progressed(run_id)
            crowded = len(self.actors) > owner.settings.resident_max
            # A long record is dear to replay: its run keeps its coroutine for longer.
            idle_ms = owner.settings.idle_after_ms * (1 + state.event_count // 100)
            if crowded or now_ms - actor.idle_since_ms >= idle_ms:
                self.drop(run_id)


def _only_waits(state: RunState) -> bool:
    """Whether nothing moves the run but a timer or a person, judged by its record alone.

    A timer of the root branch says so: while that branch waits no other one exists. One inside a
    `gather` or `map` says nothing of its siblings.
    """
    if state.ended is not None:
        return True
    if state.open_slots:
        return all(_waits_for_a_person(state.slots[name]) for name in state.open_slots) and not any(
            in_parallel_branch(name) for name in state.open_slots
        )
    return state.cancel is None and any(
        t.kind in ("sleep", "backoff") and not in_parallel_branch(t.slot)
        for t in state.timers.values()
    )


def _waits_for_a_person(slot: Slot) -> bool:
    """Whether nobody but a person can settle it: no late report has said what became of it."""
    return slot.escalated and not any(attempt.evidence for attempt in slot.unsettled)


def _session_waits(actor: Actor, state: RunState) -> bool:
    """Whether everything that run code waits for is a timer or a person."""
    session = actor.session
    if session is None:
        return _only_waits(state)
    timed = {t.slot for t in state.timers.values() if t.kind in ("sleep", "backoff")}
    return all(
        name in timed or (name in state.slots and state.slots[name].escalated)
        for name in session.waiting_slots
    )


def _may_release(definition: StepDef | None) -> bool:
    return definition is not None and definition.release is not None


__all__ = ["Actor", "Driver"]
