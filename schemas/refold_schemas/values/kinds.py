"""The classes a value may have: models, dataclasses, enums; found by name, taken apart, built.

pydantic is never imported here: an object of one of its models exists only where it already is.
"""

import dataclasses
import sys
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from refold_schemas.errors.texts import findings, line_of

BUILTINS = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, BaseException)
"""A subclass of one of these carries a second value beside its fields, so it is no record."""

# Past a metaclass, whose attributes are code of its author's and may raise.
_QUALNAME = type.__dict__["__qualname__"].__get__
_MODULE = type.__dict__["__module__"].__get__


class Fields(NamedTuple):
    """A record taken apart: its fields by name, what only a pydantic model has, what else it holds.

    `unset` are the fields that were never set, only defaulted (pydantic's `exclude_unset` shows
    them); `private` its private attributes; `beside` what else is in its `__dict__`.
    """

    fields: dict[str, object]
    unset: tuple[str, ...]
    private: dict[str, object]
    beside: dict[str, object]


class Unbuildable(Exception):
    """A stored record does not make an object of its class; the text says why."""


def class_id(cls: type) -> str:
    """Name a class as the log does: `module:qualname`.

    >>> from decimal import Decimal
    >>> class_id(Decimal)
    'decimal:Decimal'
    """
    return f"{_MODULE(cls)}:{_QUALNAME(cls)}"


def find_class(type_id: str) -> type | None:
    """Find a model, dataclass or enum by its name in the modules that are already imported.

    Only `__dict__`s are read, so no lookup imports a module, runs a property or a `__getattr__`.
    """
    module_name, _, qualname = type_id.partition(":")
    found: object = sys.modules.get(module_name)
    for part in qualname.split("."):
        # vars() of anything but a module or a class would run foreign code or find an instance
        if found is None or not isinstance(found, type(sys) | type):
            return None
        found = vars(found).get(part)
    if (
        isinstance(found, type)
        and class_id(found) == type_id
        and (is_record(found) or is_enum(found))
    ):
        return found
    return None


def is_enum(cls: type) -> bool:
    """Tell whether `cls` is an enum with members."""
    return issubclass(cls, Enum)


def is_model(cls: type) -> bool:
    """Tell whether `cls` is a pydantic model."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    return base is not None and issubclass(cls, base)


def is_record(cls: type) -> bool:
    """Tell whether `cls` is a pydantic model or a dataclass that is nothing else beside."""
    return (is_model(cls) or dataclasses.is_dataclass(cls)) and not issubclass(cls, BUILTINS)


def is_secret(cls: type) -> bool:
    """Tell whether `cls` is a secret of pydantic's: `SecretStr`, `SecretBytes`, `Secret[...]`."""
    base = getattr(sys.modules.get("pydantic.types"), "_SecretBase", None)
    return base is not None and issubclass(cls, base)


def take_apart(obj: object) -> Fields:
    """Return the fields of a model or dataclass. Raises Unbuildable where one is missing."""
    cls = type(obj)
    if is_model(cls):
        return _model_apart(obj, cls)
    try:
        fields = {field.name: getattr(obj, field.name) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    except AttributeError as error:
        raise Unbuildable(f"its field {error.name} was never set") from None
    return Fields(fields, (), {}, _beside(obj, cls, fields))


def _model_apart(obj: Any, cls: Any) -> Fields:
    held: dict[str, object] = vars(obj)
    fields: dict[str, object] = {}
    for name in cls.__pydantic_fields__:
        if name not in held:
            raise Unbuildable(f"its field {name} was never set")
        fields[name] = held[name]
    beside = _beside(obj, cls, fields)
    unset = tuple(name for name in fields if name not in obj.__pydantic_fields_set__)
    fields.update(obj.__pydantic_extra__ or {})
    return Fields(fields, unset, dict(obj.__pydantic_private__ or {}), beside)


def _beside(obj: object, cls: type, fields: dict[str, object]) -> dict[str, object]:
    held: dict[str, object] = getattr(obj, "__dict__", {})
    if len(held) <= len(fields) and held.keys() <= fields.keys():
        return {}
    return {
        name: item
        for name, item in held.items()
        # a cached property is computed again, __orig_class__ is typing's own note
        if name not in fields
        and name != "__orig_class__"
        and not isinstance(getattr(cls, name, None), cached_property)
    }


def build(cls: Any, fields: dict[str, object], unset: list[str], private: dict[str, object]) -> Any:
    """Make an object of `cls` from its fields, as `take_apart` gave them.

    A model is validated by field name (so a newer class fills its defaults), a dataclass is
    constructed. Raises Unbuildable with the reason; what validators raise is one.
    """
    try:
        if not is_model(cls):
            return _build_dataclass(cls, fields)
        root = getattr(cls, "__pydantic_root_model__", False)
        obj = (
            cls.model_validate(fields["root"])
            if root
            else cls.model_validate(fields, by_name=True, by_alias=False)
        )
        if unset:
            obj.__pydantic_fields_set__.difference_update(unset)
        if private:
            object.__setattr__(obj, "__pydantic_private__", private)
        return obj
    except RecursionError:
        raise
    except Exception as error:  # validators and __post_init__ are user code: anything may come
        raise Unbuildable(describe(error)) from error


def _build_dataclass(cls: Any, fields: dict[str, object]) -> Any:
    known = {field.name: field.init for field in dataclasses.fields(cls)}
    unknown = [name for name in fields if name not in known]
    if unknown:
        raise Unbuildable(f"{cls.__qualname__} has no field {unknown[0]}")
    obj = cls(**{name: item for name, item in fields.items() if known[name]})
    for name, item in fields.items():
        if not known[name]:
            object.__setattr__(obj, name, item)  # also where the class is frozen
    return obj


def describe(error: Exception) -> str:
    """Say what a validator or constructor found, without the input: it may be long or private."""
    found = findings(error)
    return found[0][:300] if found else line_of(error)[:300]
