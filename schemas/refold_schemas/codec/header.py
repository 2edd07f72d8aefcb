"""The record header `refold`: what the claim rule needs of a record, outside its body."""

import struct
from typing import Any, Final, NamedTuple

from refold_schemas.errors import HeaderUnreadable, SchemaMismatch

HEADER_NAME: Final = "refold"
LAYOUT_VERSION: Final = 1
KIND_EVENT: Final = 0
KIND_CLAIM: Final = 1
KIND_REPORT: Final = 2

CLAIM_ID_SIZE: Final = 16
_LAYOUT: Final = struct.Struct(">BB16sqqqq")
_REST: Final = struct.Struct(">qqq")
HEADER_SIZE: Final = _LAYOUT.size
_INT64: Final = range(-(2**63), 2**63)


class RecordHeader(NamedTuple):
    """Kind, claim, counter and times of one record.

    `epoch` is the claim's, `n` the owner's counter within it, `at_ms` its clock (milliseconds since
    1970 UTC), `command_next` the offset of the next command to decide. A report carries the claim
    and n of the *intent* it is about. Layout, 50 bytes big-endian: version, kind, claim, epoch, n,
    at_ms, command_next (docs/log-format.md).

    >>> header = RecordHeader(KIND_EVENT, bytes(16), 3, 7, 1000, 0)
    >>> RecordHeader.unpack(header.pack()) == header
    True
    """

    kind: int
    claim_id: bytes
    epoch: int
    n: int
    at_ms: int
    command_next: int

    def pack(self) -> bytes:
        """Return the 50 bytes. Raises SchemaMismatch: struct would cut and pad without a word."""
        fields: list[Any] = list(self)  # whatever a caller made of the types that they should have
        kind, claim_id = fields[0], fields[1]
        if type(claim_id) is not bytes or len(claim_id) != CLAIM_ID_SIZE:
            raise SchemaMismatch("RecordHeader", "claim_id", "it is not 16 bytes")
        if type(kind) is not int or not KIND_EVENT <= kind <= KIND_REPORT:
            raise SchemaMismatch("RecordHeader", "kind", f"{kind!r} is not 0, 1 or 2")
        for name, number in zip(_NUMBERS, fields[2:], strict=True):
            if type(number) is not int or number not in _INT64:
                raise SchemaMismatch("RecordHeader", name, f"{number!r} is no 64-bit integer")
        return _LAYOUT.pack(LAYOUT_VERSION, *fields)

    @classmethod
    def unpack(cls, data: bytes) -> "RecordHeader":
        """Read the 50 bytes. Raises HeaderUnreadable for anything else."""
        if len(data) != HEADER_SIZE:
            if data and data[0] != LAYOUT_VERSION:
                raise HeaderUnreadable(
                    f"its layout version is {data[0]}, known is {LAYOUT_VERSION}"
                )
            raise HeaderUnreadable(f"it has {len(data)} bytes, not {HEADER_SIZE}")
        version, kind, claim_id, epoch, n, at_ms, command_next = _LAYOUT.unpack(data)
        if version != LAYOUT_VERSION:
            raise HeaderUnreadable(f"its layout version is {version}, known is {LAYOUT_VERSION}")
        if kind > KIND_REPORT:
            raise HeaderUnreadable(f"its kind is {kind}, known are 0, 1 and 2")
        return cls(kind, claim_id, epoch, n, at_ms, command_next)

    @classmethod
    def read(cls, data: bytes | None) -> "RecordHeader | None":
        """The header of a record as read; None where there is none, or none that can be read.

        >>> RecordHeader.read(None), RecordHeader.read(b"not ours")
        (None, None)
        """
        if data is None:
            return None
        try:
            return cls.unpack(data)
        except HeaderUnreadable:
            return None


class ClaimHeaders:
    """Packs the headers of one claim's records: what they have in common is packed once.

    >>> ClaimHeaders(KIND_EVENT, bytes(16), 3).pack(7, 1000, 0) == RecordHeader(
    ...     KIND_EVENT, bytes(16), 3, 7, 1000, 0
    ... ).pack()
    True
    """

    __slots__ = ("_common", "_head")

    def __init__(self, kind: int, claim_id: bytes, epoch: int) -> None:
        """Raises SchemaMismatch, as `RecordHeader.pack` does."""
        self._common = (kind, claim_id, epoch)
        self._head = RecordHeader(kind, claim_id, epoch, 0, 0, 0).pack()[: -_REST.size]

    def pack(self, n: int, at_ms: int, command_next: int) -> bytes:
        """Return the 50 bytes. Raises SchemaMismatch."""
        if type(n) is int and type(at_ms) is int and type(command_next) is int:
            try:
                return self._head + _REST.pack(n, at_ms, command_next)
            except struct.error:  # out of range: said below, with the field's name
                pass
        return RecordHeader(*self._common, n, at_ms, command_next).pack()


_NUMBERS: Final = ("epoch", "n", "at_ms", "command_next")
