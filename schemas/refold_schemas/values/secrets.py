"""Finds pydantic's secrets in a type, before a value of it comes: plain JSON has no classes."""

import dataclasses
import typing

from refold_schemas.values.kinds import is_model, is_secret


def secret_in(annotation: object) -> str | None:
    """Say where a value of this type holds a secret of pydantic's, or None where nothing shows it.

    Goes through unions, containers, models, dataclasses, TypedDicts and named tuples. A name that
    cannot be resolved yet hides what is behind it, so ask again before the first use.

    >>> secret_in(dict[str, list[int]]) is None
    True
    """
    return _find(annotation, "", set())


def _find(annotation: object, path: str, seen: set[int]) -> str | None:
    origin = typing.get_origin(annotation)
    if origin is typing.Literal:
        return None
    for inner in (origin, *_parts(annotation)):
        if inner is not None and (found := _find(inner, path, seen)):
            return found
    if origin is not None or not isinstance(annotation, type):
        return None
    if is_secret(annotation):
        name = annotation.__qualname__
        return f"{path} is a {name}" if path else f"it is a {name}"
    if id(annotation) in seen:
        return None
    seen.add(id(annotation))
    for name, inner in _fields(annotation).items():
        if found := _find(inner, f"{annotation.__qualname__}.{name}", seen):
            return found
    return None


def _parts(annotation: object) -> list[object]:
    """What stands inside the brackets of a type, or behind an alias of it."""
    parts: list[object] = []
    for arg in typing.get_args(annotation):
        parts.extend(arg if isinstance(arg, list) else [arg])
    for alias in ("__value__", "__supertype__"):  # `type X = …`, NewType
        if not isinstance(annotation, type):
            parts.append(getattr(annotation, alias, None))
    return parts


def _fields(cls: typing.Any) -> dict[str, object]:
    if is_model(cls):
        if not cls.__pydantic_complete__:
            # A class that it names may have been defined since.
            cls.model_rebuild(raise_errors=False)
        return {name: field.annotation for name, field in cls.__pydantic_fields__.items()}
    named_tuple = issubclass(cls, tuple) and hasattr(cls, "_fields")
    if dataclasses.is_dataclass(cls) or typing.is_typeddict(cls) or named_tuple:
        try:
            return typing.get_type_hints(cls)
        except Exception:  # one name that does not resolve must not hide the others
            return dict(getattr(cls, "__annotations__", {}))
    return {}
