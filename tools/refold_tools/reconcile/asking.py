"""Asks far systems by key: so many at once, again after a while, and not for ever."""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from refold.engine.far_system import Answered, ask_far_system
from refold_tools.reconcile.judging import Answer
from refold_tools.reconcile.selecting import Effect


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard far systems are asked. A key is unknown after `tries` lookups without an answer.

    After `silent_max` keys in a row of one step without an answer the rest of them are not asked in
    this round. `keys_max` keys are asked in one round.
    """

    at_once: int = 8
    tries: int = 3
    timeout_s: float = 30.0
    first_wait_s: float = 1.0
    silent_max: int = 5
    keys_max: int = 100_000


class Asking:
    """One round of questions."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._silent: Counter[str] = Counter()
        self.lookups = 0

    async def ask_all(
        self, effects: Iterable[Effect], tell: Callable[[Effect, Answer], None]
    ) -> None:
        """Ask about each effect and `tell` its answer, in the order in which they come."""
        left = deque(effects)

        async def work() -> None:
            while left:
                effect = left.popleft()
                tell(effect, await self._ask(effect))

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._limits.at_once, len(left))):
                group.create_task(work())

    async def _ask(self, effect: Effect) -> Answer:
        limits, definition = self._limits, effect.definition
        assert definition is not None
        step = definition.name
        answer = Answer("none", "it was not asked")
        for number in range(limits.tries):
            if self._silent[step] >= limits.silent_max:
                told = f"not asked: the lookup of {step} gave no answer {limits.silent_max} times"
                return Answer("none", f"{told} in a row")
            if number:
                await asyncio.sleep(limits.first_wait_s * 2 ** (number - 1))
            self.lookups += 1
            answer = Answer(
                *await ask_far_system(
                    definition,
                    effect.entry.effect_key,
                    timeout_s=limits.timeout_s,
                    in_thread=in_thread,
                )
            )
            if answer.kind != "none":
                self._silent[step] = 0
                return answer
        self._silent[step] += 1
        return answer


async def in_thread(call: Callable[[], Answered]) -> Answered:
    """Run `call` in a thread of its own, which holds no process that wants to end."""
    loop = asyncio.get_running_loop()
    came: asyncio.Future[Answered] = loop.create_future()

    def put(answered: Answered) -> None:
        if not came.done():
            came.set_result(answered)

    def work() -> None:
        answered = call()
        with suppress(RuntimeError):  # the loop is closed: nobody wants it any more
            loop.call_soon_threadsafe(put, answered)

    threading.Thread(target=work, name="refold lookup", daemon=True).start()
    return await came
