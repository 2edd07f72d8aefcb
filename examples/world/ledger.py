"""What the world remembers: documents and effects, in memory and, given a path, in SQLite as well.

Reads come from memory. Changes reach the file at `commit`, in one transaction, which a vendor's
answer waits for: an answered effect is stored, and survives a SIGKILL of the service.
"""

import json
import sqlite3
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from world.messages import Json

SCHEMA = """
CREATE TABLE IF NOT EXISTS documents (
    collection TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (collection, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS effects (
    seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, vendor TEXT NOT NULL, kind TEXT NOT NULL,
    key TEXT, quantity INTEGER NOT NULL, body TEXT NOT NULL
);
"""


class LedgerUnusable(Exception):
    """The ledger file cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing that happened in the world, for good."""

    seq: int
    at_ms: int
    vendor: str
    kind: str
    key: str | None
    quantity: int
    body: Json

    def as_json(self) -> Json:
        """The effect as `/admin/effects` lists it."""
        return asdict(self)


class Ledger:
    """Named collections of JSON documents, and the list of effects in the order they happened."""

    def __init__(self, path: Path | None = None) -> None:
        """Open the ledger at `path`, or one in memory. Raises LedgerUnusable."""
        self._documents: dict[str, dict[str, Any]] = {}
        self._effects: list[Effect] = []
        self._touched: set[tuple[str, str]] = set()
        self._effects_stored = 0
        self._database = None if path is None else _open(path)
        if self._database is not None:
            self._load(self._database)

    def get(self, collection: str, key: str) -> Any:
        """The document, or None. Treat it as frozen: change it by `put`."""
        return self._documents.get(collection, {}).get(key)

    def put(self, collection: str, key: str, value: Any) -> None:
        """Keep a document in place of what was there."""
        self._documents.setdefault(collection, {})[key] = value
        self._touched.add((collection, key))

    def delete(self, collection: str, key: str) -> None:
        """Forget a document; it may be absent."""
        self._documents.get(collection, {}).pop(key, None)
        self._touched.add((collection, key))

    def items(self, collection: str) -> list[tuple[str, Any]]:
        """All documents of a collection, ordered by key."""
        return sorted(self._documents.get(collection, {}).items())

    def add_effect(
        self, *, at_ms: int, vendor: str, kind: str, key: str | None, quantity: int, body: Json
    ) -> None:
        """Write down that something happened."""
        seq = len(self._effects) + 1
        self._effects.append(Effect(seq, at_ms, vendor, kind, key, quantity, body))

    def effects(self) -> tuple[Effect, ...]:
        """Every effect since the last reset, oldest first."""
        return tuple(self._effects)

    def commit(self) -> None:
        """Store what changed; returns once the file has it. In memory there is nothing to do."""
        if self._database is None:
            self._touched.clear()
            return
        if not self._touched and self._effects_stored == len(self._effects):
            return
        with self._database:
            for collection, key in sorted(self._touched):
                documents = self._documents.get(collection, {})
                if key in documents:
                    self._database.execute(
                        "INSERT OR REPLACE INTO documents VALUES (?, ?, ?)",
                        (collection, key, json.dumps(documents[key])),
                    )
                else:
                    self._database.execute(
                        "DELETE FROM documents WHERE collection = ? AND key = ?", (collection, key)
                    )
            self._database.executemany(
                "INSERT INTO effects VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (e.seq, e.at_ms, e.vendor, e.kind, e.key, e.quantity, json.dumps(e.body))
                    for e in self._effects[self._effects_stored :]
                ],
            )
        self._touched.clear()
        self._effects_stored = len(self._effects)

    def reset(self, *, keep: frozenset[str] = frozenset()) -> None:
        """Forget everything but the collections in `keep`, in the file too."""
        for collection, documents in list(self._documents.items()):
            if collection not in keep:
                self._touched.update((collection, key) for key in documents)
                del self._documents[collection]
        self._effects.clear()
        self._effects_stored = 0
        if self._database is not None:
            with self._database:
                self._database.execute("DELETE FROM effects")
        self.commit()

    def close(self) -> None:
        """Store what is left and let go of the file; a second time does nothing."""
        self.commit()
        if self._database is not None:
            self._database.close()
            self._database = None

    def _load(self, database: sqlite3.Connection) -> None:
        for collection, key, value in database.execute("SELECT * FROM documents"):
            self._documents.setdefault(collection, {})[key] = json.loads(value)
        for row in database.execute("SELECT * FROM effects ORDER BY seq"):
            seq, at_ms, vendor, kind, key, quantity, body = row
            self._effects.append(Effect(seq, at_ms, vendor, kind, key, quantity, json.loads(body)))
        self._effects_stored = len(self._effects)


def _open(path: Path) -> sqlite3.Connection:
    try:
        database = sqlite3.connect(path, timeout=2.0, check_same_thread=False)
        # One service per file: its memory is the truth while it lives, a second one would differ.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.executescript(SCHEMA)
    except sqlite3.Error as error:
        raise LedgerUnusable(
            f"the ledger {path} cannot be used: {error}. Nothing in it was changed. "
            "Next: stop the other service that holds it, or name another file with --ledger."
        ) from error
    return database
