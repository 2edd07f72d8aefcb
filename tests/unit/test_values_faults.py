"""An exception is kept with type, message and arguments, and comes back as itself if it can."""

from typing import Any

import pytest

from refold_schemas.values import NotDone, decode_error, encode_error
from refold_schemas.values.faults import MESSAGE_LENGTH_MAX


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
