"""JWTs of an identity provider: real keys, a key set over HTTP, and what must not be believed."""

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from refold.gateway.oidc import Oidc, check_oidc
from refold.gateway.roles import Role
from refold.gateway.settings import OidcSettings
from refold_schemas.errors.gateway import GatewayUnsafe, NotAuthenticated, ProviderUnavailable
from support.gateway_lab import GatewayLab, is_problem, play

ISSUER, AUDIENCE = "https://id.test/", "refold-shop"
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
STRANGER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
KEYS: dict[str, tuple[str, Any]] = {
    "rsa-1": ("RS256", RSA),
    "ec-1": ("ES256", EC),
    "ed-1": ("EdDSA", ED),
}


def jwk(key_id: str, **more: Any) -> dict[str, Any]:
    algorithm, key = KEYS[key_id]
    made = jwt.get_algorithm_by_name(algorithm)
    return {**json.loads(made.to_jwk(key.public_key())), "kid": key_id, "use": "sig", **more}


class Provider:
    """A small server of a key set: what it answers, and how often it was asked."""

    def __init__(self) -> None:
        self.body = json.dumps({"keys": [jwk(one) for one in KEYS]}).encode()
        self.status, self.asked, self.location = 200, 0, ""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked += 1
                self.send_response(provider.status)
                if provider.location:
                    self.send_header("Location", provider.location)
                self.send_header("Content-Length", str(len(provider.body)))
                self.end_headers()
                self.wfile.write(provider.body)

            def log_message(self, *_: Any) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


def settings_of(provider: Provider, **more: Any) -> OidcSettings:
    given: dict[str, Any] = {"jwks_url": provider.url, "jwks_again_s": 0.0} | more
    return OidcSettings(ISSUER, AUDIENCE, **given)


def claims(**more: Any) -> dict[str, Any]:
    now = int(time.time())
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "iat": now, "exp": now + 300}
    return {name: value for name, value in (said | more).items() if value is not None}


def token(key_id: str = "rsa-1", said: Any = None, **header: Any) -> str:
    algorithm, key = KEYS[key_id]
    said = claims(roles=["viewer"]) if said is None else said
    return jwt.encode(said, key, algorithm=algorithm, headers={"kid": key_id, **header})


def forged(header: dict[str, Any], said: dict[str, Any], signature: bytes = b"") -> str:
    parts = [json.dumps(header).encode(), json.dumps(said).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in parts)


def test_a_jwt_is_a_caller_with_its_roles(tmp_path: Path, provider: Provider) -> None:
    oidc = settings_of(
        provider,
        role_claim="realm.groups",
        role_map=(("ops", "viewer"), ("ops", "operator"), ("audit", "viewer")),
        who_claim="email",
    )

    async def scene(lab: GatewayLab) -> None:
        for key_id in KEYS:
            who = f"{key_id}@shop.test"
            said = claims(email=who, realm={"groups": ["ops", "nobody-knows"]}, roles=["admin"])
            headers = {"Authorization": f"Bearer {token(key_id, said)}"}
            seen = (await lab.http.get("/api/v1/session", headers=headers)).json()
            assert (seen["who"], seen["roles"]) == (who, ["viewer", "operator"])
            body = {"run": "echo", "run_id": key_id}
            answer = await lab.http.post("/api/v1/runs", json=body, headers=headers)
            assert answer.status_code == 201
            state = await lab.gateway.client.state(key_id)
            assert state.run == "echo"
        said = claims(email="x", realm={"groups": ["else"]})
        headers = {"Authorization": f"Bearer {token(said=said)}"}
        body = is_problem(await lab.http.get("/api/v1/session", headers=headers), 403, "R702")
        assert "none" in body["detail"]
        assert provider.asked == 1
        # The gateway's own tokens work beside it, and a page may log in with a JWT.
        assert (await lab.call("GET", "/api/v1/session", Role.VIEWER)).is_success
        said = claims(email="page", realm={"groups": ["audit"]})
        answer = await lab.http.post("/api/v1/session", json={"token": token(said=said)})
        assert answer.json()["who"] == "page"
        assert "Max-Age=3" in answer.headers["set-cookie"]  # it ends with the JWT: 300 s and leeway

    play(tmp_path, scene, oidc=oidc)


def refused(provider: Provider, text: str, **more: Any) -> str:
    async def main() -> str:
        with pytest.raises(NotAuthenticated) as error:
            await Oidc(settings_of(provider, **more)).verify(text)
        return error.value.reason

    return asyncio.run(main())


def test_what_must_not_be_believed(provider: Provider) -> None:
    now = int(time.time())
    right = claims(roles=["admin"])
    public = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    header = {"alg": "HS256", "kid": "rsa-1", "typ": "JWT"}
    confused = forged(header, right)

    signed = confused.rpartition(".")[0].encode()
    confused = forged(header, right, hmac.new(public, signed, hashlib.sha256).digest())
    stolen = jwt.encode(right, STRANGER, algorithm="RS256", headers={"kid": "rsa-1"})
    embedded = jwt.encode(
        right,
        STRANGER,
        algorithm="RS256",
        headers={"kid": "rsa-1", "jwk": jwk("rsa-1"), "jku": "http://evil.test/jwks"},
    )
    whole = token(said=right)
    head, body, signature = whole.split(".")
    other = base64.urlsafe_b64encode(json.dumps(right | {"sub": "eve"}).encode()).decode()
    algorithm, key, hold = "not allowed", "does not hold", "does not hold"
    for text, said in (
        (forged({"alg": "none", "kid": "rsa-1"}, right), algorithm),
        (forged({"alg": "None", "kid": "rsa-1"}, right), algorithm),
        (confused, algorithm),
        (forged({"alg": ["RS256"], "kid": "rsa-1"}, right), algorithm),
        (forged({"alg": "RS256"}, right), "does not name its key"),
        (forged({"alg": "RS256", "kid": 7}, right), "no"),
        (token(said=right, kid="gone"), "is not one of"),
        (stolen, hold),
        (embedded, hold),
        (f"{head}.{other.rstrip('=')}.{signature}", hold),
        (f"{head}.{body}.", key),
        (token("ec-1", right, kid="rsa-1"), hold),
        (token(said=right | {"aud": "other"}), "another audience"),
        (token(said=right | {"aud": [AUDIENCE + "x"]}), "another audience"),
        (token(said=right | {"iss": ISSUER + "x"}), "another issuer"),
        (token(said=right | {"exp": now - 31}), "expired"),
        (token(said=right | {"nbf": now + 60}), "not valid yet"),
        (token(said=claims(exp=None)), "lacks the claim exp"),
        (token(said=claims(aud=None)), "aud"),
        (token(said=claims(iss=None)), "iss"),
        (token(said=claims(sub=None)), "lacks the claim sub"),
        (token(said=right | {"sub": "a\nb"}), "cannot be a name"),
        (token(said=right | {"sub": "x" * 300}), "cannot be a name"),
        ("a.b.c", "no JWT"),
        ("..", "no JWT"),
        ("é.ü.x", "no JWT"),
        (forged({"alg": "RS256", "kid": "rsa-1", "crit": ["exp"]}, right), "no"),
        (whole + "x" * 20_000, "too long"),
    ):
        assert said in refused(provider, text), text[:80]
    # Clocks may differ by the leeway, and an audience may be one of several.
    for good in (right | {"exp": now - 5}, right | {"aud": ["else", AUDIENCE]}):
        caller = asyncio.run(Oidc(settings_of(provider)).verify(token(said=good)))
        assert (caller.who, caller.roles) == ("ada", frozenset({Role.ADMIN}))
    assert algorithm in refused(provider, token("ec-1", right), algorithms=("RS256",))


def test_a_key_set_with_what_is_none_of_ours(provider: Provider) -> None:
    secret = {"kty": "oct", "kid": "oct", "k": base64.urlsafe_b64encode(b"x" * 32).decode()}
    odd: list[Any] = [secret, jwk("ec-1", use="enc"), {"kty": "XX", "kid": "xx"}, {"kty": "RSA"}]
    odd += [{"kid": "no-kty"}, "no key", None, jwk("ed-1", kid="none", alg="none"), jwk("rsa-1")]
    provider.body = json.dumps({"keys": odd}).encode()

    async def main() -> None:
        oidc = Oidc(settings_of(provider))
        assert (await oidc.verify(token())).who == "ada"
        for text in (token("ec-1"), token("ed-1")):
            with pytest.raises(NotAuthenticated):
                await oidc.verify(text)

    asyncio.run(main())


def test_keys_are_kept_asked_for_again_and_used_while_the_provider_is_away(
    provider: Provider,
) -> None:
    now = [0.0]

    async def main() -> None:
        wanted = settings_of(provider, jwks_again_s=10.0, jwks_keep_s=300.0)
        oidc = Oidc(wanted, clock=lambda: now[0])
        provider.status = 500
        with pytest.raises(ProviderUnavailable, match="500"):
            await oidc.verify(token())
        with pytest.raises(ProviderUnavailable):
            await oidc.verify(token())
        assert provider.asked == 1  # not with every request
        provider.status = 200
        provider.body = json.dumps({"keys": [jwk("rsa-1")]}).encode()
        now[0] = 11.0
        await asyncio.gather(*(oidc.verify(token()) for _ in range(20)))
        assert provider.asked == 2
        # A key that was added: asked for at once, but not by each made-up key id.
        provider.body = json.dumps({"keys": [jwk("rsa-1"), jwk("ec-1")]}).encode()
        now[0] = 30.0
        assert (await oidc.verify(token("ec-1"))).who == "ada"
        for number in range(20):
            with pytest.raises(NotAuthenticated):
                await oidc.verify(token(kid=f"x{number}"))
        assert provider.asked == 3
        # Away: the keys are used for an hour. Then nobody can say.
        for broken in (b"", b"{}", b'{"keys": 1}', b'{"keys": {"rsa-1": {}}}', b"x" * (2 << 20)):
            provider.body = broken
            now[0] += 301
            assert (await oidc.verify(token())).who == "ada"
        provider.body = b"[" * 100_000
        now[0] += 301
        assert (await oidc.verify(token())).who == "ada"
        provider.status, provider.location = 302, "http://evil.test/"
        now[0] += 301
        assert (await oidc.verify(token())).who == "ada"
        now[0] += 3_700
        with pytest.raises(ProviderUnavailable):
            await oidc.verify(token())
        # A key that was taken away is believed no longer once the set is read.
        provider.status, provider.location = 200, ""
        provider.body = json.dumps({"keys": [jwk("ec-1")]}).encode()
        now[0] += 11
        with pytest.raises(NotAuthenticated):
            await oidc.verify(token())

    asyncio.run(main())


def test_a_provider_that_breaks_off_or_drips_is_away_and_not_waited_for(
    provider: Provider,
) -> None:
    """A socket's limit is one for each read: a byte now and then would hold everybody up."""

    def server(said: bytes, then: bytes) -> tuple[socket.socket, str]:
        listener = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            while True:
                try:
                    one, _ = listener.accept()
                except OSError:
                    return
                with one, suppress(OSError):
                    one.recv(4_096)
                    one.sendall(said)
                    for _ in range(100 * bool(then)):
                        time.sleep(0.05)
                        one.sendall(then)

        threading.Thread(target=serve, daemon=True).start()
        return listener, f"http://127.0.0.1:{listener.getsockname()[1]}/jwks"

    head = b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n"
    now = [0.0]

    async def main() -> None:
        good = Oidc(settings_of(provider, timeout_s=0.3), clock=lambda: now[0])
        await good.verify(token())
        for said, then in ((b"no http\r\n\r\n", b""), (head + b"{", b""), (head, b" ")):
            listener, url = server(said, then)
            with listener:
                began_s = time.monotonic()
                bad = Oidc(replace(good.settings, jwks_url=url))
                with pytest.raises(ProviderUnavailable):
                    await bad.verify(token())
                good.settings = replace(good.settings, jwks_url=url)
                now[0] += 301
                assert (await good.verify(token())).who == "ada"  # by the keys that were read
                assert time.monotonic() - began_s < 2.5

    asyncio.run(main())


def test_a_provider_that_drips_before_its_body_is_asked_again(provider: Provider) -> None:
    """Its lines before the body do not end: neither the next fetch nor our own end waits."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        one, _ = listener.accept()
        with one, suppress(OSError):
            one.recv(4_096)
            one.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            for _ in range(200):
                time.sleep(0.05)
                one.sendall(b"x")

    async def main() -> None:
        dripping = f"http://127.0.0.1:{listener.getsockname()[1]}/jwks"
        oidc = Oidc(settings_of(provider, jwks_url=dripping, timeout_s=0.3))
        with pytest.raises(ProviderUnavailable):
            await oidc.verify(token())
        oidc.settings = replace(oidc.settings, jwks_url=provider.url)
        await asyncio.sleep(0.5)
        assert (await oidc.verify(token())).who == "ada"

    threading.Thread(target=serve, daemon=True).start()
    with listener:
        asyncio.run(main())


def test_a_provider_that_hangs_holds_up_nobody_whose_key_is_known(provider: Provider) -> None:
    now, asked, answers = [0.0], [0], threading.Event()
    body = json.dumps({"keys": [jwk("rsa-1"), jwk("ec-1")]}).encode()

    class Hanging(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked[0] += 1
            answers.wait(60)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Silent."""

    async def main() -> None:
        provider.body = json.dumps({"keys": [jwk("rsa-1")]}).encode()
        oidc = Oidc(settings_of(provider, timeout_s=60.0), clock=lambda: now[0])
        await oidc.verify(token())
        oidc.settings = replace(oidc.settings, jwks_url=url)
        now[0] += 301
        rotated = asyncio.create_task(oidc.verify(token("ec-1")))
        async with asyncio.timeout(30):
            for _ in range(3):
                callers = await asyncio.gather(*(oidc.verify(token()) for _ in range(20)))
                assert {one.who for one in callers} == {"ada"}
                now[0] += 11  # another fetch would be due, if this one had ended
        assert (asked[0], rotated.done()) == (1, False)
        answers.set()
        assert (await rotated).who == "ada", "its key is new, so it has waited"

    async def never_read() -> None:
        bad = Oidc(settings_of(provider, jwks_url=url, timeout_s=0.2, jwks_again_s=10.0))
        callers = (bad.verify(token()) for _ in range(5))
        said = await asyncio.gather(*callers, return_exceptions=True)
        assert {type(one) for one in said} == {ProviderUnavailable}
        answers.set()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hanging)
    url = f"http://127.0.0.1:{server.server_port}/jwks"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        asyncio.run(main())
        answers.clear()
        asyncio.run(never_read())
        assert asked[0] == 2, "one fetch for all of them"
    finally:
        answers.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_new_key_of_a_provider_that_is_away_is_not_called_unknown(provider: Provider) -> None:
    now = [0.0]

    async def main() -> None:
        provider.body = json.dumps({"keys": [jwk("rsa-1")]}).encode()
        oidc = Oidc(settings_of(provider), clock=lambda: now[0])
        await oidc.verify(token())
        provider.status = 503
        with pytest.raises(ProviderUnavailable, match="503"):
            await oidc.verify(token("ec-1"))
        assert (await oidc.verify(token())).who == "ada"

    asyncio.run(main())


def test_a_key_that_does_not_say_its_algorithm_is_for_what_the_settings_allow(
    provider: Provider,
) -> None:
    said = claims(roles=["viewer"])
    text = jwt.encode(said, RSA, algorithm="PS256", headers={"kid": "rsa-1"})
    assert asyncio.run(Oidc(settings_of(provider)).verify(text)).who == "ada"
    assert "not allowed" in refused(provider, text, algorithms=("RS256",))
    provider.body = json.dumps({"keys": [jwk("rsa-1", alg="RS256")]}).encode()
    assert "another algorithm" in refused(provider, text)
    public = RSA.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for key_id in ("rsa-1", "ec-1", "ed-1"):
        for algorithm in ("ES256", "EdDSA", "PS256", "RS256"):
            header = {"alg": algorithm, "kid": key_id}
            signed = forged(header, said).rpartition(".")[0].encode()
            wrong = forged(header, said, hmac.new(public, signed, hashlib.sha256).digest())
            assert refused(provider, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithms": ("none",)},
        {"algorithms": ("RS256", "HS256")},
        {"algorithms": ()},
        {"jwks_url": "http://id.test/jwks"},
        {"jwks_url": "file:///etc/passwd"},
        {"role_map": (("ops", "root"),)},
        {"issuer": ""},
        {"audience": ""},
    ],
)
def test_settings_that_would_believe_strangers_are_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "issuer": ISSUER,
        "audience": AUDIENCE,
        "jwks_url": "https://id.test/jwks",
    }
    check_oidc(OidcSettings(**right))
    with pytest.raises(GatewayUnsafe):
        check_oidc(OidcSettings(**(right | wrong)))
