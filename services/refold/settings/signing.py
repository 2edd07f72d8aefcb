"""Keys that commands are signed with, and those that workers believe: read from files, never shown.

A key in the workers' file says for whom it speaks: a name, which is then recorded whatever the
command says, or `*` for who verifies callers by itself (the gateway) and says their names.
"""

import base64
import hashlib
import hmac
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from refold_schemas.codec.signature import (
    ED25519,
    HMAC_SHA256,
    PRIVILEGED,
    Signature,
    signed_bytes,
)
from refold_schemas.errors.cli import KeysUnusable

KEYS_VARIABLE = "REFOLD_COMMAND_KEYS"
"""The file of keys that workers believe."""
SIGNING_VARIABLE = "REFOLD_SIGNING_KEY"
"""The file of the key that this process signs its commands with."""
ALGORITHMS = {"hmac-sha256": HMAC_SHA256, "ed25519": ED25519}
ANYBODY = "*"
SECRET_MIN = 32
"""Bytes of a shared secret: fewer can be guessed."""
KEYS_MAX = 1_000
FILE_SIZE_MAX = 1 << 20
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Judgement(NamedTuple):
    """What a signature says: who speaks, or why the command is refused. Both None: unsigned, and
    it need not be."""

    by: str | None = None
    reason: str | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs with one key."""

    key_id: str
    algorithm: int
    _secret: Any = field(repr=False)

    def header(self, namespace: str, run_id: str, command_id: str, value: bytes) -> bytes:
        """The record header of a command with this value."""
        data = signed_bytes(namespace, run_id, command_id, value)
        if self.algorithm == HMAC_SHA256:
            signature = hmac.new(self._secret, data, hashlib.sha256).digest()
        else:
            signature = self._secret.sign(data)
        return Signature(self.algorithm, self.key_id, signature).pack()


@dataclass(frozen=True, slots=True)
class _Key:
    algorithm: int
    speaks_for: str
    secret: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys that a worker believes."""

    _keys: Mapping[str, _Key] = field(repr=False)

    def judge(
        self,
        namespace: str,
        kind: str,
        run_id: str,
        command_id: str,
        by: str,
        value: bytes,
        header: bytes | None,
    ) -> Judgement:
        """Who speaks in a command of this kind, whose value and header are these bytes."""
        signature = Signature.read(header)
        if signature is None:
            if kind not in PRIVILEGED:
                return Judgement()
            what = "has no signature" if header is None else "has no signature that can be read"
            return Judgement(None, "unsigned", f"this {kind} {what}, and keys are set")
        key = self._keys.get(signature.key_id)
        if key is None or key.algorithm != signature.algorithm:
            told = f"the key {signature.key_id!r} is none that is believed"
            return Judgement(None, "bad_signature", told)
        data = signed_bytes(namespace, run_id, command_id, value)
        if not _holds(key, data, signature.signature):
            told = f"the signature with key {signature.key_id!r} does not hold"
            return Judgement(None, "bad_signature", told)
        return Judgement(by if key.speaks_for == ANYBODY else key.speaks_for)


def open_keyring(path: str | None = None) -> Keyring | None:
    """The keys that `REFOLD_COMMAND_KEYS` names; None where it is not set. Raises KeysUnusable."""
    found = path or os.environ.get(KEYS_VARIABLE, "").strip()
    if not found:
        return None
    body = _read(KEYS_VARIABLE, found)
    try:
        lines = body["keys"]
        if not isinstance(lines, list) or not 0 < len(lines) <= KEYS_MAX:
            raise ValueError(f"it has not 1 to {KEYS_MAX:,} keys")
        keys: dict[str, _Key] = {}
        for line in lines:
            key_id, algorithm = _named(line)
            speaks_for = line["speaks_for"]
            if not isinstance(speaks_for, str) or not 0 < len(speaks_for) <= 200:
                raise ValueError(f"{key_id}: speaks_for is no name, nor *")
            if key_id in keys:
                raise ValueError(f"{key_id} is there twice")
            if algorithm == HMAC_SHA256:
                secret: Any = _secret(line, key_id)
            else:
                raw = _decoded(line["public"], key_id)
                secret = _ed25519().Ed25519PublicKey.from_public_bytes(raw)
            keys[key_id] = _Key(algorithm, speaks_for, secret)
    except (KeyError, TypeError, AttributeError) as error:
        raise KeysUnusable(KEYS_VARIABLE, found, f"it lacks {error}") from None
    except ValueError as error:
        raise KeysUnusable(KEYS_VARIABLE, found, str(error)) from None
    return Keyring(keys)


def open_signer(path: str | None = None) -> Signer | None:
    """The key that `REFOLD_SIGNING_KEY` names; None where it is not set. Raises KeysUnusable."""
    found = path or os.environ.get(SIGNING_VARIABLE, "").strip()
    if not found:
        return None
    body = _read(SIGNING_VARIABLE, found)
    try:
        key_id, algorithm = _named(body)
        if algorithm == HMAC_SHA256:
            return Signer(key_id, algorithm, _secret(body, key_id))
        raw = _decoded(body["private"], key_id)
        return Signer(key_id, algorithm, _ed25519().Ed25519PrivateKey.from_private_bytes(raw))
    except (KeyError, TypeError, AttributeError) as error:
        raise KeysUnusable(SIGNING_VARIABLE, found, f"it lacks {error}") from None
    except ValueError as error:
        raise KeysUnusable(SIGNING_VARIABLE, found, str(error)) from None


def make_key(key_id: str, algorithm: str, speaks_for: str) -> tuple[dict[str, str], dict[str, str]]:
    """A fresh key: what its holder keeps, and the line for the workers' file. Raises ValueError."""
    if not _KEY_ID.fullmatch(key_id):
        raise ValueError("a key id has 1 to 64 letters, digits, dots, dashes and underscores")
    common = {"id": key_id, "algorithm": algorithm}
    if algorithm == "hmac-sha256":
        secret = base64.b64encode(os.urandom(SECRET_MIN)).decode()
        return {**common, "secret": secret}, {**common, "secret": secret, "speaks_for": speaks_for}
    if algorithm != "ed25519":
        raise ValueError(f"{algorithm!r} is none of {', '.join(ALGORITHMS)}")
    private = _ed25519().Ed25519PrivateKey.generate()
    public = base64.b64encode(private.public_key().public_bytes_raw()).decode()
    kept = base64.b64encode(private.private_bytes_raw()).decode()
    return {**common, "private": kept}, {**common, "public": public, "speaks_for": speaks_for}


def _holds(key: _Key, data: bytes, signature: bytes) -> bool:
    if key.algorithm == HMAC_SHA256:
        return hmac.compare_digest(hmac.new(key.secret, data, hashlib.sha256).digest(), signature)
    from cryptography.exceptions import InvalidSignature

    try:
        key.secret.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError:
        raise ValueError(
            "ed25519 needs the package cryptography: pip install 'refold[signing]'"
        ) from None
    return ed25519


def _read(variable: str, path: str) -> Any:
    try:
        with Path(path).open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_SIZE_MAX + 1)
    except OSError as error:
        raise KeysUnusable(variable, path, error.strerror or str(error)) from error
    if mode & 0o027:
        told = "others on this machine may read it, or its group may change it (chmod 600)"
        raise KeysUnusable(variable, path, told)
    try:
        return json.loads(data)
    except ValueError:
        raise KeysUnusable(variable, path, "it is no JSON") from None


def _named(line: Mapping[str, Any]) -> tuple[str, int]:
    key_id, algorithm = line["id"], line["algorithm"]
    if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
        raise ValueError("an id has 1 to 64 letters, digits, dots, dashes and underscores")
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{key_id}: its algorithm is none of {', '.join(ALGORITHMS)}")
    return key_id, ALGORITHMS[algorithm]


def _secret(line: Mapping[str, Any], key_id: str) -> bytes:
    secret = _decoded(line["secret"], key_id)
    if len(secret) < SECRET_MIN:
        raise ValueError(f"{key_id}: its secret has {len(secret)} bytes, {SECRET_MIN} are needed")
    return secret


def _decoded(text: object, key_id: str) -> bytes:
    """Raises ValueError, in whose text nothing of the secret is."""
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError:
        raise ValueError(f"{key_id}: its bytes are no base64") from None
