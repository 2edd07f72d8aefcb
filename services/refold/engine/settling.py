"""Settles slots in doubt: late reports, repeats under the same key, lookups, people, and proofs."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from refold.app.definitions import StepDef
from refold.engine import decide, waits
from refold.engine.attempts import describe, storable, unrecordable_of
from refold.engine.books import DecisionTooLarge
from refold.engine.far_system import Answered, ask_far_system
from refold.engine.recovery import Do, Facts, Move, believe_in_ms, next_move
from refold.engine.session import ChunkAsked
from refold_projections.fold import FAILED, NEVER_STARTED, Attempt, RunState, Slot, Timer
from refold_schemas.events import (
    EvidenceConflict,
    RunEvent,
    TimerCancelled,
    TimerFired,
    TimerScheduled,
)
from refold_schemas.values import Policy, Unrecordable, encode_error

if TYPE_CHECKING:
    from refold.engine.owner import PartitionOwner

PROOF_AGAIN_MS: Final = 3600 * 1000
LOOKUPS_MAX: Final = 16
"""How many lookups of one step a partition makes at once. A takeover may find thousands in doubt,
and whoever is asked may be what was down; one that does not answer holds up no other step's."""


class Settling:
    """Looks at slots without an outcome and does the next thing that `next_move` says."""

    def __init__(self, owner: "PartitionOwner") -> None:
        self.owner = owner
        self._places: dict[str, asyncio.Semaphore] = {}
        """Room for lookups, by step."""

    def look_at(self, run_id: str, name: str) -> None:
        """Do what the slot needs next; harmless if it needs nothing."""
        owner = self.owner
        if owner.ended or owner.draining:
            return
        state = owner.books.states.get(run_id)
        slot = None if state is None else state.slots.get(name)
        if state is None or slot is None or state.ended is not None:
            return
        actor = owner.driver.actors.get(run_id)
        if actor is None or (actor.session is None and state.cancel is None):
            return  # whoever replays the run will ask for it again
        expired = name in actor.expired
        if slot.outcome is not None and not expired:
            return
        definition = owner.app.steps.get(slot.step)
        if definition is None:
            return  # the session finds the divergence
        if name in actor.lookups:
            return
        ask = actor.asked.get(name)
        if ask is None and state.cancel is None:
            return  # run code has not come here yet: whether it still matches is not known
        move = next_move(state, slot, self._facts(run_id, slot, definition, expired))
        if move.do is Do.SETTLE:
            assert move.attempt is not None
            self._settle(run_id, state, slot, move.attempt, move.verdict)
        elif move.do is Do.ATTEMPT:
            if move.wait_ms > 0:
                again = "tried again at {at}"
                if slot.unsettled:
                    again = "repeated under the same key at {at}"
                self._wait("backoff", run_id, state, name, move.wait_ms, again)
            elif ask is not None:
                self._attempt(run_id, slot, definition, ask, fresh=move.fresh)
        elif move.do is Do.LOOK_UP:
            looking = self._look_up(run_id, slot, definition, move)
            actor.lookups[name] = asyncio.get_running_loop().create_task(looking)
        elif move.do is Do.ESCALATE:
            assert move.attempt is not None
            self.escalate(run_id, name, move.attempt, move.reason)
        elif move.do is Do.BLOCK:
            owner.driver.block(run_id, "limit", move.reason)
        elif move.do is Do.FAIL:
            assert move.attempt is not None
            number, error = move.attempt.number, move.attempt.reported_error
            event = decide.resolved(name, number, "failed", "owner", error=error, final=True)
            self._record(run_id, name, (event,))
        elif state.cancel is not None and not slot.unsettled:
            if actor.session is None:
                owner.soon(owner.driver.cancelling, actor)
            else:
                self._close_cancelled(run_id, slot)

    def _facts(self, run_id: str, slot: Slot, definition: StepDef, expired: bool) -> Facts:
        owner = self.owner
        boot_ms = owner.clock.boot_ms()
        running = owner.attempts.running(run_id, slot)
        ends = owner.attempts.ended_boot_ms.get((run_id, slot.name), {})
        last_end = None
        if slot.attempts:
            number = slot.attempts[-1].number
            call = owner.attempts.calls.get((run_id, slot.name, number))
            # One that runs on behind its deadline will not end: back-off counts from there.
            last_end = ends.get(number) if call is None else call.deadline_boot_ms
        believe = believe_in_ms(
            slot,
            owner.books.claim_id,
            boot_ms=boot_ms,
            claimed_boot_ms=owner.claimed_boot_ms,
            ended_boot_ms=ends,
            running=running,
        )
        settings = owner.settings
        return Facts(
            owner.books.claim_id,
            owner.books.now_ms(),
            believe,
            0 if last_end is None else boot_ms - last_end,
            running,
            definition.timeout_ms,
            definition.lookup is not None,
            self._retries_left(slot),
            definition.lookup_for_ms,
            expired,
            settings.repeats_max,
            settings.repeat_first_ms,
            settings.repeat_max_ms,
            owner.log_clock.latest_ms(boot_ms),
            settings.clock_skew_max_ms,
        )

    def believe_in_ms(self, run_id: str, slot: Slot) -> int:
        """How long "it did not happen" cannot be believed yet; 0 or less: now."""
        owner = self.owner
        return believe_in_ms(
            slot,
            owner.books.claim_id,
            boot_ms=owner.clock.boot_ms(),
            claimed_boot_ms=owner.claimed_boot_ms,
            ended_boot_ms=owner.attempts.ended_boot_ms.get((run_id, slot.name), {}),
            running=owner.attempts.running(run_id, slot),
        )

    def _attempt(
        self, run_id: str, slot: Slot, definition: StepDef, ask: Any, *, fresh: bool
    ) -> None:
        attempts = self.owner.attempts
        bare = definition.policy is Policy.RE_EXECUTABLE and not slot.attempts
        if bare and (isinstance(ask, ChunkAsked) or not self.owner.suspicious):
            if not attempts.busy_with(run_id, slot.name):
                attempts.start_bare(run_id, ask, slot.failures + 1)
            return
        attempts.intend(run_id, slot.name, ask, fresh=fresh)

    def _wait(
        self, kind: str, run_id: str, state: RunState, name: str, wait_ms: int, next: str
    ) -> None:
        """Arm a timer; `next` says what comes when it is due."""
        at_ms = self.owner.books.now_ms()
        event = decide.timer(kind, name, at_ms + wait_ms, state.event_count + 1)
        last = state.slots[name].unsettled[-1:]
        then = waits.settling(self.owner, run_id, name, last[0] if last else None, next, wait_ms)
        self.owner.books.commit(run_id, (event,), at_ms=at_ms, then=then)

    def escalate(self, run_id: str, name: str, attempt: Attempt, reason: str) -> None:
        """Hand the slot to a person: durable, visible, and nothing happens until they say."""
        event = decide.in_doubt(name, attempt.number, reason, escalated=True)
        owner = self.owner

        def told() -> None:
            text = f"{name}: {reason}"
            owner.tell("in_doubt", run_id, text, slot=name, attempt=attempt.number)

        owner.books.commit(run_id, (event,), then=told)

    def _settle(
        self, run_id: str, state: RunState, slot: Slot, attempt: Attempt, verdict: str
    ) -> None:
        """A late report settles its attempt; in a cancelled run a re-executable one is absent."""
        event: RunEvent
        others = [a for a in slot.unsettled if a.number != attempt.number]
        final = state.cancel is not None and not others
        if verdict == "done":
            if attempt.reported_result is None:
                reason = "a late report says it completed, but its result could not be stored"
                lost = Unrecordable("unknown", "result", reason, 0, "")
                event = decide.completed(slot.name, attempt.number, None, lost, None, None)
            else:
                event = decide.resolved(
                    slot.name,
                    attempt.number,
                    "done",
                    "late_report",
                    result=attempt.reported_result,
                )
        elif verdict == "absent":
            event = decide.resolved(slot.name, attempt.number, "absent", "owner", final=final)
        else:
            event = decide.resolved(
                slot.name,
                attempt.number,
                verdict,
                "late_report",
                error=attempt.reported_error,
                final=final,
            )
        self._record(run_id, slot.name, (event,))

    def _retries_left(self, slot: Slot) -> bool:
        definition = self.owner.app.steps.get(slot.step)
        retry = None if definition is None else definition.retry
        return slot.failures < (1 if retry is None else retry.max_attempts)

    def _record(
        self, run_id: str, name: str, events: tuple[RunEvent, ...], said: waits.Then = None
    ) -> None:
        """Write a settlement and go on from it: tell run code, or look at the slot again."""
        owner = self.owner
        then = waits.both(said, owner.driver.then_deliver(run_id, name))
        owner.books.commit(run_id, events, then=then)
        self.after(run_id, name)

    def after(self, run_id: str, name: str) -> None:
        """Something about the slot was recorded: run code is told, or the next move is made."""
        owner = self.owner
        state = owner.books.states[run_id]
        if state.slots[name].outcome is not None:
            owner.attempts.forget(run_id, name)
            owner.driver.outcome_recorded(run_id, name)
        else:
            self.look_at(run_id, name)
        actor = owner.driver.actors.get(run_id)
        if state.cancel is not None and actor is not None:
            owner.driver.cancelling(actor)

    def _close_cancelled(self, run_id: str, slot: Slot) -> None:
        """A slot of a run being cancelled whose attempts are all settled: run code, if it is the
        release of an acquisition, is told that it ended without its effect."""
        actor = self.owner.driver.actors.get(run_id)
        if actor is None or actor.session is None or not slot.attempts:
            return
        last = slot.attempts[-1]
        verdict = last.status if last.status in (FAILED, NEVER_STARTED) else "absent"
        error = last.reported_error
        event = decide.resolved(slot.name, last.number, verdict, "owner", error=error, final=True)
        self._record(run_id, slot.name, (event,))

    # ---- lookups

    async def _look_up(self, run_id: str, slot: Slot, definition: StepDef, move: Move) -> None:
        owner = self.owner
        try:
            kind, value = await self.ask_far_system(definition, slot.effect_key)
        finally:
            actor = owner.driver.actors.get(run_id)
            if actor is not None and actor.lookups.get(slot.name) is asyncio.current_task():
                del actor.lookups[slot.name]
        if owner.ended or actor is None:
            return
        owner.guarded(run_id, self._answered, run_id, slot, definition, move, kind, value)

    def _answered(
        self, run_id: str, slot: Slot, definition: StepDef, move: Move, kind: str, value: Any
    ) -> None:
        """The far system has answered, or not: settle what that settles."""
        owner = self.owner
        actor = owner.driver.actors[run_id]
        state = owner.books.states[run_id]
        now = state.slots[slot.name]
        if now.outcome is not None and slot.name not in actor.expired:
            return
        if not now.unsettled or now.attempts != slot.attempts:
            self.look_at(run_id, slot.name)  # something else was learnt meanwhile
            return
        last = now.unsettled[-1]
        if kind == "found":
            owner.attempts.unanswered.pop((run_id, slot.name), None)
            self._found(run_id, slot.name, last.number, value)
        elif kind == "rejected":
            owner.attempts.unanswered.pop((run_id, slot.name), None)
            self._rejected(run_id, state, now, definition, value)
        elif kind == "absent" and move.believe:
            owner.attempts.unanswered.pop((run_id, slot.name), None)
            self._absent(run_id, state, now, last)
        elif kind == "absent":
            wait_ms = max(self.believe_in_ms(run_id, now), 1)
            self._wait("settle", run_id, state, slot.name, wait_ms, "looked up again at {at}")
        else:
            self._no_answer(run_id, state, now, last, value)

    def _found(self, run_id: str, name: str, number: int, value: object) -> None:
        """The far system has it: the slot is done, whether or not its result can be stored."""
        owner = self.owner
        result, unrecordable = storable(value, owner.settings.value_bytes_max)
        event: RunEvent
        if result is None:
            event = decide.completed(name, number, None, unrecordable, None, None)
        else:
            event = decide.resolved(name, number, "done", "lookup", result=result)
        then = owner.driver.then_deliver(run_id, name)
        try:
            owner.books.commit(run_id, (event,), then=then)
        except DecisionTooLarge as error:
            lost = unrecordable_of(value, "result", str(error), 0)
            event = decide.completed(name, number, None, lost, None, None)
            owner.books.commit(run_id, (event,), then=then)
        self.after(run_id, name)

    def _rejected(
        self, run_id: str, state: RunState, slot: Slot, definition: StepDef, error: BaseException
    ) -> None:
        """An observed failure, found out by key: retried as declared, else run code is told."""
        retry = definition.retry
        failures = slot.failures + 1
        again = retry is not None and failures < retry.max_attempts and state.cancel is None
        fresh = retry is not None and again and isinstance(error, retry.fresh_key_on)
        wait_ms = retry.wait_ms(failures) if retry is not None and again else None
        events = decide.rejected_by_lookup(
            slot,
            encode_error(error),
            wait_ms=wait_ms,
            fresh_key=fresh,
            at_ms=self.owner.books.now_ms(),
            generation=state.event_count + len(slot.unsettled) + 2,
        )
        said = waits.backing_off(self.owner, run_id, slot.name, describe(error), wait_ms)
        self._record(run_id, slot.name, events, said)

    def _absent(self, run_id: str, state: RunState, slot: Slot, last: Attempt) -> None:
        """Absence is proven as far as settle goes: the next attempt, in a cancelled run the end."""
        cancelled = state.cancel is not None
        event = decide.resolved(slot.name, last.number, "absent", "lookup", final=cancelled)
        self._record(run_id, slot.name, (event,))

    def _no_answer(self, run_id: str, state: RunState, slot: Slot, last: Attempt, why: str) -> None:
        """Pending, an exception or rubbish is no answer: said in the boundary, asked again."""
        owner = self.owner
        unanswered = owner.attempts.unanswered
        times = unanswered[run_id, slot.name] = unanswered.get((run_id, slot.name), 0) + 1
        settings = owner.settings
        wait_ms = min(settings.lookup_first_ms * 2 ** min(times - 1, 16), settings.lookup_max_ms)
        at_ms = owner.books.now_ms()
        reason = f"its lookup gave no answer: {why}"
        # Told until nothing about it changes any more: neither the answer nor the wait.
        new = last.reason != reason or wait_ms < settings.lookup_max_ms
        events: list[RunEvent] = []
        if last.reason != reason:
            events.append(decide.in_doubt(slot.name, last.number, reason, escalated=False))
        events.append(decide.timer("lookup", slot.name, at_ms + wait_ms, state.event_count + 2))
        doubt = last._replace(reason=reason)
        again = "looked up again at {at}"
        said = waits.settling(owner, run_id, slot.name, doubt, again, wait_ms) if new else None
        owner.books.commit(run_id, events, at_ms=at_ms, then=said)

    async def ask_far_system(self, definition: StepDef, key: str) -> tuple[str, Any]:
        """One lookup by our own key: found, absent, rejected, or no answer with what was seen."""
        timeout_s = self.owner.settings.lookup_timeout_ms / 1000
        places = self._places.get(definition.name)
        if places is None:
            places = self._places[definition.name] = asyncio.Semaphore(LOOKUPS_MAX)
        in_thread = self._in_thread
        async with places:
            return await ask_far_system(definition, key, timeout_s=timeout_s, in_thread=in_thread)

    async def _in_thread(self, call: Callable[[], Answered]) -> Answered:
        # Threads of their own: lookups that hang must not take those of the steps.
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.owner.lookup_threads, call)

    # ---- proofs

    def prove(self, state: RunState, timer: Timer) -> None:
        """A day later: look once more for an effect whose absence was a slot's last word.

        The look after this one is on record before it is made: one without an answer, one whose
        claim ends meanwhile, and one that ends its process are made again, an hour later. A step
        that this app cannot look up is left to a claim of one that can.
        """
        owner = self.owner
        run_id, slot = state.run_id, state.slots.get(timer.slot)
        fired = TimerFired(timer.timer_id, timer.generation)
        if slot is None or not decide.owes_proof(slot):
            owner.books.commit(run_id, (fired,))
            return
        definition = owner.app.steps.get(slot.step)
        if definition is None or definition.lookup is None:
            return
        look = (run_id, slot, definition)
        at_ms = owner.books.now_ms()
        again = decide.timer("proof", slot.name, at_ms + PROOF_AGAIN_MS, state.event_count + 1)
        owner.books.commit(
            run_id,
            (fired, again),
            at_ms=at_ms,
            then=lambda: owner.background(self._prove(*look, again)),
        )

    async def _prove(
        self, run_id: str, slot: Slot, definition: StepDef, again: TimerScheduled
    ) -> None:
        kind, _ = await self.ask_far_system(definition, slot.effect_key)
        owner = self.owner
        if owner.ended or kind == "none":
            return
        needless = TimerCancelled(again.timer_id, again.generation)
        now = owner.books.states[run_id].slots[slot.name]
        if kind != "found" or not decide.owes_proof(now) or now.effect_key != slot.effect_key:
            owner.books.commit(run_id, (needless,))
            return
        last = now.attempts[-1]
        settled = f"{last.status} was the slot's last word"
        owner.books.commit(
            run_id,
            (
                EvidenceConflict(slot.name, last.number, settled, "a lookup found it later"),
                needless,
            ),
            then=lambda: owner.tell(
                "conflict",
                run_id,
                f"{slot.name}: found after all",
                slot=slot.name,
                attempt=last.number,
            ),
        )
