"""What goes into the world and what comes out of it: requests, answers, and answers that get lost.

They mean the same over HTTP and in process, so that a vendor's rule is written once.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """One call to a vendor: `segments` is the decoded path, `key` the Idempotency-Key header."""

    method: str
    segments: tuple[str, ...]
    query: Mapping[str, str] = field(default_factory=dict)
    body: Json = field(default_factory=dict)
    key: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, method: str, target: str, body: Json | None = None, *, key: str | None = None
    ) -> "Request":
        """Read a request from its method and raw target, e.g. `/portal/orders?ref=PO-2026-0041`.

        The body goes through JSON once, so that in process as over HTTP nothing is shared.
        Raises TypeError if it is not JSON-able.
        """
        parts = urlsplit(target)
        return cls(
            method=method.upper(),
            segments=split_path(parts.path),
            query=dict(parse_qsl(parts.query, keep_blank_values=True)),
            body=detached(body or {}),
            key=key or None,
        )

    @property
    def path(self) -> str:
        """The decoded path, for messages and digests."""
        return "/" + "/".join(self.segments)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a vendor says: an HTTP status and a JSON object."""

    status: int
    body: Json


class Lost(StrEnum):
    """How an answer fails to arrive."""

    RESET = "reset"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Reply:
    """What the caller sees: an answer after `wait_ms`, or none at all.

    With `lost=SILENT` and `wait_ms > 0` the connection is closed after that time; with 0 it stays
    open until the caller goes away.
    """

    answer: Answer | None
    lost: Lost | None = None
    wait_ms: int = 0


Handler: TypeAlias = Callable[[Request], Answer]


@dataclass(frozen=True, slots=True)
class Route:
    """One address of a vendor, e.g. `GET /payments/by-key/{key}`.

    `writes`: its answer is given only once the ledger has stored what was done. `keyed`: it knows
    the Idempotency-Key, so a repeat while the first is being worked on is a 409.
    """

    vendor: str
    method: str
    pattern: str
    handler: Handler
    writes: bool = False
    keyed: bool = False

    @property
    def name(self) -> str:
        """Method and pattern, as faults and counters name the route."""
        return f"{self.method} {self.pattern}"

    def match(self, request: Request) -> Mapping[str, str] | None:
        """The path's parameters if this route serves the request, else None."""
        pieces = split_path(self.pattern)
        if request.method != self.method or len(pieces) != len(request.segments):
            return None
        params: dict[str, str] = {}
        for piece, segment in zip(pieces, request.segments, strict=True):
            if piece.startswith("{"):
                params[piece[1:-1]] = segment
            elif piece != segment:
                return None
        return params


def split_path(path: str) -> tuple[str, ...]:
    """The decoded segments of a raw path: `/a/b%2Fc` is `("a", "b/c")`."""
    return tuple(unquote(piece) for piece in path.strip("/").split("/"))


def detached(body: Json) -> Json:
    """A copy of a JSON object that shares nothing with the original."""
    copy: Json = json.loads(json.dumps(body))
    return copy


def refusal(status: int, error: str, message: str, **more: Any) -> Answer:
    """An answer that says no: `error` for programs, `message` for people."""
    return Answer(status, {"error": error, "message": message, **more})
