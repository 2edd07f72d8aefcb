"""How a batch becomes one blob in a database row: framing by columns, compression, a checksum.

A blob is `format (1 byte) | CRC-32 (4, big-endian) | payload`. The checksum covers the payload and
the row's other columns, so that a blob in the wrong row is found out too. Format 1 is a plain
payload, format 2 a zlib stream of one, format 3 (with no payload) a row of offsets that were left
out and have no records. A payload holds, numbers as LEB128:

    key count, each key as (length + 1, bytes) or 0 for null
    with more than one key: the index of each record's key
    header kind: 0 none has one, n+1 all have n bytes; or 1 << 32, then (length + 1 | 0) for each
    for each record the value's length + 1, or 0 for null
    headers: of equal length byte by byte over all records (first bytes, second bytes, ...), which
    is what makes counters and times nearly free; else one after the other
    values, one after the other
"""

import zlib
from collections.abc import Sequence

from refold.log.port import Entry, Record

FORMAT_PLAIN = 1
FORMAT_ZLIB = 2
FORMAT_HOLE = 3
PAYLOAD_SIZE_MAX = 1 << 30
"""No payload is larger, whatever a damaged or hostile blob says."""

_MIXED = 1 << 32
# Below this zlib does not win, its frame alone is 8 bytes.
_COMPRESS_FROM = 96


class RowDamaged(ValueError):
    """A blob that is not what was written; the message says in what way."""


def _number(out: bytearray, number: int) -> None:
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _numbers(out: bytearray, numbers: Sequence[int]) -> None:
    """Several numbers, of which nearly all take one byte or two."""
    if max(numbers) < 0x80:
        out += bytes(numbers)
        return
    append = out.append
    for number in numbers:
        if number < 0x80:
            append(number)
        elif number < 0x4000:
            append(number & 0x7F | 0x80)
            append(number >> 7)
        else:
            _number(out, number)


def frame(entries: Sequence[Entry]) -> bytes:
    """The plain payload of a batch; `squeeze` compresses it."""
    out = bytearray()
    keys: dict[bytes | None, int] = {}
    indexes = [keys.setdefault(entry.key, len(keys)) for entry in entries]
    _number(out, len(keys))
    for key in keys:
        if key is None:
            out.append(0)
        else:
            _number(out, len(key) + 1)
            out += key
    if len(keys) > 1:
        _numbers(out, indexes)
    headers = [entry.header for entry in entries]
    sizes = {None if header is None else len(header) for header in headers}
    size = sizes.pop()
    mixed = bool(sizes)
    if mixed:
        _number(out, _MIXED)
        for header in headers:
            _number(out, 0 if header is None else len(header) + 1)
    else:
        _number(out, 0 if size is None else size + 1)
    _numbers(out, [0 if entry.value is None else len(entry.value) + 1 for entry in entries])
    joined = b"".join(header for header in headers if header is not None)
    if mixed or not size or len(entries) == 1:
        out += joined
    else:
        for at in range(size):
            out += joined[at::size]
    out += b"".join(entry.value for entry in entries if entry.value is not None)
    return bytes(out)


def squeeze(payload: bytes) -> tuple[int, bytes]:
    """The payload as it is kept, with its format: compressed where that makes it shorter.

    `seal` makes the blob once the row's place is known.
    """
    if len(payload) >= _COMPRESS_FROM:
        compressed = zlib.compress(payload, 1)
        if len(compressed) < len(payload):
            return FORMAT_ZLIB, compressed
    return FORMAT_PLAIN, payload


def seal(
    format_: int, payload: bytes, *, position: int, record_count: int, append_ms: int
) -> bytes:
    """The blob of the row that stands at `position` with these columns."""
    crc = _crc(format_, payload, position, record_count, append_ms)
    return b"%c%b%b" % (format_, crc.to_bytes(4, "big"), payload)


def _crc(format_: int, payload: bytes, position: int, record_count: int, append_ms: int) -> int:
    return zlib.crc32(
        b"%d %d %d %d" % (format_, position, record_count, append_ms), zlib.crc32(payload)
    )


class _Reader:
    """Takes numbers and bytes off a payload, never past its end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def number(self) -> int:
        data, at = self.data, self.at
        byte = data[at]
        at += 1
        number = byte & 0x7F
        shift = 7
        while byte & 0x80:
            byte = data[at]
            at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise RowDamaged("a number in it has no end")
        self.at = at
        return number

    def bytes(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.data):
            raise RowDamaged("it is shorter than it says")
        piece = self.data[self.at : end]
        self.at = end
        return piece


def unseal(
    blob: bytes, *, position: int, base_offset: int, record_count: int, append_ms: int
) -> list[Record]:
    """The records of a row's blob. Raises RowDamaged unless every byte is as it was written."""
    if len(blob) < 5:
        raise RowDamaged("its blob is too short")
    format_, payload = blob[0], blob[5:]
    if int.from_bytes(blob[1:5], "big") != _crc(
        format_, payload, position, record_count, append_ms
    ):
        raise RowDamaged("its checksum does not fit")
    if format_ == FORMAT_HOLE:
        return []
    if format_ == FORMAT_ZLIB:
        inflater = zlib.decompressobj()
        try:
            payload = inflater.decompress(payload, PAYLOAD_SIZE_MAX)
        except zlib.error as error:
            raise RowDamaged("it cannot be decompressed") from error
        if not inflater.eof:
            raise RowDamaged("its compressed part has no end")
    elif format_ != FORMAT_PLAIN:
        raise RowDamaged(f"its format {format_} is not known to this version")
    try:
        return _unpack(payload, base_offset, record_count, append_ms)
    except IndexError as error:
        raise RowDamaged("it is shorter than it says") from error


def _unpack(payload: bytes, base_offset: int, count: int, append_ms: int) -> list[Record]:
    reader = _Reader(payload)
    key_count = reader.number()
    if key_count > count:
        raise RowDamaged("it has more keys than records")
    keys: list[bytes | None] = []
    for _ in range(key_count):
        size = reader.number()
        keys.append(reader.bytes(size - 1) if size else None)
    indexes = [reader.number() for _ in range(count)] if key_count > 1 else [0] * count
    kind = reader.number()
    header_sizes = [reader.number() for _ in range(count)] if kind == _MIXED else []
    value_sizes = [reader.number() for _ in range(count)]
    headers: list[bytes | None]
    if kind == _MIXED:
        headers = [reader.bytes(size - 1) if size else None for size in header_sizes]
    elif kind == 0:
        headers = [None] * count
    else:
        block = reader.bytes((kind - 1) * count)
        headers = [block[at::count] if block else b"" for at in range(count)]
    values = [reader.bytes(size - 1) if size else None for size in value_sizes]
    if reader.at != len(payload):
        raise RowDamaged("it is longer than it says")
    return [
        Record(base_offset + at, keys[indexes[at]], values[at], headers[at], append_ms)
        for at in range(count)
    ]
