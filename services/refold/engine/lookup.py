"""Reads single records of a partition by their offset, cheaply where they lie together."""

from refold.log.port import Log, Record, Topic
from refold_schemas.errors.log import OffsetOutOfRange


class Lookup:
    """One topic of one partition; the last piece that was read is kept."""

    def __init__(self, log: Log, topic: Topic, partition: int) -> None:
        self._log, self._topic, self._partition = log, topic, partition
        self._piece: dict[int, Record] = {}

    async def at(self, offset: int) -> Record | None:
        """The record at this offset; None where it is not kept any more. Raises as `Log.read`."""
        found = self._piece.get(offset)
        if found is not None:
            return found
        try:
            records = await self._log.read(self._topic, self._partition, offset)
        except OffsetOutOfRange:
            return None
        self._piece = {record.offset: record for record in records}
        return self._piece.get(offset)
