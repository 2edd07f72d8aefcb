"""Scopes: where in a run a slot is born, and what counts there. The grammar of slots is fixed."""

from random import Random
from uuid import UUID

from refold_schemas.values import derive_seed, derive_uuid


class Scope:
    """One place in a run: the root (path ""), a branch of `gather` or `map`, a batch of `each`.

    >>> scope = Scope("gather#2[fraud]")
    >>> scope.slot("check"), scope.slot("check")
    ('gather#2[fraud]/check#1', 'gather#2[fraud]/check#2')
    """

    __slots__ = ("_counts", "_prefix", "_random", "_uuids", "births", "path")

    def __init__(self, path: str) -> None:
        """`path` is the scope's own name, with those of its parents.

        `births` counts everything that was asked of the scope.
        """
        self.path = path
        self._prefix = f"{path}/" if path else ""
        self._counts: dict[str, int] = {}
        self._uuids = 0
        self.births = 0
        self._random: Random | None = None

    def slot(self, name: str) -> str:
        """The next slot of this name: its occurrence counts from 1, in program order."""
        slot = self.peek(name)
        self.take(name)
        return slot

    def peek(self, name: str) -> str:
        """The slot that `slot` would give; a call that is refused takes none."""
        return f"{self._prefix}{name}#{self._counts.get(name, 0) + 1}"

    def take(self, name: str) -> None:
        """Take the slot that `peek` gave."""
        self.births += 1
        self._counts[name] = self._counts.get(name, 0) + 1

    def uuid(self, nonce: bytes) -> UUID:
        """The next UUID of this scope."""
        self.births += 1
        self._uuids += 1
        return derive_uuid(nonce, self.path, self._uuids)

    def random(self, nonce: bytes) -> Random:
        """This scope's own source of random numbers."""
        self.births += 1
        if self._random is None:
            self._random = Random(derive_seed(nonce, self.path, 1))
        return self._random


def scope_of(slot: str) -> str:
    """The path of the scope that a slot was born in.

    >>> scope_of("gather#1[a]/charge#2"), scope_of("charge#1")
    ('gather#1[a]', '')
    """
    return slot.rpartition("/")[0]


def passed_by(slot: str, cursors: "dict[str, int]") -> bool:
    """True if the slot lies in a loop's batch that its recorded cursor has passed.

    `cursors` maps loops to the number of items that are done.

    >>> passed_by("each#1[0..24]/load#1", {"each#1": 25})
    True
    >>> passed_by("each#1[25..49]/load#1", {"each#1": 25})
    False
    """
    if "each#" not in slot:
        return False
    path = ""
    for part in slot.split("/")[:-1]:
        name, bracket, span = part.partition("[")
        loop = path + name
        if bracket and loop in cursors and name.startswith("each#"):
            last = int(span[:-1].partition("..")[2])
            if last < cursors[loop]:
                return True
        path = f"{path}{part}/"
    return False
