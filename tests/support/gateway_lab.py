"""A gateway in one process with a real worker on a log in memory: requests go through ASGI."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from refold import App, Effect, NotDone, Policy, RunContext
from refold.client import Client
from refold.gateway.app import create_app
from refold.gateway.roles import Role
from refold.gateway.settings import GatewaySettings
from refold.gateway.shell import Shell
from refold.gateway.state import Gateway
from refold.gateway.tokens import TokenFile
from refold.log.memory import MemoryBroker, MemoryLog
from refold.settings.signing import Keyring, Signer
from refold.worker import Worker

NAMESPACE = "shop"
BASE = "http://gateway.test"
app = App("shop")


@app.step(policy=Policy.ESCALATE, amounts=("pence",))
async def charge(fx: Effect, pence: int) -> str:
    if pence == 0:
        raise NotDone("nothing to charge")
    raise ConnectionError("no answer")


@app.run("buy")
async def buy(ctx: RunContext, pence: int) -> str:
    """In doubt, failed where nothing is to be paid."""
    return await ctx.step(charge, pence)


@app.run("echo")
async def echo(ctx: RunContext, given: Any) -> Any:
    return given


@app.step(policy=Policy.RE_EXECUTABLE)
async def page(number: int, size: int) -> str:
    return f"{number:04}" + "x" * size


@app.run("pages")
async def pages(ctx: RunContext, given: list[int]) -> int:
    """Many events, each as large as is asked."""
    count, size = given
    for number in range(count):
        await ctx.step(page, number, size)
    return count


@app.run("rest")
async def rest(ctx: RunContext, seconds: float) -> None:
    await ctx.sleep(timedelta(seconds=seconds))


@dataclass
class GatewayLab:
    """A gateway that serves: `http` sends as nobody, `call` with a token of its roles."""

    shell: Shell
    inner: FastAPI
    gateway: Gateway
    http: httpx.AsyncClient
    tokens: TokenFile
    log: MemoryLog
    secrets: dict[str, str]

    def headers(self, *roles: Role, name: str = "") -> dict[str, str]:
        """The header of a caller with these roles, made at first use."""
        who = name or "-".join(roles)
        if who not in self.secrets:
            _, secret = self.tokens.create(who, frozenset(roles), NAMESPACE, valid_s=3600)
            self.secrets[who] = secret
        return {"Authorization": f"Bearer {self.secrets[who]}"}

    async def call(self, method: str, path: str, *roles: Role, **options: Any) -> httpx.Response:
        """One request with a token of these roles (none: admin's)."""
        headers = self.headers(*(roles or (Role.ADMIN,))) | options.pop("headers", {})
        return await self.http.request(method, path, headers=headers, **options)

    async def start(self, run: str, given: Any, run_id: str) -> None:
        """Start a run, and wait until it stands."""
        body = {"run": run, "input": given, "run_id": run_id}
        wait = "false" if run == "rest" else "true"
        answer = await self.call("POST", f"/api/v1/runs?wait={wait}", json=body)
        assert answer.status_code == 201, answer.text


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    worker: bool = True,
    keyring: Keyring | None = None,
    signer: Signer | None = None,
    client: tuple[str, int] = ("192.0.2.7", 50_000),
    **settings: Any,
) -> AsyncIterator[GatewayLab]:
    """A lab; `settings` are fields of GatewaySettings, `client` the address of who sends."""
    broker = MemoryBroker(NAMESPACE)
    log = MemoryLog(f"memory://{NAMESPACE}", broker=broker, name="worker")
    await log.open(create=True)
    hosting = Worker(app, log, watch=False, keyring=keyring)
    task = asyncio.create_task(hosting.run()) if worker else None
    seen = MemoryLog(f"memory://{NAMESPACE}", broker=broker, name="gateway")
    await seen.open(create=False)
    path = folder / "tokens.json"
    wanted = GatewaySettings(tokens_path=path)
    rates = {"rate_per_s": 10_000.0, "rate_burst": 10_000, "failures_burst": 10_000}
    shell = create_app(
        replace(wanted, **(rates | settings)), lambda: Client(seen, by="gateway", signer=signer)
    )
    inner = shell.app
    assert isinstance(inner, FastAPI)
    try:
        async with inner.router.lifespan_context(inner):
            transport = httpx.ASGITransport(shell, client=client)
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as http:
                gateway = inner.state.gateway
                assert isinstance(gateway, Gateway)
                lab = GatewayLab(shell, inner, gateway, http, TokenFile(path), seen, {})
                yield lab
    finally:
        if task is not None:
            hosting.stop()
            await task
        await seen.close()
        await log.close()


def play(folder: Path, scene: Callable[[GatewayLab], Awaitable[None]], **options: Any) -> None:
    """Play a scene in a lab."""

    async def main() -> None:
        async with serving(folder, **options) as lab:
            await scene(lab)

    asyncio.run(main())


def is_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem details of an answer, which has all that they promise."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = answer.json()
    assert body["code"] == code, body
    assert body["type"] == f"/errors/{code}"
    assert body["status"] == status
    assert {"title", "detail", "instance", "kept", "next"} <= set(body)
    assert body["detail"]
    assert body["instance"] == f"urn:request:{answer.headers['x-request-id']}"
    return body
