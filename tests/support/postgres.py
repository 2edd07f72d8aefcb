"""A real Postgres for tests: one server for a test process, a database of its own for each test."""

import asyncio
import uuid
from pathlib import Path
from typing import Any

from refold_projections.tables.database import close, connect
from refold_tools.devstack import POSTGRES, Ports, Stack


class Postgres:
    """A stack of one Postgres in `directory`: to be stopped and started again, and killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stack = Stack.up(directory, ports=Ports.free(), services={POSTGRES}, tied=True)

    @property
    def url(self) -> str:
        return self.stack.variables["REFOLD_DATABASE_URL"]

    def new_database(self) -> str:
        """The URL of a database that nothing is in yet."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        asyncio.run(self._execute(f"create database {name}"))
        return f"{self.url.rpartition('/')[0]}/{name}"

    def drop(self, url: str) -> None:
        name = url.rpartition("/")[2]
        asyncio.run(self._execute(f"drop database if exists {name} with (force)"))

    async def _execute(self, sql: str) -> None:
        connection = await connect(self.url, name="tests")
        try:
            await connection.execute(sql)
        finally:
            await close(connection)

    def stop(self) -> None:
        self.stack.down()

    def delete(self) -> None:
        """Stop it, and remove its data wherever they are."""
        self.stack.down(delete=True)

    def start(self) -> None:
        """Up again, with the same data on the same port."""
        self.stack = Stack.up(self.directory, services={POSTGRES}, tied=True)


async def rows(url: str, sql: str, *values: Any) -> list[dict[str, Any]]:
    """What a reader gets that asks once."""
    connection = await connect(url, name="tests")
    try:
        return [dict(row) for row in await connection.fetch(sql, *values)]
    finally:
        await close(connection)


async def until(url: str, sql: str, *, within_s: float = 60) -> None:
    """Return once a reader that asks again and again gets a row."""
    connection = await connect(url, name="tests")
    try:
        async with asyncio.timeout(within_s):
            while await connection.fetchrow(sql) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        await close(connection)
