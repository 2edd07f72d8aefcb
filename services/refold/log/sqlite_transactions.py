"""Transactions on a connection to the file: done as a whole, or undone."""

import contextlib
import sqlite3
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def transaction(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Do `work` in a transaction that may write. Raises what `work` raises, with nothing done."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = work(connection)
        connection.execute("COMMIT")
    except BaseException:
        undo(connection)
        raise
    return result


def undo(connection: sqlite3.Connection) -> None:
    """End a transaction, if there is one, without what it has done."""
    if connection.in_transaction:
        # Undoing can fail only if SQLite has undone it already, or when the file is lost; the
        # error that brought us here says it.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
