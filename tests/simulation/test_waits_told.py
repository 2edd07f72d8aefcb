"""What a run waits for is told once it is durable: silence while something is wrong is no news."""

from datetime import timedelta
from typing import Any

from refold import Absent, App, Effect, NotDone, Pending, Policy, Retry, RunContext
from support.lab import Lab

NO_ANSWER = ConnectionError("no\nanswer")


def told(lab: Lab) -> list[tuple[str, str]]:
    """Kind and text of what was told of a run, without its end."""
    kinds = {"waiting", "in_doubt"}
    return [(event.kind, event.text) for event in lab.told if event.kind in kinds]


def played(seconds: float, answer: Any, **options: Any) -> list[tuple[str, str]]:
    """What is told while a step raises NO_ANSWER, or the `error` in `options`, for ever."""
    lab, app = Lab(), App("waits")
    error = options.pop("error", NO_ANSWER)

    async def find(key: str) -> Any:
        return answer

    if answer is not None:
        options["lookup"] = find

    @app.step(**options)
    async def charge(fx: Effect) -> None:
        raise error

    @app.run("r")
    async def r(ctx: RunContext) -> None:
        await ctx.step(charge)

    lab.start("r")
    lab.worker(app)
    lab.run(seconds)
    return told(lab)


def test_an_exception_in_a_keyed_step_says_when_it_is_repeated() -> None:
    seen = played(2.5, None, policy=Policy.KEYED, key_ttl=None)
    for number, at in ((1, "08:00:01"), (2, "08:00:03")):
        kind, text = seen[number - 1]
        assert kind == "in_doubt"
        assert text.startswith(f"charge#1 attempt {number}: ConnectionError: no answer")
        assert text.endswith(f"; repeated under the same key at {at}")


def test_a_settle_wait_says_when_the_lookup_is_asked_again() -> None:
    settle = timedelta(minutes=50)
    [(kind, text)] = played(9, Absent(), policy=Policy.RESOLVABLE, settle=settle)
    assert kind == "in_doubt"
    assert text.startswith("charge#1 attempt 1: ConnectionError: no answer")
    assert "; looked up again at 08:5" in text


def test_a_lookup_without_an_answer_is_told_until_nothing_changes_any_more() -> None:
    seen = played(900, Pending(), policy=Policy.RESOLVABLE, settle=timedelta(seconds=1))
    assert 4 <= len(seen) <= 8, "and not once a minute for ever"
    kind, text = seen[0]
    assert kind == "in_doubt"
    assert "its lookup gave no answer: the far system is still at work on it" in text
    assert "; looked up again at " in text


def test_a_retry_back_off_is_told_and_a_short_one_is_not() -> None:
    retry = Retry(max_attempts=5, first_wait=timedelta(milliseconds=400), factor=10)
    for policy in (Policy.ESCALATE, Policy.RE_EXECUTABLE):
        seen = played(3, None, policy=policy, retry=retry, error=NotDone("no funds"))
        [(kind, text)] = seen
        assert kind == "waiting"
        assert text.startswith("charge#1 did not act: NotDone: no funds; tried again at 08:00:0")


def test_a_sleep_says_until_when() -> None:
    lab, app = Lab(), App("sleeper", time_zone="Asia/Tokyo")

    @app.run("r")
    async def r(ctx: RunContext) -> None:
        await ctx.sleep(timedelta(milliseconds=500))
        await ctx.sleep(timedelta(days=1))

    lab.start("r")
    lab.worker(app)
    lab.run(5)
    assert told(lab) == [("waiting", "until 2027-01-16 17:00")]
