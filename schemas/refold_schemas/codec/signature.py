"""The signature of a command: which bytes it covers, and how it travels in the record header. Pure.

A command's record has a header `refold` only if it is signed; that of an event has another kind in
its second byte, so none can be taken for the other.
"""

import struct
from typing import Final, NamedTuple

from refold_schemas.codec.header import LAYOUT_VERSION

KIND_SIGNATURE: Final = 3
HMAC_SHA256: Final = 1
ED25519: Final = 2
SIZES: Final = {HMAC_SHA256: 32, ED25519: 64}
"""Bytes of a signature, by its algorithm."""
KEY_ID_MAX: Final = 64
CONTEXT: Final = b"refold-command-signature-1"
PRIVILEGED: Final = frozenset(
    {
        *("DecideApproval", "EraseSubject", "ForkRun", "MigrateRun", "ResolveStep", "RetryRun"),
        "RecordFinding",
    }
)
"""Commands that people act on: where keys are set, unsigned ones are rejected (design, 4).

Of findings too: they silence a red row, and name a command that a person is to type.
"""
_HEAD: Final = struct.Struct(">BBBB")
_LENGTH: Final = struct.Struct(">I")


class Signature(NamedTuple):
    """What a header says: by which algorithm, with which key, and the signature itself.

    Layout, big-endian: version (1), kind (3), algorithm, length of the key id, key id (ASCII),
    signature.

    >>> signature = Signature(HMAC_SHA256, "gateway", bytes(32))
    >>> Signature.read(signature.pack()) == signature
    True
    >>> Signature.read(b"not ours") is None
    True
    """

    algorithm: int
    key_id: str
    signature: bytes

    def pack(self) -> bytes:
        """The header's bytes."""
        key_id = self.key_id.encode("ascii")
        head = _HEAD.pack(LAYOUT_VERSION, KIND_SIGNATURE, self.algorithm, len(key_id))
        return head + key_id + self.signature

    @classmethod
    def read(cls, data: bytes | None) -> "Signature | None":
        """The signature in a header; None where it has none that can be read."""
        if data is None or len(data) < _HEAD.size:
            return None
        version, kind, algorithm, length = _HEAD.unpack_from(data)
        size = SIZES.get(algorithm)
        if (version, kind) != (LAYOUT_VERSION, KIND_SIGNATURE) or size is None:
            return None
        if not 0 < length <= KEY_ID_MAX or len(data) != _HEAD.size + length + size:
            return None
        key_id = data[_HEAD.size : _HEAD.size + length]
        if not key_id.isascii():
            return None
        return cls(algorithm, key_id.decode("ascii"), data[_HEAD.size + length :])


def signed_bytes(namespace: str, run_id: str, command_id: str, value: bytes) -> bytes:
    """What a signature covers: the record's value as it is, and where it belongs.

    The partition is not in it: the run id says which one, and a command that is found on another
    one is sent on with its signature. Each part has its length before it, so that no two differ in
    where one ends.

    >>> signed_bytes("shop", "order-1", "c1", b"xyz")[:30]
    b'\\x00\\x00\\x00\\x1arefold-command-signature-1'
    """
    parts = (CONTEXT, namespace.encode(), run_id.encode(), command_id.encode(), value)
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)
