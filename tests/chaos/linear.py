"""Whether a history of operations on one register, or one set, is linearizable.

Registers: the search of Wing and Gong with Lowe's memory of states that were visited. A set to
which each element is added once needs no search: adding commutes.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple


class Op(NamedTuple):
    """One operation: asked and answered at moments of one clock; `answered` None: not known.

    `kind` is `write`, `add` or `read`; `value` is what was written, added or read.
    """

    kind: str
    value: Any
    asked: float
    answered: float | None


NEVER = float("inf")


def register_is_linearizable(history: Sequence[Op], first: Hashable = None) -> bool:
    """Whether some order explains all reads and keeps to real time.

    A write without an answer may take place at any time after it was asked, or never; a read
    without one says nothing.

    >>> register_is_linearizable([Op("write", 1, 0, 1), Op("read", 1, 2, 3)])
    True
    >>> register_is_linearizable([Op("write", 1, 0, 1), Op("read", None, 2, 3)])
    False
    """
    ops = [op for op in history if op.kind == "write" or op.answered is not None]
    ops.sort(key=lambda op: op.asked)
    must = frozenset(at for at, op in enumerate(ops) if op.answered is not None)
    seen: set[tuple[frozenset[int], Hashable]] = set()
    waiting: list[tuple[frozenset[int], Hashable]] = [(frozenset(), first)]
    while waiting:
        state = waiting.pop()
        if state in seen:
            continue
        seen.add(state)
        done, value = state
        if must <= done:
            return True
        # What is next must have been asked before anything that is left was answered.
        left = [(at, op) for at, op in enumerate(ops) if at not in done]
        limit = min(NEVER if op.answered is None else op.answered for _, op in left)
        for at, op in left:
            if op.asked > limit:
                break
            if op.kind == "write":
                waiting.append((done | {at}, op.value))
            elif op.value == value:
                waiting.append((done | {at}, value))
    return False


def faults_of_set(history: Sequence[Op]) -> list[str]:
    """What no order of additions explains; none: linearizable. A read's value is a list.

    >>> faults_of_set([Op("add", 1, 0, 1), Op("read", [], 2, 3)])
    ['a read at 2 misses 1, which was added before it']
    """
    found: list[str] = []
    asked = {op.value: op.asked for op in history if op.kind == "add"}
    added = {op.value: op.answered for op in history if op.kind == "add" and op.answered}
    reads = sorted(
        (op for op in history if op.kind == "read" and op.answered is not None),
        key=lambda op: op.asked,
    )
    seen: dict[Any, float] = {}  # each element, and when the first read that has it was answered
    for read in reads:
        assert read.answered is not None
        values = set(read.value)
        if len(values) != len(read.value):
            twice = sorted(value for value in values if read.value.count(value) > 1)
            found.append(f"a read at {read.asked:g} has {twice} more than once")
        for value in values:
            if asked.get(value, NEVER) > read.answered:
                found.append(f"a read at {read.asked:g} has {value}, which nobody had added")
        known = {value for value, at in added.items() if at < read.asked}
        known |= {value for value, at in seen.items() if at < read.asked}
        found += [
            f"a read at {read.asked:g} misses {value}, which was added before it"
            for value in sorted(known - values, key=str)
        ]
        for value in values:
            seen[value] = min(seen.get(value, NEVER), read.answered)
    return found
