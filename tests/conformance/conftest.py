"""What the conformance tests share: a real registry, while their file is tested."""

import asyncio
from collections.abc import Iterator

import pytest

from refold_schemas.registry import FileRegistry
from refold_schemas.registry.asking import RegistryAccess
from refold_schemas.registry.subjects import register
from refold_tools.devstack import REGISTRY, Ports, Stack


@pytest.fixture(scope="module")
def registry_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running Apicurio that has all released schemas, for tests that leave them there."""
    folder = tmp_path_factory.mktemp("registry")
    with Stack.up(folder, ports=Ports.free(), services={REGISTRY}, tied=True) as stack:
        url = stack.variables["REFOLD_REGISTRY_URL"]

        async def fill() -> None:
            async for _ in register(RegistryAccess(url), FileRegistry()):
                pass

        asyncio.run(fill())
        yield url
