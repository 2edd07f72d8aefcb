"""Attempts: intending, starting, timing out, and what an end is recorded as."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from refold.app.definitions import StepDef
from refold.engine import decide, waits
from refold.engine.books import DecisionTooLarge
from refold.engine.calls import LOOKED, NO_INTENT, Call, ChunkCall
from refold.engine.decide import NoIntent, StepTerms
from refold.engine.model_use import read_model_use
from refold.engine.outcomes import Fresh
from refold.engine.raised_at import encode_raised, raised_at
from refold.engine.session import ChunkAsked, StepAsked
from refold.engine.shared_tasks import SharedTasks
from refold.engine.shown import short_repr
from refold_projections.fold import OPEN, Slot
from refold_schemas.errors import CallRefused, RefoldError, ValueRefused
from refold_schemas.events import StepCompleted
from refold_schemas.values import (
    Argument,
    ErrorInfo,
    NotDone,
    Policy,
    Unrecordable,
    Value,
    decode_value,
    decode_value_as,
    digest_value,
    effect_key,
    encode_value,
    line_of,
)
from refold_schemas.values.copying import NOT_PLAIN, copied
from refold_schemas.values.kinds import class_id

if TYPE_CHECKING:
    from refold.engine.owner import PartitionOwner

SCALARS: Final = frozenset({int, str, float, bool, bytes, type(None)})
CANCEL_S: Final = 0.1
"""How long a cancelled coroutine may take to end before it counts as one that runs on."""


class Attempts:
    """The attempts of one owner. `calls` holds every call that has not ended in this process."""

    def __init__(self, owner: "PartitionOwner") -> None:
        self.owner = owner
        self.calls: dict[tuple[str, str, int], Call] = {}
        self.ended_boot_ms: dict[tuple[str, str], dict[int, int]] = {}
        """When attempts of open slots ended here: `settle` counts from there."""
        self.unanswered: dict[tuple[str, str], int] = {}
        """How often each open slot's lookup gave no answer in this claim."""
        self._per_run: dict[str, int] = {}
        self._shared = SharedTasks()
        self._unheard: dict[tuple[str, str, int], tuple[Call, str, Any]] = {}
        """Outcomes that were decided and are not acknowledged: reported if the claim ends first."""

    def busy(self, run_id: str) -> bool:
        """Whether a call of the run has not ended in this process."""
        return self._per_run.get(run_id, 0) > 0

    def busy_with(self, run_id: str, slot: str) -> bool:
        """Whether a call of the slot has not ended in this process."""
        return any(key[0] == run_id and key[1] == slot for key in self.calls)

    def running(self, run_id: str, slot: Slot) -> frozenset[int]:
        """Numbers of the slot's attempts whose call may still act."""
        return frozenset(
            a.number
            for a in slot.attempts
            if (call := self.calls.get((run_id, slot.name, a.number))) is not None and call.running
        )

    # ---- with an intent

    def intend(
        self,
        run_id: str,
        slot: str,
        ask: StepAsked | ChunkAsked,
        *,
        fresh: bool = False,
        settled: Any = (),
    ) -> None:
        """Write the intent of the next attempt, after `settled` in the same decision; then act.

        Effect key and arguments are those of the record once it has them.
        """
        owner = self.owner
        state = owner.books.states[run_id]
        kept = state.slots.get(slot)
        definition = ask.definition
        terms = StepTerms(
            definition.name,
            definition.policy.value,
            definition.timeout_ms,
            definition.settle_ms,
            definition.key_ttl_ms,
        )
        attempt = 1 if kept is None else kept.tried + 1
        generation = 0 if kept is None else kept.generation + (1 if fresh else 0)
        arguments: tuple[Argument, ...] | None
        if kept is None or not kept.attempts:
            arguments = ask.stored
            sent = decode_arguments(arguments)
            key = self._key(run_id, state.era, slot, generation, definition, sent)
        else:
            arguments = None
            try:
                sent = read_arguments(definition, kept.arguments)
            except RefoldError as error:
                detail = f"{slot}: a recorded argument cannot be read today: {error.message}"
                owner.driver.diverged(run_id, slot, detail)
                return
            key = kept.effect_key
            if fresh:
                key = self._key(run_id, state.era, slot, generation, definition, sent)
        if definition.amounts != state.amounts.get(definition.name, ()):
            # In front of the intent, in the same decision: a ledger that reads the one has both.
            settled = (*settled, decide.amounts(definition.name, definition.amounts))
        intent = decide.intend(slot, attempt, generation, terms, ask.fingerprint, key, arguments)
        call = Call(
            run_id=run_id,
            slot=slot,
            attempt=attempt,
            claim_id=owner.books.claim_id,
            n=owner.books.n_next + len(settled),
            effect_key=key,
            definition=definition,
            arguments=sent,
            timeout_ms=terms.timeout_ms,
            clock=owner.clock,
            ended=self._intent_ended,
        )
        self._add(call)
        try:
            owner.books.commit(run_id, (*settled, intent), then=lambda: self._start(call))
        except DecisionTooLarge:
            self._remove(call)
            raise

    def _key(
        self,
        run_id: str,
        era: int,
        slot: str,
        generation: int,
        definition: StepDef,
        sent: dict[str, object],
    ) -> str:
        """The effect key; what differs at each call of the same thing has no part in it."""
        lasting = {name: value for name, value in sent.items() if name not in definition.volatile}
        return effect_key(
            self.owner.namespace, run_id, era, slot, generation, definition.name, lasting
        )

    def _start(self, call: Call) -> None:
        """The intent is acknowledged: act, if the last look says that there is time."""
        loop = asyncio.get_running_loop()
        wait_s = max(call.deadline_boot_ms - self.owner.clock.boot_ms(), 0) / 1000
        call.timeout_handle = loop.call_later(wait_s, self._intent_timed_out, call)
        call.start(loop, self.owner.threads)

    def _intent_timed_out(self, call: Call) -> None:
        """No answer in time is no failure: nobody knows whether the far system acted."""
        call.timeout_handle = None
        if call.ended_boot_ms is not None or call.expire():
            return  # it still waited for a thread: certainly never started
        if not self.owner.ended and self._is_open(call):
            self._doubt(call, f"no answer within {call.definition.timeout_ms / 1000:g} s")
        call.cancel()
        # A thread cannot be cancelled, and a coroutine may swallow it.
        asyncio.get_running_loop().call_later(
            0 if call.in_thread else CANCEL_S, self._still_running, call
        )

    def _still_running(self, call: Call) -> None:
        """The call outlives its deadline: the slot is looked after, and the call is watched."""
        if call.ended_boot_ms is None:
            self.owner.call_overdue(call)
            self.owner.soon(self.owner.settling.look_at, call.run_id, call.slot)

    def _intent_ended(self, call: Call, kind: str, value: Any) -> None:
        self._remove(call)
        self.owner.guarded(call.run_id, self._record_intent, call, kind, value)

    def _record_intent(self, call: Call, kind: str, value: Any) -> None:
        """The call of an intent has ended: record what it says, or report it if it is too late."""
        owner = self.owner
        if not owner.ended and self._is_wanted(call):
            ends = self.ended_boot_ms.setdefault((call.run_id, call.slot), {})
            ends[call.attempt] = call.ended_boot_ms or owner.clock.boot_ms()
        if owner.ended or not self._is_open(call):
            self._report(call, kind, value)
            if not owner.ended:
                owner.settling.look_at(call.run_id, call.slot)
            return
        run_id, slot = call.run_id, call.slot
        if kind == "returned":
            result, unrecordable, fresh = storable_copy(value, owner.settings.value_bytes_max)
            model = read_model_use(value) if call.definition.is_model else None
            event = decide.completed(slot, call.attempt, result, unrecordable, model, None)
            heard = self._once_heard(call, kind, value, fresh=fresh)
            self._completed(run_id, event, value, heard)
            self.forget(run_id, slot)
            owner.driver.outcome_recorded(run_id, slot, fresh)
        elif kind == "expired":
            event_never = decide.resolved(slot, call.attempt, "never_started", "owner")
            heard = self._once_heard(call, kind, value, final=False)
            owner.books.commit(run_id, (event_never,), then=heard)
            owner.settling.look_at(run_id, slot)
        elif self._certainly_not_done(call.definition, value):
            self._failed(call, value)
        else:
            self._doubt(call, f"{describe(value)}{raised_at(value)}")
            owner.settling.look_at(run_id, slot)

    def _doubt(self, call: Call, reason: str) -> None:
        """Nobody knows whether the far system acted; an `escalate` step goes to a person now."""
        owner = self.owner
        escalated = call.definition.policy is Policy.ESCALATE
        doubt = decide.in_doubt(call.slot, call.attempt, reason, escalated=escalated)
        text, slot, attempt = f"{call.slot}: {reason}", call.slot, call.attempt
        told = partial(owner.tell, "in_doubt", call.run_id, text, slot=slot, attempt=attempt)
        owner.books.commit(call.run_id, (doubt,), then=told if escalated else None)

    def _once_heard(
        self, call: Call, kind: str, value: Any, *, fresh: Fresh | None = None, final: bool = True
    ) -> Callable[[], None]:
        """What to do when the outcome of an intent is acknowledged; `final`: run code gets it.

        Until then it is known here only: if the claim ends first, it is told as a report.
        """
        name = (call.run_id, call.slot, call.attempt)
        self._unheard[name] = (call, kind, value)
        driver = self.owner.driver
        deliver = driver.then_deliver(call.run_id, call.slot, fresh) if final else None

        def heard() -> None:
            self._unheard.pop(name, None)
            if deliver is not None:
                deliver()

        return heard

    def _completed(
        self, run_id: str, event: StepCompleted, value: object, then: Callable[[], None] | None
    ) -> None:
        """Record that a step returned. It happened, so it is recorded whatever its size."""
        books = self.owner.books
        try:
            books.commit(run_id, (event,), then=then)
        except DecisionTooLarge as error:
            # A log may hold less in one batch than a value may have, or than several arguments.
            size = 0 if event.result is None else len(event.result.body or b"")
            lost = unrecordable_of(value, "result", str(error), size)
            arguments = event.arguments
            if arguments is not None:
                arguments = tuple(
                    a if a.value.body is None else Argument(a.name, digest_value(a.value))
                    for a in arguments
                )
            event = replace(event, result=None, unrecordable=lost, arguments=arguments)
            books.commit(run_id, (event,), then=then)

    def _is_open(self, call: Call) -> bool:
        """Whether the attempt is still under way in the record."""
        state = self.owner.books.states.get(call.run_id)
        slot = None if state is None else state.slots.get(call.slot)
        if slot is None:
            return False
        return any(a.number == call.attempt and a.status == OPEN for a in slot.attempts)

    def _is_wanted(self, call: Call) -> bool:
        """Whether anybody will ask when the attempt ended: run and slot have no outcome yet."""
        state = self.owner.books.states.get(call.run_id)
        slot = None if state is None else state.slots.get(call.slot)
        if state is None or slot is None or state.ended is not None:
            return False
        return slot.outcome is None or call.slot in self._expired(call)

    @staticmethod
    def _certainly_not_done(definition: StepDef, error: BaseException) -> bool:
        """Whether this says that the far system did *not* act; anything else is doubt."""
        if definition.policy is Policy.RE_EXECUTABLE:
            return True
        return isinstance(error, (NotDone, CallRefused, *definition.not_done))

    def _failed(self, call: Call, error: BaseException) -> None:
        """An observed failure with an intent: retried as declared, else run code is told."""
        owner = self.owner
        run_id, slot = call.run_id, call.slot
        state = owner.books.states[run_id]
        failures = state.slots[slot].failures + 1
        retry = call.definition.retry
        again = retry is not None and failures < retry.max_attempts and state.cancel is None
        fresh = retry is not None and again and isinstance(error, retry.fresh_key_on)
        at_ms = owner.books.now_ms()
        wait_ms = retry.wait_ms(failures) if retry is not None and again else None
        events = decide.failed(
            slot,
            call.attempt,
            encode_raised(error),
            None,
            wait_ms=wait_ms,
            fresh_key=fresh,
            at_ms=at_ms,
            generation=state.event_count + 2,
        )
        heard = self._once_heard(call, "raised", error, final=not again)
        said = waits.backing_off(owner, run_id, slot, describe(error), wait_ms)
        owner.books.commit(run_id, events, at_ms=at_ms, then=waits.both(heard, said))
        after = owner.books.states[run_id].slots[slot]
        if after.outcome is not None:
            self.forget(run_id, slot)
            owner.driver.outcome_recorded(run_id, slot)
        else:
            owner.settling.look_at(run_id, slot)

    def _report(self, call: Call, kind: str, value: Any) -> None:
        """What is learnt after claim or slot have moved on is evidence, outside the claim rule."""
        if call.n == NO_INTENT or call.reported:
            return
        if kind == "returned":
            call.reported = True
            result, _ = storable(value, self.owner.settings.value_bytes_max)
            self.owner.reporter.report(call, "completed", result, None)
        elif kind == "expired":
            call.reported = True
            self.owner.reporter.report(call, "never_started", None, None)
        elif self._certainly_not_done(call.definition, value):
            call.reported = True
            self.owner.reporter.report(call, "failed", None, encode_raised(value))

    # ---- without an intent (re-executable)

    def start_bare(self, run_id: str, ask: StepAsked | ChunkAsked, attempt: int) -> None:
        """Run a step that changes nothing outside: its outcome is its first record."""
        owner = self.owner
        definition = ask.definition
        call = Call if isinstance(ask, StepAsked) else ChunkCall
        started = call(
            run_id,
            ask.slot,
            attempt,
            owner.books.claim_id,
            NO_INTENT,
            "",
            definition,
            unshared(ask),
            definition.timeout_ms,
            owner.clock,
            self._bare_ended,
            ask,
        )
        self._add(started)
        if isinstance(started, ChunkCall):
            started.threads = owner.threads
        if started.in_thread:
            started.start(asyncio.get_running_loop(), owner.threads)
        else:
            self._shared.add(started)

    def _bare_ended(self, call: Call, kind: str, value: Any) -> None:
        if self._remove(call):  # else timed out or cancelled before: nothing outside depends on it
            self.owner.guarded(call.run_id, self._record_bare, call, kind, value)

    def sweep(self) -> None:
        """End bare attempts behind their deadline. A timer for each would cost every step."""
        now_ms = self.owner.clock.boot_ms()
        late = [
            call
            for call in self.calls.values()
            if call.deadline_boot_ms <= now_ms and call.n == NO_INTENT and call.state == LOOKED
        ]
        for call in late:
            self._bare_timed_out(call)

    def _bare_timed_out(self, call: Call) -> None:
        if call.ended_boot_ms is not None or self.owner.ended:
            return
        seconds = call.definition.timeout_ms / 1000
        late = TimeoutError(f"no result within {seconds:g} s")
        self._remove(call)
        self.owner.guarded(call.run_id, self._record_bare, call, "raised", late)
        call.cancel()

    def _record_bare(self, call: Call, kind: str, value: Any) -> None:
        """A step that changes nothing outside has ended: this is its first record."""
        owner = self.owner
        ask = call.ask
        if owner.ended or ask is None:
            return
        run_id, states = call.run_id, owner.books.states
        state = states.live.get(run_id) or states[run_id]
        slot = state.slots.get(call.slot)
        if state.ended is not None or (
            slot is not None and slot.outcome is not None and call.slot not in self._expired(call)
        ):
            return
        if kind == "expired":
            kind, value = "raised", TimeoutError("the step started after its deadline")
        kept = decide.kept_arguments(ask.stored)
        bare = NoIntent(call.definition.name, ask.fingerprint, kept)
        if kind == "returned":
            result, unrecordable, fresh = storable_copy(value, owner.settings.value_bytes_max)
            model = read_model_use(value) if call.definition.is_model else None
            event = decide.completed(call.slot, call.attempt, result, unrecordable, model, bare)
            then_deliver = owner.driver.then_deliver(run_id, call.slot, fresh)
            self._completed(run_id, event, value, then_deliver)
            owner.driver.outcome_recorded(run_id, call.slot, fresh)
            return
        if state.cancel is not None:
            return  # cancelled with its run: nothing outside depends on it
        failures = 1 if slot is None else slot.failures + 1
        retry = call.definition.retry
        wait_ms = retry.wait_ms(failures) if retry and failures < retry.max_attempts else None
        at_ms = owner.books.now_ms()
        events = decide.failed(
            call.slot,
            call.attempt,
            encode_raised(value),
            bare,
            wait_ms=wait_ms,
            fresh_key=False,
            at_ms=at_ms,
            generation=state.event_count + 2,
        )
        said = waits.backing_off(owner, run_id, call.slot, describe(value), wait_ms)
        then = waits.both(said, owner.driver.then_deliver(run_id, call.slot))
        owner.books.commit(run_id, events, at_ms=at_ms, then=then)
        if wait_ms is None:
            owner.driver.outcome_recorded(run_id, call.slot)

    def _expired(self, call: Call) -> set[str]:
        actor = self.owner.driver.actors.get(call.run_id)
        return actor.expired if actor is not None else set()

    def cancel_bare(self, run_id: str) -> None:
        """The run is being cancelled: stop what changes nothing outside, at once."""
        for call in [c for c in self.calls.values() if c.run_id == run_id and c.n == NO_INTENT]:
            self._remove(call)
            call.cancel()

    # ---- bookkeeping

    def _add(self, call: Call) -> None:
        self.calls[call.run_id, call.slot, call.attempt] = call
        self._per_run[call.run_id] = self._per_run.get(call.run_id, 0) + 1

    def _remove(self, call: Call) -> bool:
        """Forget a call; False if it is forgotten already."""
        name = (call.run_id, call.slot, call.attempt)
        if self.calls.get(name) is not call:
            return False
        del self.calls[name]
        left = self._per_run[call.run_id] - 1
        if left:
            self._per_run[call.run_id] = left
        else:
            del self._per_run[call.run_id]
        return True

    def forget(self, run_id: str, slot: str) -> None:
        """The slot has its outcome: nobody asks any more how its attempts went in this claim."""
        self.ended_boot_ms.pop((run_id, slot), None)
        self.unanswered.pop((run_id, slot), None)

    def forget_run(self, run_id: str) -> None:
        """The run has ended: so it is for each of its slots, and some may never get an outcome."""
        if self.ended_boot_ms or self.unanswered:
            for slot in self.owner.books.states[run_id].slots:
                self.forget(run_id, slot)

    def claim_over(self) -> None:
        """Bar what has not looked and report it; what is in flight goes on to its deadline.

        What was learnt and not acknowledged may stand in the log without counting: it is reported.
        """
        for call, kind, value in self._unheard.values():
            self._report(call, kind, value)
        self._unheard.clear()
        for call in list(self.calls.values()):
            if call.n == NO_INTENT:
                self._remove(call)
                call.cancel()
            elif call.bar():
                self._remove(call)
                if call.timeout_handle is not None:
                    call.timeout_handle.cancel()
                call.reported = True
                self.owner.reporter.report(call, "never_started", None, None)


def read_arguments(definition: StepDef, arguments: tuple[Argument, ...]) -> dict[str, object]:
    """Recorded arguments as they are sent today: of a class that has moved, in today's type.

    Raises RefoldError where neither way can read one.
    """
    try:
        return decode_arguments(arguments)
    except RefoldError:
        types = definition.parameter_types
        return {a.name: decode_value_as(a.value, types.get(a.name)) for a in arguments}


def unshared(ask: StepAsked | ChunkAsked) -> dict[str, object]:
    """The arguments of a call to be made now, none of them an object that run code may change."""
    if isinstance(ask, ChunkAsked):
        return decode_arguments(ask.stored)
    for value in ask.arguments.values():
        if type(value) not in SCALARS:
            break
    else:
        return ask.arguments
    return {
        a.name: value if type(value := ask.arguments[a.name]) in SCALARS else decode_value(a.value)
        for a in ask.stored
    }


def decode_arguments(arguments: tuple[Argument, ...]) -> dict[str, object]:
    """The recorded arguments as they are sent: never the live objects, which may change."""
    return {a.name: decode_value(a.value) for a in arguments}


def storable(result: object, size_max: int) -> tuple[Value | None, Unrecordable | None]:
    """The stored form of a result, or what can be said of one that cannot be stored faithfully."""
    try:
        value = encode_value(result, path="result")
    except ValueRefused as refused:
        return None, unrecordable_of(result, refused.path, refused.reason, 0)
    size = len(value.body or b"")
    if size <= size_max:
        return value, None
    reason = f"{size:,} bytes, {size_max:,} are allowed"
    return None, unrecordable_of(result, "result", reason, size)


def storable_copy(
    returned: object, size_max: int
) -> tuple[Value | None, Unrecordable | None, Fresh | None]:
    """As `storable`; of plain data also a copy for run code, which then need not read it again.

    Stored is the copy itself: whoever returned the original may still be changing it.
    """
    copy = copied(returned)
    if copy is NOT_PLAIN:
        return *storable(returned, size_max), None
    value, unrecordable = storable(copy, size_max)
    return value, unrecordable, None if value is None else Fresh(value, copy)


def unrecordable_of(result: object, path: str, reason: str, size: int) -> Unrecordable:
    """What is kept of a result that cannot be stored. `size` in bytes, 0 where it has none."""
    kind = class_id(type(result)).replace(":", ".")
    return Unrecordable(kind, path, reason, size, short_repr(result))


def describe(error: BaseException) -> str:
    """An exception in one line, as the reason of a doubt."""
    return line_of(error)


__all__ = ["Attempts", "ErrorInfo", "describe", "storable"]
