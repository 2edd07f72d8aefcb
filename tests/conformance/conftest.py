"""What the conformance tests share: a real registry that has what is released."""

import asyncio

import pytest

from refold_schemas.registry import FileRegistry
from refold_schemas.registry.asking import RegistryAccess
from refold_schemas.registry.subjects import register


@pytest.fixture(scope="module")
def registry_url(registry_url: str) -> str:
    """A running Apicurio that has all released schemas, for tests that leave them there."""

    async def fill() -> None:
        async for _ in register(RegistryAccess(registry_url), FileRegistry()):
            pass

    asyncio.run(fill())
    return registry_url
