"""What a vendor remembers of the keys it was sent: one stored answer a key, failures included."""

import hashlib
import json
from collections.abc import Callable

from world.books import Books
from world.messages import Answer, Json, Request, refusal


class KeyTable:
    """Repeats under a key get the first answer; the lookup by key reads the same, current record.

    A key deduplicates for `ttl_ms` (None: for ever) and can be looked up for ever. Whoever repeats
    a call under a key that has expired acts again. Shape and rules are those of the payment
    providers that document theirs: a stored failure is replayed like a success, a request that was
    never executed (malformed, busy) stores nothing, another body under a used key is a 422.
    """

    def __init__(
        self, books: Books, vendor: str, ttl_ms: Callable[[], int | None] = lambda: None
    ) -> None:
        """Keep the keys of `vendor`, each valid for what `ttl_ms` says at the time it is sent."""
        self._books = books
        self._vendor = vendor
        self._ttl_ms = ttl_ms

    def serve(self, request: Request, kind: str, act: Callable[[], Answer]) -> Answer:
        """The stored answer of the key, or that of `act`, which is then stored.

        A request without a key acts every time. `kind` names what a repeat would have doubled.
        """
        if request.key is None:
            return act()
        stored = self._books.ledger.get(self._collection, request.key)
        digest = _digest(request)
        if stored is not None and not self._expired(stored):
            if stored["digest"] != digest:
                return refusal(
                    422,
                    "key_reused",
                    f"key {request.key} was used for another request; its answer is kept. "
                    "Use a new key for a new request.",
                )
            self._books.count("duplicates", kind)
            return Answer(stored["status"], stored["body"])
        answer = act()
        if answer.status < 400 or answer.status == 402:
            self._books.ledger.put(
                self._collection,
                request.key,
                {
                    "digest": digest,
                    "at_ms": self._books.now_ms(),
                    "status": answer.status,
                    "body": answer.body,
                },
            )
        return answer

    def lookup(self, request: Request) -> Answer:
        """`GET …/by-key/{key}`: what happened under the key, read from the primary.

        200 with `state` `succeeded`, `failed` or `in_progress`, the stored `status` and `answer`;
        404 if nothing happened under it (yet: a request may still lie in a queue before us).
        """
        key = request.params["key"]
        if (self._vendor, key) in self._books.in_progress:
            return Answer(200, {"key": key, "state": "in_progress"})
        stored = self._books.ledger.get(self._collection, key)
        if stored is None:
            return refusal(404, "no_such_key", f"{self._vendor} has no record of key {key}")
        return Answer(200, {"key": key, **_told(stored)})

    @property
    def _collection(self) -> str:
        return f"{self._vendor}.keys"

    def _expired(self, stored: Json) -> bool:
        ttl_ms = self._ttl_ms()
        return ttl_ms is not None and self._books.now_ms() >= stored["at_ms"] + ttl_ms


def _told(stored: Json) -> Json:
    return {
        "state": "succeeded" if stored["status"] < 400 else "failed",
        "status": stored["status"],
        "answer": stored["body"],
        "at_ms": stored["at_ms"],
    }


def _digest(request: Request) -> str:
    said = json.dumps([request.method, request.path, request.body], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()
