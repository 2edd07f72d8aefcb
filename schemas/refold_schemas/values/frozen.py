"""The decorator of the log's small classes: a frozen dataclass with slots that is quick to make."""

from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass with slots, of fields without defaults.

    Every step makes half a dozen of them. The `__init__` of a frozen dataclass looks
    `object.__setattr__` up for each field; this one fills the slots directly, in two thirds of the
    time.

    >>> @frozen
    ... class Point:
    ...     x: int
    ...     y: int
    >>> Point(1, y=2)
    Point(x=1, y=2)
    """
    made: Any = dataclass(frozen=True, slots=True)(cls)
    names = [field.name for field in fields(made)]
    if any(f.default is not MISSING or f.default_factory is not MISSING for f in fields(made)):
        raise TypeError(f"{cls.__name__}: a class of the log says all that it holds: no defaults")
    shown = {f"set_{name}": vars(made)[name].__set__ for name in names}
    lines = [f"def __init__(self, {', '.join(names)}):"]
    lines += (f"    set_{name}(self, {name})" for name in names)
    exec(compile("\n".join(lines), f"<init of {cls.__qualname__}>", "exec"), shown)
    init: Any = shown["__init__"]
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = {**made.__init__.__annotations__}
    made.__init__ = init
    return made  # type: ignore[no-any-return]
