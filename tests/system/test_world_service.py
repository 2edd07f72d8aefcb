"""The world as a process: over HTTP it keeps the same promises, its ledger outlives a SIGKILL."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from world.client import CardDeclined, WorldClient, WorldError
from world.messages import Json

EXAMPLES = Path(__file__).parents[2] / "examples"
ANSWER_SECONDS_MAX = 20.0
PATIENCE_SECONDS = 0.2


@contextmanager
def service(ledger: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running service and its address; what is left of it is killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "world", "--ledger", str(ledger), *options],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready, _, url = process.stdout.readline().strip().partition(" ")
        assert ready == "READY"
        yield process, url
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One service for the tests that leave it alive."""
    with service(tmp_path_factory.mktemp("world") / "ledger.db", "--seed", "7") as (_, url):
        yield url


async def counted(client: WorldClient, kind: str) -> int:
    value: int = (await client.counters())["effects"].get(kind, 0)
    return value


async def happened(client: WorldClient, kind: str) -> bool:
    return await counted(client, kind) > 0


async def in_state(client: WorldClient, state: str) -> bool:
    return (await client.payment_by_key("k")).state == state


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Ask the service until it says so: what another process does, no event here announces."""
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def every_vendor(client: WorldClient) -> None:
    """Call everything once, twice where a key or reference should absorb it."""
    for _ in range(2):
        await client.refund("48211", 4160, key="r")
        await client.charge("PO-2026-0041", 1_420_000, key="c")
        await client.book_shipment("PO-2026-0041", 2, key="s")
        await client.credit_check("buyer-17", 1_420_000, request_id="q")
        await client.next_reference(key="n")
        await client.create_erp_order("PO-2026-0041", 240, 1_420_000)
        await client.create_ticket("cracked base", key="t", order_id="48211")
        await client.put_note("48211", "agent", "looked at / checked")
        await client.desk("cancel_reservation", {"id": "X"}, "done", key="d")
    lock = await client.acquire_lock("budget-7", key="l")
    assert (await client.lock_state(lock["handle"]))["valid"] is True
    await client.release_lock(lock["handle"])
    await client.submit_portal_order("PO-2026-0041", 240, 1_420_000)
    assert await client.search_portal("no such reference") == []
    await client.send_email("c-1709@example.com", "Refund", "Approved.")
    for lookup in (
        client.payment_by_key("r"),
        client.payment_by_key("c"),
        client.shipment_by_key("s"),
        client.erp_by_key("n"),
        client.erp_order("PO-2026-0041"),
        client.ticket_by_key("t"),
        client.desk_by_key("d"),
    ):
        assert (await lookup).state == "succeeded"
    assert (await client.credit_check_by_id("q")).state == "absent"  # it lags
    order = await client.order("48211")
    await client.customer(order["customer_id"])
    await client.stock(order["lines"][0]["sku"])
    await client.policy("refunds")
    await client.fraud("48211")
    await client.supplier("sup-881")
    await client.purchase_request("R-1")
    await client.price("item-240")
    said = await client.chat([{"role": "user", "content": "?"}], turn=1, script={"calls": []})
    assert said["stop_reason"] == "end_turn"


EVERY_EFFECT = {
    "charge": 1,
    "credit_check": 1,
    "desk:cancel_reservation": 1,
    "email": 1,
    "erp_lock": 1,
    "erp_order": 1,
    "erp_reference": 1,
    "erp_release": 1,
    "note": 1,
    "pallet": 2,
    "portal_order": 1,
    "refund": 1,
    "shipment": 1,
    "ticket": 1,
}


def test_every_vendor_answers_over_http_and_counts(url: str) -> None:
    async def act() -> None:
        async with WorldClient(url) as client:
            await client.reset()
            await every_vendor(client)
            counters = await client.counters()
            assert counters["effects"] == EVERY_EFFECT
            assert sum(counters["duplicates"].values()) == 9
            listed = await client.effects("refund")
            assert [(e["key"], e["body"]["pence"]) for e in listed] == [("r", 4160)]

    asyncio.run(act())


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("mode", "acted"),
    [("reset_after", 1), ("silent_after", 1), ("reset_before", 0), ("silent_before", 0)],
)
def test_an_answer_that_gets_lost_raises_what_the_transport_raises(
    url: str, mode: str, acted: int, shared: bool
) -> None:
    async def act() -> None:
        client = WorldClient(url, timeout_s=ANSWER_SECONDS_MAX)
        await client.reset()
        await client.add_fault(mode, route="POST /payments/refunds")
        caller = await client.__aenter__() if shared else client
        try:
            with pytest.raises((TimeoutError, aiohttp.ClientError, ConnectionError)):
                async with asyncio.timeout(PATIENCE_SECONDS if "silent" in mode else None):
                    await caller.refund("48211", 4160, key="k")
        finally:
            await client.__aexit__(None, None, None)
        assert await counted(client, "refund") == acted
        # The vendor sees the connection close a moment after we closed it.
        await until(lambda: in_state(client, "absent" if not acted else "succeeded"))
        await client.refund("48211", 4160, key="k")
        assert await counted(client, "refund") == 1

    asyncio.run(act())


def test_a_call_is_made_once_though_the_connection_was_reset(url: str) -> None:
    """An HTTP library that repeats lost calls by itself would hide them from the engine."""

    async def act() -> None:
        async with WorldClient(url) as client:
            await client.reset()
            await client.add_fault("reset_after", vendor="shop")
            with pytest.raises(aiohttp.ClientError):
                await client.order("48211")
            await client.add_fault("reset_after", vendor="notes")
            with pytest.raises(aiohttp.ClientError):
                await client.put_note("48211", "n", "x")
            assert (await client.counters())["calls"] == {
                "GET /orders/{id}": 1,
                "PUT /notes/{order_id}/{note}": 1,
            }

    asyncio.run(act())


def test_statuses_become_typed_exceptions(url: str) -> None:
    async def act() -> None:
        client = WorldClient(url)
        await client.reset()
        with pytest.raises(CardDeclined):
            await client.refund("48211", 4160, key="k", card="card-declined")
        await client.add_fault("504_after", vendor="email")
        with pytest.raises(WorldError, match="504 gateway_timeout"):
            await client.send_email("a@example.com", "s", "b")
        assert await counted(client, "email") == 1
        with pytest.raises(WorldError, match="no vendor serves"):
            await client.ask("GET", "/no/such/thing")
        with pytest.raises(WorldError, match="no route or vendor"):
            await client.add_fault("slow", vendor="nobody")
        with pytest.raises(WorldError, match="no setting"):
            await client.change(no_such=1)

    asyncio.run(act())


def test_a_slow_vendor_acts_though_its_caller_has_gone_and_a_repeat_meanwhile_is_a_409(
    url: str,
) -> None:
    async def act() -> None:
        async with WorldClient(url) as client:
            await client.reset()
            await client.add_fault("slow", route="/payments/refunds", delay_ms=600)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await client.refund("48211", 4160, key="k")
            with pytest.raises(WorldError, match="409"):
                await client.refund("48211", 4160, key="k")
            assert await counted(client, "refund") == 0
            await until(lambda: in_state(client, "succeeded"))
            assert await counted(client, "refund") == 1

    asyncio.run(act())


def test_a_body_that_is_no_json_object_is_a_400(url: str) -> None:
    async def act() -> None:
        async with aiohttp.ClientSession() as session:
            for body in ("{", "[]", '"x"'):
                async with session.post(f"{url}/email/messages", data=body) as answer:
                    assert answer.status == 400

    asyncio.run(act())


def test_the_ledger_survives_a_sigkill_and_the_service_comes_back_with_it(tmp_path: Path) -> None:
    async def first(url: str) -> Json:
        async with WorldClient(url) as client:
            await every_vendor(client)
            # Acted, not answered: stored all the same. Nothing is asked for after it, as counters
            # are stored before they are told.
            await client.add_fault("silent_after", vendor="email")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await client.send_email("c-1709@example.com", "Refund", "Again.")
            return (await client.payment_by_key("r")).answer

    async def second(url: str, refund: Json) -> None:
        async with WorldClient(url) as client:
            counters = await client.counters()
            assert counters["effects"] == {**EVERY_EFFECT, "email": 2}
            assert (counters["model"]["calls"], sum(counters["duplicates"].values())) == (1, 9)
            assert len(await client.effects()) == len(EVERY_EFFECT) + 1
            assert await client.refund("48211", 4160, key="r") == refund
            assert await counted(client, "refund") == 1

    with service(tmp_path / "ledger.db") as (process, url):
        refund = asyncio.run(first(url))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    with service(tmp_path / "ledger.db") as (_, url):
        asyncio.run(second(url, refund))


def test_sigterm_ends_it_cleanly_though_a_caller_is_kept_waiting(tmp_path: Path) -> None:
    port_file = tmp_path / "port"

    async def wait_in_vain(url: str, process: subprocess.Popen[str]) -> None:
        async with WorldClient(url, timeout_s=ANSWER_SECONDS_MAX) as client:
            await client.add_fault("silent_after", vendor="tickets")
            asked = asyncio.create_task(client.create_ticket("s", key="t"))
            await until(lambda: happened(client, "ticket"))
            process.send_signal(signal.SIGTERM)
            with pytest.raises((aiohttp.ClientError, ConnectionError)):
                await asked

    options = ("--port-file", str(port_file), "--set", "erp_number_first=7")
    with service(tmp_path / "ledger.db", *options) as (process, url):
        assert url.endswith(":" + port_file.read_text())
        asyncio.run(wait_in_vain(url, process))
        assert process.wait(ANSWER_SECONDS_MAX) == 0
    with service(tmp_path / "ledger.db") as (_, url):
        assert asyncio.run(counted(WorldClient(url), "ticket")) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ledger", "{tmp}"], "cannot be used"),
        (["--ledger", "{tmp}/l.db", "--set", "no_such=1"], "no setting 'no_such'"),
        (["--ledger", "{tmp}/l.db", "--port", "1", "--host", "203.0.113.1"], "cannot be served"),
    ],
)
def test_a_service_that_cannot_start_says_why_in_a_sentence(
    tmp_path: Path, options: list[str], words: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "world", *(option.format(tmp=tmp_path) for option in options)],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES)},
        capture_output=True,
        text=True,
        timeout=ANSWER_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_client_without_an_address_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_URL", raising=False)
    with pytest.raises(RuntimeError, match="python -m world"):
        asyncio.run(WorldClient().order("48211"))
    monkeypatch.setenv("WORLD_URL", "http://127.0.0.1:9/")
    assert WorldClient().base_url == "http://127.0.0.1:9"
