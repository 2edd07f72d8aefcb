"""An exception is kept with type, message and arguments, and comes back as itself if it can."""

from typing import Any

import pytest
from pydantic import ValidationError

from refold_schemas.errors.texts import MESSAGE_LENGTH_MAX
from refold_schemas.values import NotDone, decode_error, encode_error, line_of, text_of
from support.shop import Account


class CardDeclined(Exception):
    pass


class Coded(Exception):
    def __init__(self, code: str, pence: int) -> None:
        super().__init__(code, pence)
        self.code, self.pence = code, pence


class Renamed(Exception):
    """Its constructor takes other arguments than it keeps."""

    def __init__(self, code: str) -> None:
        super().__init__(f"declined: {code}")


class Stateful(Exception):
    attempts = 0


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "exc",
    [
        CardDeclined("insufficient_funds", 4160),
        CardDeclined(),
        Coded("a", 1),
        NotDone("busy"),
        KeyError("a"),
        TimeoutError(),
    ],
)
def test_a_declared_type_comes_back_as_itself(exc: BaseException) -> None:
    info = encode_error(exc)
    back = decode_error(info, (ValueError, type(exc)))
    assert type(back) is type(exc)
    assert back is not None
    assert back.args == exc.args
    assert vars(back) == vars(exc)
    assert (info.type, info.message) == (type(exc).__name__, str(exc))
    assert decode_error(info, (ValueError,)) is None


def _stateful() -> Stateful:
    exc = Stateful("a")
    exc.attempts = 3
    return exc


@pytest.mark.parametrize(
    "exc",
    [
        Renamed("stolen"),
        _stateful(),
        CardDeclined(object()),
        CardDeclined(float("nan")),
        Unprintable(),
    ],
)
def test_what_would_come_back_another_is_kept_as_type_and_message_only(exc: BaseException) -> None:
    info = encode_error(exc)
    assert info.args is None
    assert info.type == type(exc).__name__
    assert info.path.endswith(f":{type(exc).__qualname__}")
    assert decode_error(info, (type(exc),)) is None


def test_notes_say_nothing_of_what_an_exception_is() -> None:
    exc = CardDeclined("a")
    exc.add_note("while charging")
    assert encode_error(exc) == encode_error(CardDeclined("a"))


@pytest.mark.parametrize("text", ["\ud800 half", "x" * 100_000, "\0"])
def test_any_message_is_kept_as_text_of_limited_length(text: str) -> None:
    info = encode_error(CardDeclined(text))
    assert len(info.message) <= MESSAGE_LENGTH_MAX
    info.message.encode()


def test_a_class_that_has_changed_since_is_not_made_again() -> None:
    class Changed(Exception):
        pass

    info = encode_error(Coded("a", 1))

    def refuses(self: Any, code: str) -> None:
        raise TypeError

    Changed.__module__, Changed.__qualname__ = Coded.__module__, Coded.__qualname__
    Changed.__init__ = refuses  # type: ignore[assignment]
    assert decode_error(info, (Changed,)) is None


def test_group_and_base_exceptions_are_kept_too() -> None:
    info = encode_error(ExceptionGroup("several", [ValueError("a")]))
    assert (info.type, info.args) == ("ExceptionGroup", None)
    assert encode_error(KeyboardInterrupt()).type == "KeyboardInterrupt"


class Bottomless(BaseException):
    def __str__(self) -> str:
        raise SystemExit(1)


@pytest.mark.parametrize("exc", [Unprintable(), Bottomless()])
def test_a_message_that_cannot_be_read_says_so(exc: BaseException) -> None:
    assert "cannot be read" in text_of(exc)
    assert line_of(exc).startswith(f"{type(exc).__name__}: (its message cannot be read")
    assert encode_error(exc).message == text_of(exc)


def test_a_line_is_cut_and_has_no_half_of_a_surrogate_pair() -> None:
    assert line_of(ValueError("x" * 600)) == "ValueError: " + "x" * 499 + "…"
    assert line_of(ValueError("\ud800")) == "ValueError: \\ud800"
    assert len(text_of(ValueError("\ud800" * 600), 500)) <= 500


def test_a_validation_error_is_kept_without_the_input() -> None:
    """pydantic's own text quotes the input, in which a secret may be."""
    with pytest.raises(ValidationError) as found:
        Account.model_validate({"name": {"x": "hunter2-a"}, "token": ["hunter2-b"]})
    info = encode_error(found.value)
    assert "hunter2" not in repr(info)
    assert info.message.startswith("3 validation errors for Account: name: Input should be a valid")
    assert "; password: Field required; token: " in info.message
    assert "hunter2" not in line_of(found.value)
