"""What a slot's name says of where it was born, for readers that have no code at hand."""

import re
from typing import Final

_PARALLEL: Final = re.compile(r"(?:^|/)(?:gather|map)#\d+\[")


def in_parallel_branch(slot: str) -> bool:
    """Whether the slot was born in a branch that may have siblings.

    >>> in_parallel_branch("gather#1[a]/sleep#1"), in_parallel_branch("each#1[0..24]/mygather#1")
    (True, False)
    """
    return _PARALLEL.search(slot) is not None
