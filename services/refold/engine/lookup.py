"""Reads single records of a partition by their offset, cheaply where they lie together."""

from refold.log.port import Log, Record, Topic
from refold_schemas.errors.log import LogUnavailable, OffsetOutOfRange


class Lookup:
    """One topic of one partition; the last piece that was read is kept."""

    def __init__(self, log: Log, topic: Topic, partition: int) -> None:
        self._log, self._topic, self._partition = log, topic, partition
        self._piece: dict[int, Record] = {}

    async def at(self, offset: int) -> Record | None:
        """The record at this offset, which was there once; None where it is not kept any more.

        Raises as `Log.read`, and LogUnavailable where the log ends before it: a leader that has
        yet to learn how far the others have come shows less than was acknowledged.
        """
        found = self._piece.get(offset)
        if found is not None:
            return found
        log, place = self._log, (self._topic, self._partition)
        try:
            records = await log.read(*place, offset)
            if not records:
                _, end = await log.bounds(*place)
                if end <= offset:
                    name = f"{log.facts.namespace}.{self._topic}/{self._partition}"
                    raise LogUnavailable(log.url, f"{name} ends at {end}, offset {offset} was read")
                records = await log.read(*place, offset)  # where it is none still: holes
        except OffsetOutOfRange:
            return None
        self._piece = {record.offset: record for record in records}
        return self._piece.get(offset)
