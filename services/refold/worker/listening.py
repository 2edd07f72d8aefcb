"""Whoever listens to a worker hears of its work, and is no part of it."""

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Event = TypeVar("Event")


def never_raising(listener: Callable[[Event], None]) -> Callable[[Event], None]:
    """The listener, whose exceptions reach nobody: a full disk behind a terminal blocks no run.

    The first one of its kind is a RuntimeWarning, which may go where the listener could not.
    """
    known: set[type[Exception]] = set()

    def hear(event: Event) -> None:
        try:
            listener(event)
        except Exception as error:
            if type(error) in known:
                return
            known.add(type(error))
            told = f"what happens cannot be told: {type(error).__name__}: {error}"
            with suppress(Exception):  # nor does anybody hear this
                warnings.warn(told, RuntimeWarning, stacklevel=2)

    return hear
