"""Who may ask what: every role against every route, tokens, sessions, and what strangers try."""

import asyncio
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import APIRouter

from refold.gateway.app import create_app, create_routes
from refold.gateway.auth import anybody, requires, roles_of, routes_in
from refold.gateway.ended import EndedSessions
from refold.gateway.identity import Caller
from refold.gateway.roles import ADMINISTER, KNOWN, OPERATE, READ, SETTLE, Role
from refold.gateway.sessions import COOKIE, CSRF_HEADER
from refold.gateway.settings import GatewaySettings
from refold.gateway.tokens import TokenFile
from refold_schemas.errors.gateway import GatewayUnsafe, NotAuthenticated, TokensUnusable
from support.gateway_lab import BASE, NAMESPACE, GatewayLab, is_problem, play

DOCUMENT = Path(__file__).parents[2] / "docs" / "gateway.md"
ROUTES: dict[tuple[str, str], frozenset[Role] | None] = {
    ("GET", "/api/v1/runs"): READ,
    ("POST", "/api/v1/runs"): OPERATE,
    ("GET", "/api/v1/runs/{run_id}"): READ,
    ("GET", "/api/v1/runs/{run_id}/boundary"): READ,
    ("GET", "/api/v1/runs/{run_id}/events"): READ,
    ("GET", "/api/v1/runs/{run_id}/history"): READ,
    ("GET", "/api/v1/runs/{run_id}/result"): READ,
    ("GET", "/api/v1/runs/{run_id}/tables"): READ,
    ("GET", "/api/v1/runs/{run_id}/why"): READ,
    ("POST", "/api/v1/runs/{run_id}/cancel"): OPERATE,
    ("POST", "/api/v1/runs/{run_id}/resolve"): SETTLE,
    ("POST", "/api/v1/runs/{run_id}/retry"): OPERATE,
    ("GET", "/api/v1/counts"): READ,
    ("GET", "/api/v1/effects"): READ,
    ("GET", "/api/v1/findings"): READ,
    ("GET", "/api/v1/timers"): READ,
    ("GET", "/api/v1/rejections"): READ,
    ("GET", "/api/v1/tables"): READ,
    ("GET", "/api/v1/commands/rejected"): READ,
    ("POST", "/api/v1/commands/rejected/{partition}/{offset}/republish"): OPERATE,
    ("GET", "/api/v1/partitions"): READ,
    ("GET", "/api/v1/health"): READ,
    ("GET", "/api/v1/health/live"): None,
    ("GET", "/api/v1/health/ready"): None,
    ("GET", "/api/v1/session"): READ,
    ("POST", "/api/v1/session"): None,
    ("DELETE", "/api/v1/session"): KNOWN,
    ("GET", "/errors/{code}"): None,
    ("GET", "/openapi.json"): READ,
}
"""What is meant. A route that is not here, or says otherwise, fails."""
API = ("/api/", "/errors/", "/openapi.json")


def test_every_route_says_who_may_ask_it_and_it_is_what_is_meant(tmp_path: Path) -> None:
    app = create_routes(GatewaySettings(tokens_path=tmp_path / "t.json"))
    found = {
        (method, route.path): roles_of(route)
        for route in routes_in(app)  # the page's own are held against its own table
        for method in route.methods or ()
        if route.path.startswith(API)
    }
    assert found == ROUTES


def test_a_route_that_does_not_say_who_may_ask_it_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def served() -> None: ...

    silent, both, bare = APIRouter(), APIRouter(), APIRouter()
    silent.add_api_route("/silent", served)
    both.add_api_route("/both", served, dependencies=[anybody, requires(READ)])
    bare.add_route("/bare", served)  # type: ignore[arg-type]
    for router in (silent, both, bare):
        monkeypatch.setattr("refold.gateway.app.ROUTERS", (router,))
        with pytest.raises(LookupError, match="does not say who may ask it"):
            create_routes(GatewaySettings())


def test_the_document_has_every_route_with_its_roles() -> None:
    rows = re.findall(r"^\| `([A-Z]+) (/\S+)` \| ([^|]+) \|", DOCUMENT.read_text(), re.MULTILINE)
    written = {(method, path): who.strip() for method, path, who in rows}
    said = {
        KNOWN: "whoever is known",
        READ: "every role",
        OPERATE: "operator",
        SETTLE: "operator, approver",
    }
    meant = {place: "anybody" if roles is None else said[roles] for place, roles in ROUTES.items()}
    assert written == meant


def path_of(route: str) -> str:
    filled = route.replace("{run_id}", "r1").replace("{code}", "R701")
    return filled.replace("{partition}", "0").replace("{offset}", "0")


def test_every_role_on_every_route(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        await lab.start("rest", 3600, "r1")
        for (method, route), allowed in ROUTES.items():
            for role in (None, *Role):
                headers = lab.headers(role) if role else {}
                if route.endswith("/events"):  # it would go on: an id that cannot be is refused
                    headers["Last-Event-ID"] = "x"
                options: dict[str, Any] = {"json": {}} if method == "POST" else {}
                answer = await lab.http.request(method, path_of(route), headers=headers, **options)
                if allowed is None:
                    assert answer.status_code not in (401, 403), (route, role)
                elif role is None:
                    is_problem(answer, 401, "R701")
                    assert answer.headers["www-authenticate"].startswith("Bearer")
                elif role in allowed or allowed == KNOWN:
                    assert answer.status_code not in (401, 403, 500), (route, role, answer.text)
                else:
                    assert "operator" in is_problem(answer, 403, "R702")["detail"]
        assert (await lab.gateway.client.boundary("r1")).status in ("cancelling", "cancelled")

    play(tmp_path, scene)


def test_tokens_that_are_wrong_ended_revoked_or_of_another_namespace(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        right = lab.headers(Role.VIEWER)["Authorization"]
        viewer = frozenset({Role.VIEWER})
        now = time.time()
        past = TokenFile(lab.tokens.path, clock=lambda: now - 100)
        _, ended = past.create("past", viewer, NAMESPACE, valid_s=50)
        _, elsewhere = lab.tokens.create("far", viewer, "other", valid_s=None)
        token, revoked = lab.tokens.create("gone", viewer, NAMESPACE, valid_s=None)
        _, forgotten = lab.tokens.create("never", viewer, NAMESPACE, valid_s=None)
        lab.gateway.tokens._looked_s = float("-inf")
        path = "/api/v1/session"
        assert (await lab.http.get(path, headers={"Authorization": f"Bearer {revoked}"})).is_success
        lab.tokens.revoke(token.token_id)
        lab.tokens.revoke("never", forget=True)
        lab.gateway.tokens._looked_s = float("-inf")  # else within a second
        secret = right.removeprefix("Bearer ")
        for text, said in (
            (f"Bearer {ended}", "has expired"),
            (f"Bearer {elsewhere}", "another namespace"),
            (f"Bearer {revoked}", "revoked"),
            (f"Bearer {forgotten}", "unknown"),
            (f"Bearer {secret[:-1]}", "unknown"),
            (f"Bearer {secret}x", "unknown"),
            (f"Bearer x{secret}", "unknown"),
            (f"Bearer {secret.rpartition('_')[0]}_", "unknown"),
            ("Bearer " + "a" * 5_000, "unknown"),
            ("Bearer refold__", "unknown"),
            ("Bearer a.b.c", "unknown"),
            ("Bearer ", "no bearer token"),
            ("Basic YTpi", "no bearer token"),
            (secret, "no bearer token"),
        ):
            answer = await lab.http.get(path, headers={"Authorization": text})
            body = is_problem(answer, 401, "R701")
            assert said in body["detail"], text
            assert secret not in answer.text
        both = [("Authorization", right), ("Authorization", right)]
        assert (
            "more than one"
            in is_problem(await lab.http.get(path, headers=both), 401, "R701")["detail"]
        )
        assert (await lab.http.get(path, headers={"Authorization": right})).is_success
        for odd in (
            b"Bearer \xff\xfe",
            b"Bearer \xc3\xa9.b.c",
            b"Bearer a.\xed\xa0\x80.c",
            b"\x80",
        ):
            is_problem(await lab.http.get(path, headers=[(b"Authorization", odd)]), 401, "R701")
            cookie = [(b"Cookie", COOKIE.encode() + b"=" + odd.replace(b" ", b"."))]
            is_problem(await lab.http.get(path, headers=cookie), 401, "R701")
        # What is kept lets nobody in.
        kept = lab.tokens.path.read_text()
        assert secret.split("_", 2)[2] not in kept
        assert lab.tokens.path.stat().st_mode & 0o077 == 0

    play(tmp_path, scene)


def test_a_file_of_tokens_that_cannot_be_trusted_lets_nobody_in(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        headers = lab.headers(Role.ADMIN)

        async def refused(said: str) -> None:
            lab.gateway.tokens._looked_s = float("-inf")
            for _ in range(2):  # the second one finds that the file was looked at just now
                answer = await lab.http.get("/api/v1/session", headers=headers)
                assert said in is_problem(answer, 503, "R714")["detail"]

        path = lab.tokens.path
        whole = path.read_text()
        path.chmod(0o604)
        await refused("others on this machine")
        path.chmod(0o600)
        assert (await lab.http.get("/api/v1/session", headers=headers)).is_success
        for broken in ("", "{}", '{"version": 2}', whole.replace('"admin"', '"root"')):
            path.write_text(broken)
            await refused("no file of tokens")
        path.unlink()
        await refused("no such file")
        path.write_text(whole)
        path.chmod(0o600)
        lab.gateway.tokens._looked_s = float("-inf")
        assert (await lab.http.get("/api/v1/session", headers=headers)).is_success

    play(tmp_path, scene)


def test_many_refused_tokens_slow_themselves_down_and_no_good_one(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        right = lab.headers(Role.VIEWER)
        wrong = {"Authorization": "Bearer refold_0_x"}
        codes = []
        for _ in range(5):
            answer = await lab.http.get("/api/v1/session", headers=wrong)
            codes.append(answer.status_code)
        assert codes == [401, 401, 401, 429, 429]
        is_problem(answer, 429, "R709")
        assert int(answer.headers["retry-after"]) >= 1
        # An office, a proxy: others behind the same address have good ones.
        assert (await lab.http.get("/api/v1/session", headers=right)).is_success
        session = await logged_in(lab, Role.VIEWER)
        assert (await lab.http.get("/api/v1/session", headers=session)).is_success
        elsewhere = httpx.ASGITransport(lab.shell, client=("192.0.2.8", 1))
        async with httpx.AsyncClient(transport=elsewhere, base_url=BASE) as other:
            answer = await other.get("/api/v1/session", headers=wrong)
            is_problem(answer, 401, "R701")

    play(tmp_path, scene, failures_per_s=0.001, failures_burst=3)


def test_a_caller_that_asks_too_often_waits_and_others_do_not(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        codes = [(await lab.call("GET", "/api/v1/session", Role.VIEWER)) for _ in range(4)]
        assert [one.status_code for one in codes] == [200, 200, 200, 429]
        body = is_problem(codes[-1], 429, "R709")
        assert "viewer asks more than" in body["detail"]
        assert int(codes[-1].headers["retry-after"]) >= 100
        assert (await lab.call("GET", "/api/v1/session", Role.ADMIN)).is_success

    play(tmp_path, scene, rate_per_s=0.01, rate_burst=3)


# ---- sessions


async def logged_in(lab: GatewayLab, *roles: Role) -> dict[str, str]:
    """The headers of a page that has logged in."""
    secret = lab.headers(*roles)["Authorization"].removeprefix("Bearer ")
    answer = await lab.http.post("/api/v1/session", json={"token": secret})
    assert answer.is_success, answer.text
    set_cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(set_cookie.split("; "))
    assert secret.split("_", 2)[2] not in set_cookie
    cookie = set_cookie.partition(";")[0]
    lab.http.cookies.clear()
    return {"Cookie": cookie, CSRF_HEADER: answer.json()["csrf"]}


def test_a_session_needs_its_csrf_token_for_what_changes_something(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        await lab.start("rest", 3600, "r1")
        whole = await logged_in(lab, Role.OPERATOR)
        other = await logged_in(lab, Role.ADMIN)
        cookie = {"Cookie": whole["Cookie"]}
        assert (await lab.http.get("/api/v1/session", headers=cookie)).json()["who"] == "operator"
        path = "/api/v1/runs/r1/cancel"
        forged = (
            cookie,
            cookie | {CSRF_HEADER: "x"},
            cookie | {CSRF_HEADER: other[CSRF_HEADER]},  # another session's
            whole | {"Origin": "http://evil.test"},
            whole | {"Origin": "null"},
            whole | {"Sec-Fetch-Site": "cross-site"},
            whole | {"Sec-Fetch-Site": "same-site"},
        )
        for headers in forged:
            is_problem(await lab.http.post(path, json={}, headers=headers), 403, "R711")
        assert (await lab.gateway.client.boundary("r1")).status == "waiting"
        right = whole | {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}
        done = await lab.http.post(path, json={}, headers=right)
        assert done.is_success, done.text
        assert (await lab.gateway.client.state("r1")).cancel == ("operator", "")

    play(tmp_path, scene)


def test_a_session_ends_with_its_token_its_time_and_its_roles_change_nothing(
    tmp_path: Path,
) -> None:
    async def scene(lab: GatewayLab) -> None:
        headers = await logged_in(lab, Role.VIEWER)
        is_problem(
            await lab.http.post("/api/v1/runs", json={"run": "echo"}, headers=headers), 403, "R702"
        )
        name, _, value = headers["Cookie"].partition("=")
        assert name == COOKIE
        body, _, signature = value.partition(".")
        for forged in (f"{body}.{'0' * 64}", f"{body}x.{signature}", body, "", "a.b", f"{value}."):
            answer = await lab.http.get("/api/v1/session", headers={"Cookie": f"{name}={forged}"})
            is_problem(answer, 401, "R701")
        lab.tokens.revoke("viewer")
        lab.gateway.tokens._looked_s = float("-inf")
        answer = await lab.http.get("/api/v1/session", headers=headers)
        assert "revoked" in is_problem(answer, 401, "R701")["detail"]

    play(tmp_path, scene)

    async def short(lab: GatewayLab) -> None:
        headers = await logged_in(lab, Role.ADMIN)
        at = time.time()
        lab.gateway.sessions = replace(lab.gateway.sessions, clock=lambda: at + 61)
        answer = await lab.http.get("/api/v1/session", headers=headers)
        assert "session has ended" in is_problem(answer, 401, "R701")["detail"]

    play(tmp_path, short, session_s=60.0)


@pytest.mark.parametrize("by_page", [False, True])
def test_who_logs_out_ends_the_session_for_every_copy_of_its_cookie(
    tmp_path: Path, by_page: bool
) -> None:
    async def scene(lab: GatewayLab) -> None:
        here = await logged_in(lab, Role.VIEWER)
        elsewhere = await logged_in(lab, Role.VIEWER)
        if by_page:
            form = {"csrf": here[CSRF_HEADER]}
            done = await lab.http.post("/logout", data=form, headers={"Cookie": here["Cookie"]})
            assert done.status_code == 303
        else:
            done = await lab.http.delete("/api/v1/session", headers=here)
            assert done.status_code == 204
        lab.http.cookies.clear()
        answer = await lab.http.get("/api/v1/session", headers=here)
        assert "session was ended" in is_problem(answer, 401, "R701")["detail"]
        assert (await lab.http.get("/api/v1/session", headers=elsewhere)).is_success
        assert (await lab.call("GET", "/api/v1/session", Role.VIEWER)).is_success, "its token"
        again = await logged_in(lab, Role.VIEWER)
        assert (await lab.http.get("/api/v1/session", headers=again)).is_success

    play(tmp_path, scene)


@pytest.mark.parametrize("by_page", [False, True])
def test_who_has_no_role_can_log_out(tmp_path: Path, by_page: bool) -> None:
    async def scene(lab: GatewayLab) -> None:
        sessions = lab.gateway.sessions
        lab.headers(Role.VIEWER)  # the file of tokens has the key that cookies are signed with
        cookie, _ = sessions.begin(Caller("ada", frozenset(), "oidc ada"))  # her groups give none
        csrf = sessions.csrf(sessions.read(cookie))
        here = {"Cookie": f"{COOKIE}={cookie}", CSRF_HEADER: csrf}
        is_problem(await lab.http.get("/api/v1/session", headers=here), 403, "R702")
        if by_page:
            done = await lab.http.post("/logout", data={"csrf": csrf}, headers=here)
            assert done.status_code == 303
        else:
            done = await lab.http.delete("/api/v1/session", headers=here)
            assert done.status_code == 204
        answer = await lab.http.get("/api/v1/session", headers=here)
        assert "session was ended" in is_problem(answer, 401, "R701")["detail"]

    play(tmp_path, scene)


def test_ended_sessions_have_a_limit_that_lets_none_of_them_in_again() -> None:
    ended = EndedSessions(of_caller_max=3, callers_max=2)
    for number in range(4):
        ended.add("ada", f"s{number}", now=100.0 + number, until=200.0 + number)
    assert all(ended.has("ada", f"s{number}", begun=50.0) for number in range(4))
    assert ended.has("ada", "another", begun=103.0), "one too many: all that she had"
    assert not ended.has("ada", "new", begun=103.1)
    assert not ended.has("eve", "s", begun=50.0)
    ended.add("bob", "b", now=203.0, until=303.0)
    assert not ended.has("ada", "s3", begun=103.5), "over by itself: it is not kept for nothing"
    for name in ("cy", "di"):
        ended.add(name, "x", now=210.0, until=310.0)
    assert all(ended.has(name, "x", begun=209.0) for name in ("bob", "cy", "di", "eve"))
    assert not ended.has("eve", "x", begun=210.1)


def test_another_site_can_log_nobody_in_and_guessing_is_slowed_down(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        token = lab.headers(Role.VIEWER)["Authorization"].removeprefix("Bearer ")
        path, body = "/api/v1/session", {"token": token}
        for headers in (
            {"Origin": "http://evil.test"},
            {"Origin": "http://["},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            is_problem(await lab.http.post(path, json=body, headers=headers), 403, "R711")
        codes = [
            (await lab.http.post(path, json={"token": f"refold_x_{n}"})).status_code
            for n in range(4)
        ]
        assert codes == [401, 401, 429, 429]

    play(tmp_path, scene, failures_per_s=0.001, failures_burst=2)


# ---- without authentication


def test_insecure_is_for_this_machine_and_its_own_names(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "192.0.2.1", "::", "gateway.test"):
        with pytest.raises(GatewayUnsafe):
            create_app(GatewaySettings(host=host, insecure=True))

    async def scene(lab: GatewayLab) -> None:
        async def status(method: str, headers: dict[str, str], base: str) -> int:
            path = f"{base}/api/v1/runs" if method == "POST" else f"{base}/api/v1/session"
            body = {"run": "echo", "input": 1, "run_id": "r1"}
            options: dict[str, Any] = {"json": body} if method == "POST" else {}
            return (await lab.http.request(method, path, headers=headers, **options)).status_code

        for base in ("http://localhost:8080", "http://127.0.0.1:8080", "http://[::1]:8080"):
            assert await status("GET", {}, base) == 200
        # A site whose own name leads here (DNS rebinding), or that sends a form here.
        assert await status("GET", {}, "http://evil.test:8080") == 421
        assert await status("POST", {"Origin": "http://evil.test"}, "http://localhost:8080") == 403
        assert (
            await status("POST", {"Sec-Fetch-Site": "cross-site"}, "http://localhost:8080") == 403
        )
        assert await status("POST", {}, "http://localhost:8080") == 201
        assert (await lab.gateway.client.state("r1")).run == "echo"

    play(tmp_path, scene, insecure=True)


def test_a_gateway_with_names_answers_to_no_other(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        headers = lab.headers(Role.VIEWER)
        assert (await lab.http.get("/api/v1/session", headers=headers)).is_success
        other = await lab.http.get("http://other.test/api/v1/session", headers=headers)
        is_problem(other, 421, "R720")

    play(tmp_path, scene, trusted_hosts=("gateway.test",))


def test_a_hundred_writers_of_tokens_lose_none(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "tokens.json"

    async def main() -> None:
        def one(number: int) -> str:
            _, secret = TokenFile(path).create(f"t{number}", ADMINISTER, "ns", valid_s=None)
            return secret

        secrets = await asyncio.gather(*(asyncio.to_thread(one, n) for n in range(40)))
        tokens = TokenFile(path)
        assert [tokens.verify(one, "ns").who for one in secrets] == [f"t{n}" for n in range(40)]

    asyncio.run(main())
    assert sorted(p.name for p in path.parent.iterdir()) == ["tokens.json", "tokens.json.lock"]
    with pytest.raises(NotAuthenticated):
        TokenFile(path).verify("refold_a_b", "ns")
    body = json.loads(path.read_text())
    assert {"token", "secret"} & set(body["tokens"][0]) == set()
    with pytest.raises(TokensUnusable):
        TokenFile(tmp_path / "none.json").verify("refold_a_b", "ns")
