"""Looks up the records of `ns.events` that snapshots and positions name: do they still stand?"""

from typing import Final

from refold.log.port import Log, Record, Topic
from refold_projections.fold import Mark
from refold_schemas.codec import RecordHeader
from refold_schemas.errors import HeaderUnreadable

READ_BYTES: Final = 1 << 20
READ_BYTES_MIN: Final = 16 * 1024


class Marks:
    """Looks up records of `ns.events` by offset, rising: no stored batch is read twice.

    Marks that lie close together are looked up in one large read, those far apart each in a small
    one: reading everything between them would make a takeover as long as the log.
    """

    def __init__(self, log: Log, partition: int) -> None:
        self._log, self._partition = log, partition
        self._chunk: dict[int, Record] = {}
        self._bounds: tuple[int, int] | None = None
        self._size = READ_BYTES_MIN

    async def stands(self, mark: Mark) -> bool:
        """Whether the record at the mark's offset is the one that the mark names."""
        if mark.offset < 0:
            return True
        record = self._chunk.get(mark.offset)
        if record is None:
            record = await self._read(mark.offset)
        if record is None or record.header is None:
            return False
        try:
            header = RecordHeader.unpack(record.header)
        except HeaderUnreadable:
            return False
        return (header.claim_id, header.n) == (mark.claim_id, mark.n)

    async def _read(self, offset: int) -> Record | None:
        if self._bounds is None:
            self._bounds = await self._log.bounds(Topic.EVENTS, self._partition)
        start, end = self._bounds
        if not start <= offset < end:
            return None
        if self._chunk:
            first, last = next(iter(self._chunk)), next(reversed(self._chunk))
            near = offset - last <= last - first + 1
            wanted = self._size * 2 if near else self._size // 2
            self._size = min(max(wanted, READ_BYTES_MIN), READ_BYTES)
        records = await self._log.read(Topic.EVENTS, self._partition, offset, size_max=self._size)
        self._chunk = {record.offset: record for record in records}
        return self._chunk.get(offset)
