"""A failure names the line of the author's code; paths and tracebacks stay out of the log."""

import json

from refold.app import App, RunContext
from refold_schemas.events import RunFailed, StepFailed, StepInDoubt
from refold_schemas.values import NotDone, Policy
from support.lab import Lab

HERE = "test_failure_places.py"


def app() -> App:
    made = App("places")

    @made.step(policy=Policy.RE_EXECUTABLE)
    async def parse(text: str) -> object:
        return json.loads(text)

    @made.step(not_done=(LookupError,))
    async def book(item: int) -> int:
        raise (ConnectionError if item else LookupError)(f"item {item}")

    @made.run("raise")
    async def raise_(ctx: RunContext, given: int) -> int:
        return given["total"]  # type: ignore[index,no-any-return]

    @made.run("parse")
    async def parse_(ctx: RunContext) -> object:
        return await ctx.step(parse, "{")

    @made.run("book")
    async def book_(ctx: RunContext, item: int) -> int:
        try:
            return await ctx.step(book, item)
        except LookupError as error:
            raise NotDone(str(error)) from None

    @made.run("log")
    async def log_(ctx: RunContext) -> str:
        ctx.log.info("it is %s", "late", by=Unspeakable())
        return "done"

    return made


class Unspeakable:
    """Its repr cannot be made."""

    def __repr__(self) -> str:
        raise ValueError("no words")


def line_of(text: str) -> int:
    """The line of this file that has the text, counted from 1."""
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


def lab_after(run: str, given: object = None) -> Lab:
    lab = Lab()
    lab.worker(app())
    lab.start(run, given)
    lab.run(10, until=lambda: lab.ended() or lab.needs("person"))
    lab.run(0.1)
    return lab


def test_a_failed_run_names_its_line_and_only_the_console_has_the_traceback() -> None:
    lab = lab_after("raise", 3)
    (failed,) = lab.events(RunFailed)
    assert isinstance(failed, RunFailed)
    place = f"(in {HERE}:{line_of('return given[')}, raise_)"
    assert failed.error.message == f"'int' object is not subscriptable {place}"
    (shown,) = [event.text for event in lab.told if event.kind == "traceback"]
    assert shown.startswith("Traceback (most recent call last):")
    assert shown.endswith("TypeError: 'int' object is not subscriptable")
    assert not any(__file__.encode() in repr(event).encode() for event in lab.events())


def test_a_failed_step_names_the_innermost_line_of_the_authors_own_code() -> None:
    lab = lab_after("parse")
    (failed,) = lab.events(StepFailed)
    assert isinstance(failed, StepFailed)
    assert failed.error.message.endswith(f"(in {HERE}:{line_of('return json.loads')}, parse)")
    (ended,) = lab.events(RunFailed)
    assert isinstance(ended, RunFailed)
    assert ended.error.message.endswith(f"(in {HERE}:{line_of('ctx.step(parse')}, parse_)")


def test_a_step_in_doubt_names_the_line_that_raised() -> None:
    lab = lab_after("book", 1)
    (doubt,) = lab.events(StepInDoubt)
    assert isinstance(doubt, StepInDoubt)
    line = line_of("raise (ConnectionError")
    assert doubt.reason == f"ConnectionError: item 1 (in {HERE}:{line}, book)"


def test_a_declared_failure_comes_back_without_the_place() -> None:
    lab = lab_after("book", 0)
    (failed,) = lab.events(StepFailed)
    assert isinstance(failed, StepFailed)
    assert failed.error.message.startswith(f"item 0 (in {HERE}:")
    (ended,) = lab.events(RunFailed)
    assert isinstance(ended, RunFailed)
    line = line_of("raise NotDone(str")
    assert ended.error.message == f"item 0 (in {HERE}:{line}, book_)"


def test_a_log_line_with_a_field_that_cannot_be_shown_fails_nothing() -> None:
    lab = lab_after("log")
    assert lab.status() == "completed"
    (line,) = [event.text for event in lab.told if event.kind == "log"]
    assert line == "info: it is late by=<Unspeakable: its repr raised ValueError>"
