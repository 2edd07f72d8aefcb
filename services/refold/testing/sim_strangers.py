"""Producers that are not ours: other partitioners, no keys, ids of a registry that is away."""

from collections.abc import Mapping
from random import Random
from typing import Any

from refold.log.port import Entry
from refold.testing.sim_loop import Universe
from refold.testing.sim_report import Journal
from refold_schemas.codec import Codec
from refold_schemas.codec.classes import COMMAND_CLASSES, COMMAND_NAMESPACE
from refold_schemas.errors import SchemaUnavailable, UnknownSchemaId
from refold_schemas.registry import FileRegistry

IDS_OF_A_KIND = 1_000
"""Ids of one command's schema: the more, the oftener a process meets one that it has not read."""
NOBODYS_ID = 90_000
"""An id that the registry never has."""
_KINDS = {cls.__name__: number for number, cls in enumerate(COMMAND_CLASSES, start=1)}
_FILES = FileRegistry()
_OWN_IDS = {number: _FILES.id_of(f"{COMMAND_NAMESPACE}.{name}") for name, number in _KINDS.items()}


def own_id(schema_id: int) -> int | None:
    """The embedded id of the schema that the registry has under this one; None: it has none."""
    return _OWN_IDS.get(schema_id // IDS_OF_A_KIND)


def as_ours(data: bytes) -> bytes:
    """The same record under the embedded id, if its id is one of the registry's."""
    own = own_id(int.from_bytes(data[1:5], "big")) if len(data) >= 5 and data[0] == 0 else None
    return data if own is None else b"\0" + own.to_bytes(4, "big") + data[5:]


class SimRegistry:
    """The registry's service: away now and then, as long as there are faults."""

    def __init__(self, universe: Universe, rng: Random, journal: Journal) -> None:
        self.universe, self.rng, self.journal = universe, rng, journal
        self.away = self.ended = False

    def begin(self) -> None:
        """From now on it comes and goes."""
        if self.ended:
            return
        self.away = not self.away
        if self.away:
            self.journal.fault("registry away", "registry")
        self.universe.later(self.rng.randint(500, 6_000) * 1_000, self.begin)

    def end(self) -> None:
        """No more faults."""
        self.ended, self.away = True, False


class StrangersCodec(Codec):
    """The codec of one process: what it has asked the registry for, it knows.

    `shared` has the compiled readers and writers, which know no state.
    """

    def __init__(self, registry: SimRegistry, shared: Codec) -> None:
        super().__init__(_FILES)
        self._readers, self._writers = shared._readers, shared._writers
        self._service = registry
        self._known: set[int] = set()

    def decode(self, data: bytes) -> Any:
        """As ours, once its schema is known."""
        schema_id = int.from_bytes(data[1:5], "big") if len(data) >= 5 and data[0] == 0 else 0
        if not 0 < schema_id < 2_000_000_000:
            return super().decode(data)
        if schema_id not in self._known:
            raise SchemaUnavailable(schema_id, "the registry was not asked for it yet")
        return super().decode(as_ours(data))

    async def learn(self, schema_id: int) -> None:
        """Ask the service."""
        if self._service.away:
            raise SchemaUnavailable(schema_id, "the registry refuses connections")
        if own_id(schema_id) is None:
            raise UnknownSchemaId("the registry has no schema of that id", schema_id=schema_id)
        self._known.add(schema_id)


class Strangers:
    """Dresses some commands as strangers would publish them."""

    def __init__(self, rng: Random, chance: float, journal: Journal, partition_count: int) -> None:
        self.rng, self.chance, self.journal = rng, chance, journal
        self.partition_count = partition_count
        self._names: Mapping[str, int] = _KINDS

    def dress(self, kind: str, run_id: str, data: bytes, home: int) -> tuple[int, Entry]:
        """Partition and record of a command: as ours, or not."""
        rng, place, key = self.rng, home, run_id.encode()
        if rng.random() < self.chance:
            self.journal.fault("command on another partition", "stranger", run_id)
            place = rng.randrange(self.partition_count)
            key = rng.choice((key, b"", b"somebody"))
        if rng.random() < self.chance:
            self.journal.fault("command of an unread schema", "stranger", run_id)
            schema_id = self._names[kind] * IDS_OF_A_KIND + rng.randrange(IDS_OF_A_KIND)
            data = b"\0" + schema_id.to_bytes(4, "big") + data[5:]
        return place, Entry(key, data)

    def nobodys(self) -> tuple[int, Entry]:
        """A command under an id that nobody will ever know."""
        self.journal.fault("command of no schema", "stranger")
        data = b"\0" + NOBODYS_ID.to_bytes(4, "big") + self.rng.randbytes(12)
        return self.rng.randrange(self.partition_count), Entry(b"run-0", data)
