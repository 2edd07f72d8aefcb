"""Whether a step's function uses the key of its effect, as far as its code object tells."""

import dis
import inspect
from collections.abc import Callable, Iterator
from types import CodeType


def reads_key(fn: Callable[..., object]) -> bool | None:
    """Whether `fn` reads `.key` of its first parameter; None where it hands the effect on.

    >>> reads_key(lambda fx: fx.key), reads_key(lambda fx: fx.slot), reads_key(lambda fx: [fx])
    (True, False, None)
    """
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is None or code.co_argcount == 0:
        return None
    name = code.co_varnames[0]
    handed_on = False
    for one in _codes(code):
        instructions = list(dis.get_instructions(one))
        for at, instruction in enumerate(instructions[:-1]):
            if not instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
                continue
            if isinstance(instruction.argval, tuple):  # two loads in one, from Python 3.13 on
                handed_on = handed_on or name in instruction.argval
            elif instruction.argval == name:
                following = instructions[at + 1]
                if following.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                    handed_on = True
                elif following.argval == "key":
                    return True
    return None if handed_on else False


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
