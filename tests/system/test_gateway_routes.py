"""What the gateway takes and answers: commands, idempotency, errors, hostile input, limits."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest

from refold.client import Client, RunHandle
from refold.gateway.paths import routed, unescaped
from refold.gateway.roles import Role
from refold.gateway.routes.documents import pages_folder
from refold.log import Topic
from refold.log.memory import MemoryLog
from refold.log.port import Entry
from refold_schemas.codec import Codec
from refold_schemas.commands import ResolveStep
from refold_schemas.errors.cli import SignatureRefused
from refold_schemas.errors.log import LogUnavailable
from refold_schemas.events import (
    CommandRejected,
    RunCancelRequested,
    RunResumed,
    RunStarted,
    StepResolved,
)
from refold_schemas.registry import FileRegistry
from refold_schemas.values import decode_value, encode_value
from support.gateway_lab import GatewayLab, is_problem, play
from support.keys import keys_of

RUNS = "/api/v1/runs"
HOSTILE = (
    "a/b",
    "a%2Fb",
    "..",
    ".",
    "-",
    "../../etc/passwd",
    "a/boundary",
    "?x=1#y",
    "<script>alert(1)</script>",
    "'; drop table runs; --",
    "Müller 🧾 ‮evil",
    "%00",
    "{run_id}",
    "+ +",
    "ж" * 200,
    "//",
    " ",
)


async def events_of(lab: GatewayLab, run_id: str, kind: type) -> list[Any]:
    found = [one.event async for one in lab.gateway.client.history(run_id)]
    return [event for event in found if isinstance(event, kind)]


def test_a_run_from_start_to_a_persons_word(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        body = {"run": "buy", "input": 5, "run_id": "r1"}
        started = await lab.call("POST", f"{RUNS}?wait=true", Role.OPERATOR, json=body)
        assert started.status_code == 201
        assert started.json()["status"] == "in_doubt"
        again = await lab.call("POST", RUNS, Role.OPERATOR, json=body)
        assert (again.status_code, again.json()["existed"]) == (200, True)
        other = await lab.call("POST", RUNS, json=body | {"input": 6})
        is_problem(other, 409, "R505")

        seen = (await lab.call("GET", f"{RUNS}/r1/boundary", Role.VIEWER)).json()
        assert [one["slot"] for one in seen["in_doubt"]] == ["charge#1"]
        state = (await lab.call("GET", f"{RUNS}/r1", Role.VIEWER)).json()
        assert state["slots"][0]["arguments"] == {"pence": 5}
        assert state["slots"][0]["attempts"][0]["status"] == "in_doubt"
        why = (await lab.call("GET", f"{RUNS}/r1/why", Role.VIEWER)).json()
        assert "a person must say" in why["text"]
        assert any("--happened" in one for one in why["commands"])

        word = {"slot": "charge#1", "happened": True, "result": "c-1", "attempt": 1, "why": "bank"}
        early = await lab.call("POST", f"{RUNS}/r1/resolve", json=word | {"attempt": 2})
        is_problem(early, 409, "R504")
        done = await lab.call("POST", f"{RUNS}/r1/resolve", Role.APPROVER, json=word)
        assert done.json()["status"] == "completed"
        (resolved,) = await events_of(lab, "r1", StepResolved)
        assert (resolved.by, resolved.why, resolved.verdict) == ("approver", "bank", "done")
        is_problem(await lab.call("POST", f"{RUNS}/r1/resolve", json=word), 409, "R508")
        result = (await lab.call("GET", f"{RUNS}/r1/result?within_s=5", Role.VIEWER)).json()
        assert (result["status"], result["result"]) == ("completed", "c-1")

        await lab.start("buy", 0, "r2")
        result = (await lab.call("GET", f"{RUNS}/r2/result")).json()
        assert (result["status"], result["error"]["code"]) == ("failed", "R501")
        retried = await lab.call("POST", f"{RUNS}/r2/retry", Role.OPERATOR, json={"why": "paid"})
        assert retried.is_success
        (resumed,) = await events_of(lab, "r2", RunResumed)
        assert (resumed.by, resumed.why) == ("operator", "paid")
        is_problem(await lab.call("POST", f"{RUNS}/none/retry", json={}), 404, "R503")
        for path in ("", "/boundary", "/why", "/history", "/result", "/events"):
            is_problem(await lab.call("GET", f"{RUNS}/nobody{path}"), 404, "R503")

    play(tmp_path, scene)


def test_a_history_in_pages_is_the_whole_history(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        await lab.start("buy", 5, "r1")
        whole = (await lab.call("GET", f"{RUNS}/r1/history")).json()
        assert whole["next"] is None
        assert [one["event"] for one in whole["records"]][:4] == [
            "RunStarted",
            "AmountsDeclared",
            "StepIntended",
            "StepInDoubt",
        ]
        found: list[Any] = []
        after = -1
        while True:
            page = await lab.call("GET", f"{RUNS}/r1/history?limit=1&after={after}")
            found += page.json()["records"]
            after = page.json()["next"]
            if after is None:
                break
        assert found == whole["records"]
        elsewhere = await lab.call("GET", f"{RUNS}/r1/history?elsewhere=true&claims=false")
        assert elsewhere.json()["records"] == whole["records"]

    play(tmp_path, scene)


def test_a_repeat_under_the_same_key_is_applied_once(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        async def send(path: str, key: str, body: Any) -> httpx.Response:
            return await lab.call("POST", path, json=body, headers={"Idempotency-Key": key})

        first = await send(RUNS, "k-1", {"run": "buy", "input": 5})
        again = await send(RUNS, "k-1", {"run": "buy", "input": 5})
        assert first.json()["run_id"] == again.json()["run_id"]
        assert first.json()["command_id"] == "k-1"
        other = await send(RUNS, "k-1", {"run": "buy", "input": 6})
        is_problem(other, 422, "R549")
        run_id = first.json()["run_id"]
        assert len(await events_of(lab, run_id, RunStarted)) == 1
        await lab.call("GET", f"{RUNS}/{run_id}/result?within_s=5")
        word = {"slot": "charge#1", "happened": True, "result": "c"}
        answers = [await send(f"{RUNS}/{run_id}/resolve", "k-2", word) for _ in range(3)]
        assert [one.status_code for one in answers] == [200, 200, 200]
        assert len(await events_of(lab, run_id, StepResolved)) == 1
        other = await send(
            f"{RUNS}/{run_id}/resolve", "k-2", word | {"happened": False, "result": None}
        )
        is_problem(other, 422, "R549")
        is_problem(await send(f"{RUNS}/{run_id}/cancel", "k-2", {}), 422, "R549")
        token = lab.headers(Role.OPERATOR)["Authorization"].encode()
        for bad in (b"", b"x" * 201, "ü".encode(), b"a\tb"):
            headers = [(b"Authorization", token), (b"Idempotency-Key", bad)]
            answer = await lab.http.post(RUNS, json={"run": "echo"}, headers=headers)
            is_problem(answer, 422, "R703")

    play(tmp_path, scene)


def test_who_asks_is_who_was_verified_whatever_a_client_says(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        body = {"run": "buy", "input": 5, "run_id": "r1", "by": "the boss"}
        is_problem(await lab.call("POST", RUNS, json=body), 422, "R703")
        del body["by"]
        ada = lab.headers(Role.OPERATOR, name="ada")
        headers = ada | {"X-Forwarded-User": "the boss", "By": "the boss"}
        await lab.http.post(f"{RUNS}?by=the+boss&wait=true", json=body, headers=headers)
        await lab.http.post(f"{RUNS}/r1/cancel?by=the+boss", json={"why": "x"}, headers=headers)
        (started,) = await events_of(lab, "r1", RunStarted)
        (asked,) = await events_of(lab, "r1", RunCancelRequested)
        assert (started.started_by, asked.by) == ("ada", "ada")

    play(tmp_path, scene)


def test_without_a_worker_a_command_stands_in_the_log(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        body = {"run": "echo", "input": 1, "run_id": "r1"}
        answer = await lab.call(
            "POST", f"{RUNS}?within_s=0", json=body, headers={"Idempotency-Key": "k"}
        )
        assert answer.status_code == 202
        said = answer.json()
        assert (said["decided"], said["command_id"], said["run_id"]) == (False, "k", "r1")
        assert "see that a worker runs" in said["next"]
        assert await lab.log.bounds(Topic.COMMANDS, 0) == (0, 1)
        health = (await lab.call("GET", "/api/v1/health")).json()
        assert not health["ok"]
        assert health["problems"] == ["no live worker owns partition 0"]
        (partition,) = (await lab.call("GET", "/api/v1/partitions")).json()["partitions"]
        assert (partition["lag"], partition["owner_lives"]) == (1, False)

    play(tmp_path, scene, worker=False)


def test_what_the_gateway_sends_is_signed_where_it_has_a_key(tmp_path: Path) -> None:
    keyring, signers = keys_of(tmp_path, door=("hmac-sha256", "*"))

    async def scene(lab: GatewayLab) -> None:
        await lab.start("buy", 5, "r1")
        word = {"slot": "charge#1", "happened": True, "result": "c"}
        answer = await lab.call("POST", f"{RUNS}/r1/resolve", Role.APPROVER, json=word)
        if lab.gateway.client.signer is None:
            assert "unsigned" in is_problem(answer, 403, "R547")["detail"]
        else:
            assert answer.is_success, answer.text
            (resolved,) = await events_of(lab, "r1", StepResolved)
            assert resolved.by == "approver"

    play(tmp_path, scene, keyring=keyring, signer=signers["door"])
    play(tmp_path, scene, keyring=keyring)


@pytest.mark.parametrize("place", ["page", "api"])
def test_whoever_publishes_a_forged_word_again_is_recorded_as_its_decider(
    tmp_path: Path, place: str
) -> None:
    """The gateway's key says that it has verified who speaks: never who an unsigned one names."""
    keyring, signers = keys_of(tmp_path, door=("hmac-sha256", "*"))
    forged = ResolveStep("c", "r1", "charge#1", None, True, encode_value("c"), "the boss", "")

    async def scene(lab: GatewayLab) -> None:
        await lab.start("buy", 5, "r1")
        handle = lab.gateway.client.handle("r1")
        _, end = await lab.log.bounds(Topic.EVENTS, 0)
        value = Codec(FileRegistry()).encode(forged)
        ack = await lab.log.append(Topic.COMMANDS, 0, [Entry(b"r1", value)])
        assert await handle.changed(end, within=timedelta(seconds=10))
        (rejected,) = await events_of(lab, "r1", CommandRejected)
        assert rejected.reason == "unsigned"
        if place == "page":
            form = {"partition": "0", "offset": str(ack.offset)}
            await lab.call("POST", "/rejections/republish", Role.OPERATOR, data=form)
        else:
            path = f"/api/v1/commands/rejected/0/{ack.offset}/republish"
            await lab.call("POST", path, Role.OPERATOR)
        await handle.wait(lambda seen: seen.status == "completed", within=timedelta(seconds=10))
        (resolved,) = await events_of(lab, "r1", StepResolved)
        assert resolved.by == "operator"

    play(tmp_path, scene, keyring=keyring, signer=signers["door"])


def test_a_rejected_command_is_listed_and_published_again_by_the_caller(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        await lab.log.append(Topic.COMMANDS, 0, [Entry(b"x", b"junk")])
        await lab.start("buy", 5, "r1")
        word = {"slot": "nope#1", "happened": True, "result": "c"}
        await lab.call("POST", f"{RUNS}/r1/resolve", json=word)
        listed = (await lab.call("GET", "/api/v1/commands/rejected", Role.VIEWER)).json()
        assert [one["reason"] for one in listed["rejected"]] == ["not_in_doubt", "undecodable"]
        one = await lab.call("GET", "/api/v1/commands/rejected?reason=undecodable&limit=1")
        assert one.json()["total"] == 1
        is_problem(await lab.call("GET", "/api/v1/commands/rejected?reason=x"), 422, "R703")
        for offset, status, code in ((0, 409, "R528"), (1, 404, "R529"), (99, 404, "R529")):
            path = f"/api/v1/commands/rejected/0/{offset}/republish"
            is_problem(await lab.call("POST", path), status, code)
        is_problem(await lab.call("POST", "/api/v1/commands/rejected/7/0/republish"), 422, "R518")
        hopeless = listed["rejected"][0]["offset"]
        path = f"/api/v1/commands/rejected/0/{hopeless}/republish"
        is_problem(await lab.call("POST", path), 409, "R528")

    play(tmp_path, scene)


def test_the_page_publishes_again_under_the_name_of_who_asks_for_it(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        body = {"run": "nobody-has-it", "input": 1, "run_id": "r1"}
        is_problem(await lab.call("POST", RUNS, json=body), 422, "R506")
        (listed,) = (await lab.call("GET", "/api/v1/commands/rejected")).json()["rejected"]
        form = {"partition": str(listed["partition"]), "offset": str(listed["offset"])}
        again = await lab.call("POST", "/rejections/republish", Role.OPERATOR, data=form)
        assert again.headers["location"] == "/rejections?said=republished"
        sent = await lab.log.read(Topic.COMMANDS, 0, 0, size_max=1 << 20)
        decoded = [lab.gateway.client.codec.decode(one.value or b"") for one in sent]
        assert [getattr(one, "by", None) for one in decoded] == ["admin", "operator"]
        assert lab.gateway.client.sent == {"StartRun": 2}

    play(tmp_path, scene)


def test_whoever_publishes_again_speaks_for_it_over_every_way(tmp_path: Path) -> None:
    """An unsigned word in the name of another must not come back signed in that name."""
    keyring, signers = keys_of(tmp_path, door=("hmac-sha256", "*"))
    form = {"Content-Type": "application/x-www-form-urlencoded"}

    async def scene(lab: GatewayLab) -> None:
        secret = lab.headers(Role.OPERATOR)["Authorization"].removeprefix("Bearer ")
        for way in ("api", "page"):
            await lab.start("buy", 5, way)
            async with Client(lab.log, by="the-chief") as forger:
                with pytest.raises(SignatureRefused):
                    await forger.resolve(
                        way, "charge#1", happened=True, result="c", within=timedelta(seconds=10)
                    )
            (refused,) = (await lab.call("GET", f"/api/v1/commands/rejected?run_id={way}")).json()[
                "rejected"
            ]
            place = {"partition": str(refused["partition"]), "offset": str(refused["offset"])}
            if way == "api":
                path = "/api/v1/commands/rejected/{partition}/{offset}/republish".format_map(place)
                answer = await lab.call("POST", path, Role.OPERATOR)
                assert answer.status_code == 202, answer.text
            else:
                begun = await lab.http.post("/api/v1/session", json={"token": secret})
                place["csrf"] = begun.json()["csrf"]
                sent = urlencode(place)
                answer = await lab.http.post("/rejections/republish", content=sent, headers=form)
                assert answer.status_code == 303, answer.text
            handle = lab.gateway.client.handle(way)
            await handle.wait(lambda seen: seen.status == "completed", within=timedelta(seconds=10))
            (resolved,) = await events_of(lab, way, StepResolved)
            assert resolved.by == "operator", way

    play(tmp_path, scene, keyring=keyring, signer=signers["door"])


def test_no_path_is_answered_with_another_address(tmp_path: Path) -> None:
    """A slash too many was led to whatever host the client named, with its token, over http."""

    async def scene(lab: GatewayLab) -> None:
        for path in (f"{RUNS}/", f"{RUNS}/r1/cancel/", "/runs/", "/login/", "/openapi.json/"):
            for method in ("GET", "POST"):
                answer = await lab.call(method, path, headers={"Host": "evil.test"})
                assert answer.status_code in (403, 404, 405), (method, path, answer.status_code)
                assert "location" not in answer.headers

    play(tmp_path, scene)


def test_forms_have_the_limits_of_the_api_and_their_own_answer(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        await lab.start("buy", 5, "r1")
        secret = lab.headers(Role.OPERATOR)["Authorization"].removeprefix("Bearer ")
        csrf = (await lab.http.post("/api/v1/session", json={"token": secret})).json()["csrf"]

        async def refused(path: str, code: str, **fields: str) -> None:
            sent = urlencode({"csrf": csrf, **fields})
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            answer = await lab.http.post(path, content=sent, headers=form)
            assert answer.status_code < 500, (fields, answer.text)
            assert f"({code})" in answer.text, (fields, answer.text)

        word = {"id": "r1", "slot": "charge#1", "happened": "no"}
        for attempt in ("9" * 5_000, "9" * 12, "-1", "first", "\u0661"):
            # One that cannot be read must not count as none: that would drop what it guards.
            await refused("/run/resolve", "R703", **word, attempt=attempt)
        for command_id in ("x" * 5_000, "\x1b[2J", "ü"):
            await refused("/run/resolve", "R703", **word, command_id=command_id)
            await refused("/run/cancel", "R703", id="r1", command_id=command_id)
            await refused("/run/retry", "R703", id="r1", command_id=command_id)
        # There are no tables here: why it was not published is told all the same.
        await refused("/rejections/republish", "R518", partition="7", offset="1")
        await refused("/rejections/republish", "R529", partition="0", offset="0")
        await refused("/rejections/republish", "R703", partition="9" * 18, offset="0")
        assert (await lab.gateway.client.boundary("r1")).status == "in_doubt"

    play(tmp_path, scene)


def test_the_time_to_wait_is_for_the_decision_and_the_end_together(tmp_path: Path) -> None:
    """Each had all of it: the request's own deadline came first, and said that nothing is known."""

    async def scene(lab: GatewayLab) -> None:
        start = lab.gateway.client.start

        async def slow(*given: Any, **how: Any) -> RunHandle:
            handle = await start(*given, **how)
            await asyncio.sleep(0.9)
            return handle

        lab.gateway.client.start = slow  # type: ignore[method-assign]
        body = {"run": "rest", "input": 60, "run_id": "r1"}
        answer = await lab.call("POST", f"{RUNS}?wait=true&within_s=1", json=body)
        assert (answer.status_code, answer.json()["status"]) == (201, "waiting"), answer.text

    play(tmp_path, scene, deadline_s=0.5)


def test_two_who_have_the_same_form_open_do_not_speak_for_each_other(tmp_path: Path) -> None:
    """The second was told that its word is recorded, where the first one's is."""

    async def scene(lab: GatewayLab) -> None:
        await lab.start("buy", 5, "r1")
        word = {"id": "r1", "slot": "charge#1", "happened": "yes", "command_id": "of-the-form"}

        async def say(who: str, result: str) -> int:
            token = lab.headers(Role.APPROVER, name=who)["Authorization"].removeprefix("Bearer ")
            lab.http.cookies.clear()
            begun = await lab.http.post("/api/v1/session", json={"token": token})
            sent = urlencode({**word, "csrf": begun.json()["csrf"], "result": result})
            form = {"Content-Type": "application/x-www-form-urlencoded"}
            return (await lab.http.post("/run/resolve", content=sent, headers=form)).status_code

        assert [await say("ada", '"paid"') for _ in range(2)] == [303, 303], "a form sent twice"
        assert await say("ada", '"paid twice"') == 409
        assert await say("bob", '"paid"') == 409
        (resolved,) = await events_of(lab, "r1", StepResolved)
        assert (resolved.by, decode_value(resolved.result)) == ("ada", "paid")

    play(tmp_path, scene)


def test_every_run_id_has_an_address_and_nothing_of_it_leaves_the_segment(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        for run_id in HOSTILE:
            body = {"run": "echo", "input": {"<b>": run_id}, "run_id": run_id}
            assert (await lab.call("POST", f"{RUNS}?wait=true", json=body)).status_code == 201
            # As a client sends it that does not tidy paths up.
            raw = f"{RUNS}/{quote(run_id, safe='')}/boundary".replace("/..", "/%2E%2E")
            answer = await raw_get(lab, raw.replace("/./", "/%2E/").encode())
            assert answer.json()["run_id"] == run_id, answer.text
            named = await lab.call("GET", f"{RUNS}/-/boundary", params={"run_id": run_id})
            assert named.json()["run_id"] == run_id
            result = (await lab.call("GET", f"{RUNS}/-/result", params={"run_id": run_id})).json()
            assert result["result"] == {"<b>": run_id}
            assert named.headers["content-type"] == "application/json"
        for bad in ("", "x" * 201, "a\x00b", "a\nb", "\x7f"):
            answer = await lab.call("GET", f"{RUNS}/-/boundary", params={"run_id": bad})
            assert is_problem(answer, 422, answer.json()["code"])["code"] in ("R103", "R703")
            body = {"run": "echo", "run_id": bad}
            answer = await lab.call("POST", RUNS, json=body)
            assert answer.json()["code"] in ("R103", "R703"), answer.text
        is_problem(await raw_get(lab, b"/api/v1/runs/%ff%fe/boundary"), 422, "R703")

    play(tmp_path, scene)


async def raw_get(lab: GatewayLab, path: bytes) -> httpx.Response:
    """A GET whose path nobody tidies up."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    token = lab.headers(Role.VIEWER)["Authorization"].encode()
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "",
        "raw_path": path,
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"gateway.test"), (b"authorization", token)],
        "client": ("192.0.2.7", 1),
        "server": ("gateway.test", 80),
    }
    await lab.shell(scope, receive, send)
    body = b"".join(one.get("body", b"") for one in sent[1:])
    return httpx.Response(sent[0]["status"], headers=sent[0]["headers"], content=body)


@pytest.mark.parametrize("run_id", HOSTILE)
def test_a_path_keeps_its_segments(run_id: str) -> None:
    path = routed(f"/api/{quote(run_id, safe='')}/x".encode())
    assert path.count("/") == 3
    assert unescaped(path.split("/")[2]) == run_id


VALUES = (
    b'{"run": "echo", "run_id": "v", "input": NaN}',
    b'{"run": "echo", "run_id": "v", "input": 1e999}',
    b'{"run": "echo", "run_id": "v", "input": "\\ud800"}',
    b'{"run": "\\ud800", "run_id": "v"}',
    b'{"run": "echo", "run_id": "v", "input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"run": "echo", "run_id": "v", "input": ' + b"9" * 5_000 + b"}",
    b'{"run": "echo", "run_id": "v"',
    b"\xff\xfe",
    b"[]",
    b"null",
    b'"x"',
    b"",
    b'{"run": 1}',
    b'{"run": ""}',
    b'{"run": "echo", "extra": 1}',
)


def test_bad_bodies_are_problems_and_start_nothing(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        headers = {"Content-Type": "application/json"}
        for body in VALUES:
            answer = await lab.call("POST", RUNS, content=body, headers=headers)
            assert answer.status_code in (400, 413, 422), (body[:60], answer.text)
            is_problem(answer, answer.status_code, answer.json()["code"])
        assert await lab.gateway.client.find("v") is None
        # What can be stored comes back equal: U+0000, big numbers, keys that look like tags.
        given = {"nul": "a\x00b", "big": 2**70, "$int": "ff", "emoji": "🧾", "f": 0.1, "n": None}
        await lab.start("echo", given, "v")
        assert (await lab.call("GET", f"{RUNS}/v/result")).json()["result"] == given

    play(tmp_path, scene)


def test_bodies_urls_and_headers_have_their_limits(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        big = {"run": "echo", "input": "x" * 3_000}
        is_problem(await lab.call("POST", RUNS, json=big), 413, "R706")

        async def chunks() -> AsyncIterator[bytes]:  # without a Content-Length
            yield b'{"run": "echo", "input": "'
            for _ in range(10):
                yield b"x" * 500
            yield b'"}'

        headers = {"Content-Type": "application/json"}
        answer = await lab.call("POST", RUNS, content=chunks(), headers=headers)
        is_problem(answer, 413, "R706")
        for length in ("-1", "1e3", "x", "9" * 30):
            answer = await lab.call(
                "POST", RUNS, content=b"{}", headers=headers | {"Content-Length": length}
            )
            is_problem(answer, 413, "R706")
        is_problem(await lab.call("GET", f"{RUNS}/{'x' * 500}/boundary"), 414, "R707")
        is_problem(await lab.call("GET", f"{RUNS}/x/boundary?a={'x' * 500}"), 414, "R707")
        many = {f"x-{n}": "1" for n in range(30)}
        is_problem(await lab.call("GET", RUNS, headers=many), 431, "R708")
        is_problem(await lab.call("GET", RUNS, headers={"x": "y" * 5_000}), 431, "R708")
        # A value that is too large for a run is refused by its worker, with its size.
        assert await lab.log.bounds(Topic.COMMANDS, 0) == (0, 0)

    limits = {"body_size_max": 2_000, "url_size_max": 400, "header_size_max": 4_000}
    play(tmp_path, scene, header_count_max=20, **limits)


def test_a_value_over_the_limit_of_a_run_is_refused_in_words(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        body = {"run": "echo", "input": "x" * 1_100_000, "run_id": "big"}
        answer = await lab.call("POST", RUNS, json=body)
        assert answer.status_code == 413, answer.text
        assert "1,000,000 are allowed" in is_problem(answer, 413, answer.json()["code"])["detail"]

    play(tmp_path, scene)


def test_a_body_that_names_a_key_twice_is_refused_and_starts_nothing(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        headers = {"Content-Type": "application/json"}
        for body in (
            b'{"run": "echo", "run_id": "twice", "input": {"pence": 1, "pence": 100}}',
            b'{"run": "echo", "run_id": "twice", "run_id": "other", "input": 1}',
        ):
            answer = await lab.call("POST", RUNS, content=body, headers=headers)
            said = is_problem(answer, 422, "R703")["detail"]
            assert "stands twice in one object" in said
        broken = await lab.call("POST", RUNS, content=b"{run: 1}", headers=headers)
        is_problem(broken, 422, "R703")
        for run_id in ("twice", "other"):
            is_problem(await lab.call("GET", f"{RUNS}/{run_id}"), 404, "R503")

    play(tmp_path, scene)


def test_every_answer_has_the_headers_that_keep_browsers_honest(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        await lab.start("echo", "<script>alert(1)</script>", "r1")
        answers = [
            await lab.call("GET", f"{RUNS}/r1"),
            await lab.http.get("/nowhere"),
            await lab.http.get("/errors/R701"),
            await lab.http.put(RUNS),
            await lab.call("POST", RUNS, content=b"x" * 3_000_000),
        ]
        assert [one.status_code for one in answers] == [200, 404, 200, 405, 413]
        for answer in answers:
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert "text/html" not in answer.headers["content-type"]
        ids = {one.headers["x-request-id"] for one in answers}
        assert len(ids) == len(answers)
        is_problem(answers[1], 404, "R704")
        assert answers[3].headers["allow"]
        is_problem(answers[3], 405, "R705")

    play(tmp_path, scene)


def test_each_code_has_its_page_over_http(tmp_path: Path) -> None:
    folder = pages_folder()
    assert folder is not None

    async def scene(lab: GatewayLab) -> None:
        for page in sorted(folder.glob("R7*.md")):
            answer = await lab.http.get(f"/errors/{page.stem}")
            assert answer.text == page.read_text()
            assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
        for code in ("R999", "..%2fR701", "README"):
            assert (await lab.http.get(f"/errors/{code}")).status_code in (404, 422)

    play(tmp_path, scene)


def test_without_a_database_lists_say_what_is_missing(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        for path in ("runs", "effects", "findings", "timers", "rejections", "tables", "counts"):
            body = is_problem(await lab.call("GET", f"/api/v1/{path}", Role.VIEWER), 503, "R712")
            assert "REFOLD_DATABASE_URL" in body["detail"] + body["next"]
        await lab.start("echo", 1, "r1")
        answer = await lab.call("GET", f"{RUNS}/r1/boundary?source=tables")
        is_problem(answer, 503, "R712")

    play(tmp_path, scene)


# ---- trouble


def test_a_log_that_is_away_is_a_503_and_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(lab: GatewayLab) -> None:
        await lab.start("echo", 1, "r1")
        assert (await lab.http.get("/api/v1/health/ready")).status_code == 200

        async def away(*_: Any, **__: Any) -> Any:
            raise LogUnavailable("memory://shop", "the broker is on fire")

        with monkeypatch.context() as patch:
            patch.setattr(MemoryLog, "bounds", away)
            patch.setattr(MemoryLog, "read", away)
            answer = await lab.call("GET", f"{RUNS}/r1/boundary")
            is_problem(answer, 503, "R303")
            assert answer.headers["retry-after"]
            ready = is_problem(await lab.http.get("/api/v1/health/ready"), 503, "R710")
            assert "fire" not in json.dumps(ready)  # strangers are not told
            health = (await lab.call("GET", "/api/v1/health")).json()
            assert not health["ok"]
            assert "on fire" in health["log"]
            assert (await lab.http.get("/api/v1/health/live")).status_code == 200
        assert (await lab.call("GET", f"{RUNS}/r1/boundary")).is_success
        lab.gateway.draining.set()
        is_problem(await lab.http.get("/api/v1/health/ready"), 503, "R710")

    play(tmp_path, scene)


def test_a_defect_is_told_to_the_operator_and_not_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scene(lab: GatewayLab) -> None:
        def broken(*_: Any) -> Any:
            raise RuntimeError("the secret is 4711")

        monkeypatch.setattr(lab.gateway.client, "boundary_at", broken)
        answer = await lab.call("GET", f"{RUNS}/r1/boundary")
        body = is_problem(answer, 500, "R719")
        assert "4711" not in answer.text
        assert answer.headers["x-request-id"] in body["detail"]
        told = capsys.readouterr().err
        assert told.count("RuntimeError: the secret is 4711") == 1
        assert answer.headers["x-request-id"] in told

    play(tmp_path, scene)


def test_what_takes_too_long_or_comes_too_much_at_once_is_answered_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(lab: GatewayLab) -> None:
        held, reading = asyncio.Event(), asyncio.Event()

        async def slow(*_: Any) -> Any:
            reading.set()
            await held.wait()

        with monkeypatch.context() as patch:
            patch.setattr(lab.gateway.client, "boundary_at", slow)
            one = asyncio.create_task(lab.call("GET", f"{RUNS}/r1/boundary"))
            await reading.wait()
            two = asyncio.create_task(lab.call("GET", f"{RUNS}/r1/boundary"))
            busy = is_problem(await two, 503, "R710")  # one reads partitions at a time
            assert "read whole partitions" in busy["detail"]
            body = is_problem(await one, 503, "R710")
            assert "it took longer than 1 s" in body["detail"]
            assert "Idempotency-Key" in body["kept"]
            waiting = [asyncio.create_task(lab.call("GET", f"{RUNS}/r1/boundary")) for _ in "123"]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)  # there is no room
            assert lab.shell.under_way == 2
            # Who is only busy must not be restarted for it.
            assert (await lab.http.get("/api/v1/health/live")).status_code == 200
            answers = await asyncio.gather(*waiting)
            reasons = {is_problem(one, 503, "R710")["detail"] for one in answers}
            assert any("requests are being answered" in one for one in reasons)
        assert lab.shell.under_way == 0
        assert lab.gateway.scans._value == 1
        await lab.start("echo", 1, "r1")
        # Waiting for a decision or an end has time of its own.
        await lab.start("rest", 1.5, "r2")
        result = await lab.call("GET", f"{RUNS}/r2/result?within_s=5")
        assert result.json()["status"] == "completed"

    play(tmp_path, scene, deadline_s=1.0, requests_max=2, scans_max=1, acquire_s=0.1)


def test_the_request_that_is_cut_off_gives_everything_back(tmp_path: Path) -> None:
    async def scene(lab: GatewayLab) -> None:
        await lab.start("rest", 3600, "r1")
        for number in range(50):
            path = f"{RUNS}/r1/result?within_s=30" if number % 2 else f"{RUNS}/r1/boundary"
            task = asyncio.create_task(lab.call("GET", path))
            for _ in range(number % 7):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
        assert lab.shell.under_way == 0
        assert lab.gateway.scans._value == lab.gateway.settings.scans_max
        assert (await lab.call("GET", f"{RUNS}/r1/boundary")).is_success

    play(tmp_path, scene)
