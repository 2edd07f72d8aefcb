"""Breadth-first exploration of every world, with the shortest trace to a broken property."""

import time
from array import array
from dataclasses import dataclass
from itertools import pairwise

from model.properties import broken_property, can_progress, has_settled
from model.transitions import FAULTS, Action, Protocol
from model.world import World


@dataclass(frozen=True, slots=True)
class Result:
    """What an exploration saw. `broken` is the property that does not hold, with its `trace`."""

    states: int
    seconds: float
    exhausted: bool
    broken: str | None
    trace: tuple[Action, ...]


class Explorer:
    """Explores one protocol from its initial world to the last, or to the state limit."""

    def __init__(self, protocol: Protocol, *, progress: bool = True) -> None:
        self.protocol = protocol
        self.progress = progress
        self.worlds: list[World] = []
        self._numbers: dict[World, int] = {}
        self._parents = array("l")
        # Edges that need no fault, as pairs (from, to).
        self._sources = array("l")
        self._targets = array("l")

    def explore(self) -> Result:
        """Look at every world once, then, if all were seen, whether each can still settle."""
        began = time.perf_counter()
        self._number(self.protocol.initial(), -1)
        broken: str | None = None
        trace: tuple[Action, ...] = ()
        at = 0
        limit = self.protocol.settings.states_max
        while at < len(self.worlds) < limit and broken is None:
            for action, world in self.protocol.steps(self.worlds[at]):
                number = self._numbers.get(world)
                is_new = number is None
                if number is None:
                    number = self._number(world, at)
                if self.progress and action[0] not in FAULTS:
                    self._sources.append(at)
                    self._targets.append(number)
                # A start of an effect and a decision are judged as steps, not only as worlds.
                if is_new or action[0] in ("sends", "decides"):
                    broken = broken_property(self.protocol, action, world)
                    if broken is not None:
                        trace = (*self._trace(at), action)
                        break
            at += 1
        exhausted = at >= len(self.worlds)
        if broken is None and exhausted and self.progress:
            stuck = self._stuck()
            if stuck is not None:
                broken = "progress: from here the run can never settle"
                trace = self._trace(stuck)
        seconds = time.perf_counter() - began
        return Result(len(self.worlds), seconds, exhausted, broken, trace)

    def _number(self, world: World, parent: int) -> int:
        number = len(self.worlds)
        self._numbers[world] = number
        self.worlds.append(world)
        self._parents.append(parent)
        return number

    def _stuck(self) -> int | None:
        """A world from which the run cannot settle without a fault; None if there is none."""
        settled = bytearray(has_settled(self.protocol, world) for world in self.worlds)
        sources: dict[int, list[int]] = {}
        for source, target in zip(self._sources, self._targets, strict=True):
            if not settled[source]:
                sources.setdefault(target, []).append(source)
        reach = [number for number, is_settled in enumerate(settled) if is_settled]
        while reach:
            for source in sources.get(reach.pop(), ()):
                if not settled[source]:
                    settled[source] = 1
                    reach.append(source)
        for number, can_settle in enumerate(settled):
            if not can_settle and can_progress(self.protocol, self.worlds[number]):
                return number
        return None

    def _trace(self, number: int) -> tuple[Action, ...]:
        """The actions from the initial world to world `number`, found again by stepping."""
        path = [number]
        while self._parents[path[-1]] >= 0:
            path.append(self._parents[path[-1]])
        path.reverse()
        actions: list[Action] = []
        for before, after in pairwise(path):
            for action, world in self.protocol.steps(self.worlds[before]):
                if world == self.worlds[after]:
                    actions.append(action)
                    break
        return tuple(actions)
