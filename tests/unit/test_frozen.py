"""Classes of the log cannot be changed once they are made, however quickly that was done."""

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from refold_schemas.codec.classes import CLASSES
from refold_schemas.values import Argument, Ref, Value
from refold_schemas.values.frozen import blank_of, frozen

VALUE = Value("", 1, "j1", None, b"1", None)


@pytest.mark.parametrize("cls", CLASSES.values(), ids=lambda cls: cls.__name__)
def test_what_is_made_is_of_its_class_and_guarded(cls: Any) -> None:
    names = [field.name for field in dataclasses.fields(cls)]
    made = cls(**{name: name for name in names})
    assert type(made) is cls
    assert [getattr(made, name) for name in names] == names
    assert made == cls(*names)
    assert hash(made) == hash(cls(*names))
    for name in names:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(made, name, None)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(made, name)
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(again) is cls
        assert again == made


def test_arguments_are_those_of_any_dataclass() -> None:
    assert Argument(name="a", value=VALUE) == Argument("a", VALUE)
    assert dataclasses.replace(VALUE, body=b"2").body == b"2"
    with pytest.raises(TypeError):
        Ref(b"")  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Ref(b"", 1, 2)  # type: ignore[call-arg]


def test_a_default_is_refused() -> None:
    with pytest.raises(TypeError, match="no defaults"):

        @frozen
        class Defaulted:
            x: int = 1


def test_a_class_that_does_something_when_it_is_made_is_refused() -> None:
    with pytest.raises(TypeError, match="does nothing"):

        @frozen
        class Watched:
            x: int

            def __post_init__(self) -> None:
                """Nobody would call it."""


def test_only_classes_of_the_log_are_filled_by_others() -> None:
    assert blank_of(Value) is not None
    assert blank_of(dict) is None
