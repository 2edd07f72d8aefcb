"""What a demo tells: which run, when its process dies, how its events read, and what must hold."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from refold_projections.fold import Boundary, Slot


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment to die at: the vendor has taken the call in, and its answer never arrives.

    `turn` is how the story counts (None: it does not). `after` says how many calls of `route` come
    first, given the slots that are done. `effect` is the kind of effect that shows that the vendor
    acted; None for calls that change nothing. `acted` is how the world tells it.
    """

    turn: int | None
    slot: str
    step: str
    route: str
    after: Callable[[Collection[str]], int]
    effect: str | None
    acted: str


class Verdict(NamedTuple):
    """What a person found out about a slot in doubt: whether it happened, what it gave, how."""

    happened: bool
    result: object
    said: str


class Story(ABC):
    """One run of one of the example applications, with its deaths."""

    name: str
    target: str
    run: str
    run_id: str
    given: object
    title: str

    @property
    @abstractmethod
    def moments(self) -> Sequence[Moment]:
        """When the worker's process is killed, in order."""

    @abstractmethod
    def line(self, slot: str, step: str) -> str | None:
        """How the agent tells of a step; None to pass over it."""

    @abstractmethod
    def vendor(self, step: str) -> str:
        """Who does what the step asks for."""

    @abstractmethod
    def expected(self) -> Mapping[str, int]:
        """The effects of a run that did everything once, by kind."""

    @abstractmethod
    def expected_calls(self, slots: Mapping[str, Slot]) -> Mapping[str, Sequence[str]]:
        """For each route the slots that call it, once for each time a call is due."""

    def judge(self, step: str, ledger: Sequence[dict[str, Any]], settled: int) -> Verdict | None:
        """What a person says who has read the world's ledger; None if the story needs nobody."""
        return None

    def lost(self, seen: Boundary, moment: Moment) -> str:
        """What died with the process."""
        return f"the answer to {moment.step} is lost with it"

    def also(self, ledger: Sequence[dict[str, Any]]) -> Mapping[str, object]:
        """More for `--json`, read off the ledger."""
        return {}

    def holds(self, result: object, ledger: Sequence[dict[str, Any]]) -> str | None:
        """What else must hold at the end; a sentence if it does not."""
        return None
