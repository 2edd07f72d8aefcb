"""The decorator of the log's small classes: a frozen dataclass with slots that is quick to make."""

from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, TypeVar, dataclass_transform

from refold_schemas.values.generated import generated

T = TypeVar("T")

_set_class: Final = vars(object)["__class__"].__set__
_blanks: dict[type, type] = {}


@dataclass_transform(frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass with slots, of fields without defaults.

    Every step makes half a dozen of them, a fold some for each event. The `__init__` of a frozen
    dataclass looks `object.__setattr__` up for each field. Here an object is of another class while
    its slots are filled, one with the same slots and without the guard in front of them: that takes
    a third of the time.

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
    if hasattr(made, "__post_init__"):
        raise TypeError(f"{cls.__name__}: a class of the log does nothing when it is made")
    blank = type(f"_Blank{cls.__name__}", (), {"__slots__": tuple(names)})
    _blanks[made] = blank
    lines = [f"def __init__(self, {', '.join(names)}):", "    set_class(self, blank)"]
    lines += (f"    self.{name} = {name}" for name in names)
    lines += ["    self.__class__ = cls"]
    shown = {"set_class": _set_class, "blank": blank, "cls": made}
    init = generated(lines, shown, title=f"<init of {cls.__qualname__}>")
    init.__qualname__ = f"{made.__qualname__}.__init__"
    init.__annotations__ = {**made.__init__.__annotations__}
    made.__init__ = init
    return made  # type: ignore[no-any-return]


def blank_of(cls: type) -> type | None:
    """The class of an unfinished `cls`: its slots can be set, and then its `__class__`.

    For generated code that fills objects whose values it has at hand. None where `cls` is not
    `frozen`.
    """
    return _blanks.get(cls)
