"""Objects of the author's as short text, whatever their own code does."""

import reprlib
from typing import Final

from refold_schemas.values.kinds import class_id

REPR_MAX: Final = 1_000
CONTAINERS: Final = (dict, list, tuple, set, frozenset, str, bytes)

_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = REPR_MAX
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxfrozenset = 50


def short_repr(result: object) -> str:
    """`repr`, bounded; an object whose repr raises still ends its step."""
    try:
        # A container is cut while its repr is made: that of a huge one would hold up the engine.
        text = _SHORT.repr(result) if isinstance(result, CONTAINERS) else repr(result)
    except Exception as error:
        text = (
            f"<{class_id(type(result)).partition(':')[2]}: its repr raised {type(error).__name__}>"
        )
    return text[:REPR_MAX].encode("utf-8", "backslashreplace").decode()
