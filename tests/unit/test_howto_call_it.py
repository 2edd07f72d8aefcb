"""The how-to for callers: its code runs as it stands there, against a worker."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from refold import App, RunContext
from support.worker_thread import worker_of

PAGE = Path(__file__).parents[2] / "docs/howto/call-it.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker on the default log of a working directory, on a loop in a thread."""
    monkeypatch.chdir(tmp_path)
    app = App("shop")

    @app.run("refund-agent")
    async def agent(ctx: RunContext, order: dict[str, str]) -> str:
        if order["id"] == "bad":
            raise ValueError("no such order")
        return f"refunded {order['id']}"

    with worker_of(app, "sqlite:///.refold/log.db"):
        yield


def names_of(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "howto"}
    exec(compile(block, str(PAGE), "exec"), names)
    return names


def test_both_clients_wait_for_a_result(worker: None) -> None:
    refund = names_of(BLOCKS[0])["refund"]
    assert asyncio.run(refund("48211")) == "refunded 48211"
    assert asyncio.run(refund("bad")).startswith("ValueError: no such order")
    assert names_of(BLOCKS[1])["refund_and_wait"]("48211") == "refunded 48211"


def test_a_web_handler_starts_and_tells(worker: None) -> None:
    async def ask() -> None:
        async with TestClient(TestServer(names_of(BLOCKS[2])["make_app"]())) as client:
            answer = await client.post("/orders/7/refund")
            assert (answer.status, await answer.json()) == (202, {"run_id": "order-7"})
            again = await client.post("/orders/7/refund")
            assert again.status == 202
            assert (await client.get("/runs/order-9")).status == 404
            seen = await (await client.get("/runs/order-7")).json()
            assert seen["status"] in ("running", "completed")

    asyncio.run(ask())
