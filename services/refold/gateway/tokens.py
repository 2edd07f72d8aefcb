"""Tokens in a file: shown once, kept as hashes; whoever reads the file has nobody's token.

A secret is 32 random bytes, so a plain SHA-256 of it cannot be guessed back; slow hashes are for
passwords. The file is replaced as a whole under a lock, and read again when it has changed: what is
revoked ends within a second, in every gateway that reads the file.
"""

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from refold.gateway.identity import WHO_MAX, Caller
from refold.gateway.roles import Role
from refold_schemas.errors.gateway import NotAuthenticated, TokensUnusable, TokenUnknown

PREFIX = "refold"
TOKENS_MAX = 10_000
FILE_SIZE_MAX = 16 << 20
LOOK_EVERY_S = 1.0
"""How often the file is looked at."""
TOKEN_MAX = 200
"""Characters of a token; longer ones are nobody's."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token as it is kept. Times are seconds since 1970; `namespace` is the log's."""

    token_id: str
    name: str
    roles: tuple[str, ...]
    namespace: str
    hash: str
    created_s: float
    expires_s: float | None
    revoked_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Kept:
    tokens: dict[str, Token]
    session_key: bytes


class TokenFile:
    """The tokens of one file. `clock` gives seconds since 1970."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._kept: _Kept | None = None
        self._stamp: tuple[int, int, int] | None = None
        self._looked_s = float("-inf")

    # ---- the command line's side

    def create(
        self, name: str, roles: frozenset[Role], namespace: str, *, valid_s: float | None
    ) -> tuple[Token, str]:
        """Make a token and return it with its secret text, which is kept nowhere.

        Raises TokensUnusable.
        """
        token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        now = self._clock()
        token = Token(
            token_id,
            name,
            tuple(role.value for role in Role if role in roles),
            namespace,
            _hashed(secret),
            now,
            None if valid_s is None else now + valid_s,
        )
        with self._locked():
            kept = self._read() or _Kept({}, secrets.token_bytes(32))
            if len(kept.tokens) >= TOKENS_MAX:
                raise TokensUnusable(
                    str(self.path),
                    f"it holds {TOKENS_MAX:,} tokens, which is the most",
                    next="revoke old ones with `refold gateway tokens revoke ID --forget`",
                )
            self._write(replace(kept, tokens={**kept.tokens, token_id: token}))
        return token, f"{PREFIX}_{token_id}_{secret}"

    def ensure(self) -> None:
        """Make the file, without tokens, where there is none. Raises TokensUnusable."""
        with self._locked():
            if self._read() is None:
                self._write(_Kept({}, secrets.token_bytes(32)))

    def revoke(self, wanted: str, *, forget: bool = False) -> list[Token]:
        """End the token of this id, or all of this name; with `forget` their lines go too.

        Raises TokenUnknown, TokensUnusable.
        """
        with self._locked():
            kept = self._read()
            found = [
                one
                for one in (kept.tokens.values() if kept else ())
                if wanted in (one.token_id, one.name)
            ]
            if kept is None or not found:
                raise TokenUnknown(wanted, str(self.path))
            now = self._clock()
            tokens = dict(kept.tokens)
            for one in found:
                if forget:
                    del tokens[one.token_id]
                else:
                    tokens[one.token_id] = replace(one, revoked_s=one.revoked_s or now)
            self._write(replace(kept, tokens=tokens))
        return found

    def all(self) -> list[Token]:
        """Every token, the newest first. Raises TokensUnusable."""
        kept = self._read()
        return sorted(kept.tokens.values() if kept else (), key=lambda one: -one.created_s)

    # ---- the gateway's side

    def verify(self, text: str, namespace: str) -> Caller:
        """The caller with this token. Raises NotAuthenticated, TokensUnusable."""
        prefix, _, rest = text.partition("_")
        token_id, _, secret = rest.partition("_")
        token = None
        if len(text) <= TOKEN_MAX:
            token = self._current().tokens.get(token_id)
            if token is None:  # it may have been made just now
                token = self._current(look=True).tokens.get(token_id)
        # The same work for an id that there is not: nobody learns ids by the clock.
        known = token.hash if token is not None else _hashed("")
        same = hmac.compare_digest(known, _hashed(secret))
        if token is None or prefix != PREFIX or not secret or not same:
            raise NotAuthenticated("the token is unknown")
        return self._caller(token, namespace)

    def still(self, token_id: str, namespace: str) -> Caller:
        """The caller whose session began with this token. Raises NotAuthenticated."""
        token = self._current().tokens.get(token_id)
        if token is None:
            raise NotAuthenticated("the token of this session is unknown")
        return self._caller(token, namespace)

    @property
    def session_key(self) -> bytes:
        """The secret that cookies are signed with, the same for all gateways of this file."""
        return self._current().session_key

    def _caller(self, token: Token, namespace: str) -> Caller:
        if token.revoked_s is not None:
            raise NotAuthenticated("the token is revoked")
        if token.expires_s is not None and token.expires_s <= self._clock():
            raise NotAuthenticated("the token has expired")
        if token.namespace != namespace:
            raise NotAuthenticated("the token is for another namespace")
        roles = frozenset(Role(role) for role in token.roles)
        return Caller(token.name, roles, f"token {token.token_id}", None, token.expires_s)

    def _current(self, *, look: bool = False) -> _Kept:
        now = time.monotonic()
        if look or self._kept is None or now - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = now
            stamp = self._stamped()
            if self._kept is None or stamp != self._stamp:
                self._kept = None  # a file that cannot be used lets nobody in, till it can
                kept = self._read()
                if kept is None:
                    raise TokensUnusable(str(self.path), "there is no such file")
                self._kept, self._stamp = kept, stamp
        return self._kept

    def _stamped(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino)

    def _read(self) -> _Kept | None:
        try:
            with self.path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                data = file.read(FILE_SIZE_MAX + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TokensUnusable(str(self.path), error.strerror or str(error)) from error
        if mode & 0o077:
            raise TokensUnusable(
                str(self.path),
                "others on this machine may read or change it",
                next=f"chmod 600 {self.path}",
            )
        try:
            return _parsed(json.loads(data))
        except (ValueError, KeyError, TypeError) as error:
            raise TokensUnusable(str(self.path), "it is no file of tokens") from error

    def _write(self, kept: _Kept) -> None:
        body = {
            "version": 1,
            "session_key": kept.session_key.hex(),
            "tokens": [asdict(one) for one in kept.tokens.values()],
        }
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}.new")
        try:
            with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as f:
                json.dump(body, f, indent=1)
                f.flush()
                os.fsync(f.fileno())
            aside.replace(self.path)
        except OSError as error:
            raise TokensUnusable(str(self.path), error.strerror or str(error)) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, across processes: the lock is a file beside it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(
                self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600
            )
        except OSError as error:
            raise TokensUnusable(str(self.path), error.strerror or str(error)) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def check_name(name: str) -> str:
    """A token's name, which is who asks. Raises ValueError.

    >>> check_name("ada")
    'ada'
    """
    if not name or len(name) > WHO_MAX or not name.isprintable():
        raise ValueError(f"a name has 1 to {WHO_MAX} characters, none of them a control character")
    return name


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _parsed(body: Any) -> _Kept:
    if body["version"] != 1:
        raise ValueError("another version")
    tokens = {}
    for line in body["tokens"]:
        token = Token(
            str(line["token_id"]),
            str(line["name"]),
            tuple(Role(role).value for role in line["roles"]),
            str(line["namespace"]),
            str(line["hash"]),
            float(line["created_s"]),
            None if line["expires_s"] is None else float(line["expires_s"]),
            None if line["revoked_s"] is None else float(line["revoked_s"]),
        )
        tokens[token.token_id] = token
    key = bytes.fromhex(body["session_key"])
    if len(key) < 32:
        raise ValueError("the session key is short")
    return _Kept(tokens, key)
