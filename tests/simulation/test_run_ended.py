"""What a run leaves behind when it ends: no timer without need, no proof that proves nothing."""

import immutables

from refold.engine import decide
from refold_projections.fold import Outcome, RunState, Slot, Timer
from refold_schemas.events import RunCancelled, TimerCancelled, TimerScheduled
from refold_schemas.values import encode_value

END = RunCancelled("enough")


def state(slots: tuple[Slot, ...] = (), timers: tuple[Timer, ...] = ()) -> RunState:
    return RunState(
        run_id="run-1",
        run="order",
        version="1",
        input=encode_value(None),
        nonce=bytes(32),
        started_ms=0,
        slots=immutables.Map({slot.name: slot for slot in slots}),
        timers=immutables.Map({timer.timer_id: timer for timer in timers}),
    )


def absent(outcome: Outcome | None) -> Slot:
    return Slot("book#1", "book", 0, absent_until_proven=True, outcome=outcome)


def test_the_timers_of_a_cancelled_run_end_with_it() -> None:
    sleep = Timer("sleep:sleep#1", 4, "sleep", "sleep#1", 99)
    proof = Timer("proof:book#1", 5, "proof", "book#1", 99)
    events = decide.run_ended(state(timers=(sleep, proof)), END, 10, set())
    assert events == (TimerCancelled("sleep:sleep#1", 4), END)


def test_an_absence_that_was_the_last_word_is_looked_up_once_more() -> None:
    for outcome in (None, Outcome("absent", 0, 0)):
        _, timer = decide.run_ended(state((absent(outcome),)), END, 10, {"book"})
        assert isinstance(timer, TimerScheduled)
        assert (timer.kind, timer.slot, timer.deadline_ms) == ("proof", "book#1", 10)


def test_a_later_attempt_that_did_it_leaves_nothing_to_prove() -> None:
    done = Outcome("ok", 0, 0, encode_value(1))
    assert decide.run_ended(state((absent(done),)), END, 10, {"book"}) == (END,)
