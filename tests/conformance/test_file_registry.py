"""The embedded registry against the suite, and registries that break the contract fail it."""

import asyncio
from typing import Any

import pytest

from refold.testing import registry_conformance
from refold.testing.registry_conformance import (
    CHECKS,
    NOBODYS_ID,
    MakeRegistry,
    RegistryConformance,
    run_check,
)
from refold_schemas.errors import UnknownSchemaId
from refold_schemas.registry import FileRegistry, Schema


class TestFileRegistry(RegistryConformance):
    @pytest.fixture
    def make_registry(self) -> MakeRegistry:
        return FileRegistry


class TakesUnknownForEmpty(FileRegistry):
    """Whatever is not known is a schema without fields."""

    async def learn(self, schema_id: int) -> None: ...

    def schema(self, schema_id: int) -> Schema:
        try:
            return super().schema(schema_id)
        except Exception:
            return {"type": "record", "name": "Empty", "fields": []}


class TakesUnknownForUndecodable(FileRegistry):
    """An id that it has not asked for is judged at once: a run would be parked for it."""

    def name_version(self, schema_id: int) -> tuple[str, int]:
        if schema_id == NOBODYS_ID:
            raise UnknownSchemaId("unknown", schema_id=schema_id)
        return super().name_version(schema_id)


class CountsAnew(FileRegistry):
    """Gives a name another id each time it is ready."""

    asked = 0

    async def ready(self, names: Any) -> None:
        CountsAnew.asked += 1

    def id_of(self, name: str, version: int | None = None) -> int:
        found = super().id_of(name, version)
        return self.all_ids()[CountsAnew.asked] if self.asked else found


@pytest.mark.parametrize("broken", [TakesUnknownForEmpty, TakesUnknownForUndecodable, CountsAnew])
def test_a_registry_that_breaks_the_contract_fails_the_suite(broken: type[FileRegistry]) -> None:
    failed = []
    for check in CHECKS:
        try:
            asyncio.run(run_check(check, broken))
        except (AssertionError, pytest.fail.Exception):
            failed.append(check.__name__)
        except Exception as error:
            failed.append(f"{check.__name__}: {error}")
    assert failed, "nothing of it was noticed"


def test_the_suite_has_its_checks() -> None:
    assert len(CHECKS) >= 10
    assert registry_conformance.__doc__
