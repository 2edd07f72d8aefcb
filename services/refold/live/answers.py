"""The figures over HTTP: JSON for a page, and metrics; answers are made in the service's loop."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from refold.telemetry import Sample
from refold.telemetry.serving import Answer, Route, json_answer, problem
from refold_projections.figures import Figures, QuestionRefused

ANSWER_S = 5.0
"""How long the service's loop may take for an answer."""
KNOWN = frozenset({"window", "since_ms", "until_ms", "run", "step"})
DEFAULT_WINDOW = "minute"
Made = TypeVar("Made")


def routes(
    figures: Callable[[], Figures], loop: asyncio.AbstractEventLoop, namespace: str
) -> dict[str, Route]:
    """`/figures?window=…`, `/totals`, `/waiting` and `/health`; each answer names the namespace."""

    def windows(query: Mapping[str, str]) -> Any:
        asked = _named(query)
        return figures().windows(
            asked.get("window", DEFAULT_WINDOW),
            since_ms=_number(asked, "since_ms"),
            until_ms=_number(asked, "until_ms"),
            run=asked.get("run"),
            step=asked.get("step"),
        )

    def totals(query: Mapping[str, str]) -> Any:
        asked = _named(query)
        return figures().totals(run=asked.get("run"), step=asked.get("step"))

    def answered(make: Callable[[Mapping[str, str]], Any]) -> Route:
        def route(query: Mapping[str, str]) -> Answer:
            try:
                return json_answer({"namespace": namespace, **in_loop(loop, lambda: make(query))})
            except QuestionRefused as error:
                return problem(400, "no such question", str(error))

        return route

    return {
        "/figures": answered(windows),
        "/totals": answered(totals),
        "/waiting": answered(lambda query: figures().waiting()),
        "/health": answered(lambda query: {"partitions": figures().partitions()}),
    }


def sampled(
    sampler: Callable[[], Iterable[Sample]], loop: asyncio.AbstractEventLoop
) -> Callable[[], Iterable[Sample]]:
    """The sampler, asked in the loop: the figures change in it."""
    return lambda: in_loop(loop, lambda: list(sampler()))


def in_loop(loop: asyncio.AbstractEventLoop, make: Callable[[], Made]) -> Made:
    """What `make` returns in the loop. Raises TimeoutError, and what it raises."""

    async def made() -> Made:
        return make()

    asked = asyncio.run_coroutine_threadsafe(made(), loop)
    try:
        return asked.result(ANSWER_S)
    except TimeoutError:
        asked.cancel()
        raise


def _named(query: Mapping[str, str]) -> Mapping[str, str]:
    unknown = sorted(query.keys() - KNOWN)
    if unknown:
        raise QuestionRefused(f"{unknown[0]!r} is not one of {', '.join(sorted(KNOWN))}")
    return query


def _number(query: Mapping[str, str], name: str) -> int | None:
    if name not in query:
        return None
    try:
        return int(query[name][:20])
    except ValueError:
        raise QuestionRefused(f"{name} is no whole number of milliseconds") from None
