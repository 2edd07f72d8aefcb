"""`refold gateway tokens` and `refold commands make-key`, as somebody types them."""

import json
from pathlib import Path
from typing import Any

import pytest

from refold.gateway.environment import settings_from
from refold.gateway.settings import GatewaySettings
from refold.gateway.tokens import TokenFile
from refold.log.memory import MemoryLog
from refold.settings.signing import open_keyring, open_signer
from refold_schemas.codec.signature import PRIVILEGED
from refold_schemas.errors.cli import SettingInvalid
from refold_schemas.errors.gateway import GatewayUnsafe
from refold_tools.cli import main

Capture = pytest.CaptureFixture[str]


def told(capsys: Capture, *arguments: str, code: int = 0) -> str:
    assert main([*arguments]) == code
    return capsys.readouterr().out


def answered(capsys: Capture, *arguments: str, code: int = 0) -> Any:
    return json.loads(told(capsys, *arguments, "--json", code=code).splitlines()[-1])


def test_a_token_from_its_making_to_its_end(tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "tokens.json")
    create = ("gateway", "tokens", "create", "ada", "--tokens", file)
    roles = ("--role", "operator", "--role", "approver", "--namespace", "shop")
    made = answered(capsys, *create, *roles, "--valid-days", "3")
    assert (made["roles"], made["namespace"]) == (["operator", "approver"], "shop")
    caller = TokenFile(Path(file)).verify(made["token"], "shop")
    assert caller.who == "ada"
    text = told(capsys, *create, *roles)
    assert text.splitlines()[-1].startswith("refold_")
    listed = answered(capsys, "gateway", "tokens", "list", "--tokens", file)["tokens"]
    assert len(listed) == 2
    shown = told(capsys, "gateway", "tokens", "list", "--tokens", file)
    assert "operator, approver" in shown
    for secret in (made["token"], text.splitlines()[-1]):
        assert secret.split("_", 2)[2] not in json.dumps(listed) + shown
    revoke = ("gateway", "tokens", "revoke", "--tokens", file)
    assert answered(capsys, *revoke, made["id"])["revoked"] == [made["id"]]
    states = {
        one["id"]: one["state"]
        for one in answered(capsys, "gateway", "tokens", "list", "--tokens", file)["tokens"]
    }
    assert states.pop(made["id"]) == "revoked"
    assert [one.partition(" ")[0] for one in states.values()] == ["valid"]
    assert "revoked" in told(capsys, *revoke, "ada", "--forget")
    assert told(capsys, "gateway", "tokens", "list", "--tokens", file) == "no tokens\n"
    assert answered(capsys, *revoke, "ada", code=2)["error"]["code"] == "R715"


def test_a_token_is_for_the_logs_own_namespace(tmp_path: Path, capsys: Capture) -> None:
    file = str(tmp_path / "tokens.json")
    log = MemoryLog("memory://orders")
    log.broker.recreate()
    create = ("gateway", "tokens", "create", "ada", "--tokens", file, "--role", "viewer")
    made = answered(capsys, *create, "--log", "memory://orders")
    assert made["namespace"] == "orders"
    for wrong in (("--role", "root"), ("--valid-days", "0"), ("--valid-days", "x")):
        error = answered(capsys, *create, *wrong, "--namespace", "x", code=2)["error"]
        assert error["code"] == "R518"
    bad = ("gateway", "tokens", "create", "a\nb", "--tokens", file, "--role", "viewer")
    assert answered(capsys, *bad, "--namespace", "x", code=2)["error"]["code"] == "R518"


def test_a_key_is_made_in_both_its_shapes(tmp_path: Path, capsys: Capture) -> None:
    for algorithm in ("ed25519", "hmac-sha256"):
        options = ("--speaks-for", "ada", "--algorithm", algorithm)
        made = answered(capsys, "commands", "make-key", "ada-1", *options)
        mine, theirs = tmp_path / "mine.json", tmp_path / "keys.json"
        mine.write_text(json.dumps(made["signing_key"]))
        theirs.write_text(json.dumps({"keys": [made["command_keys_line"]]}))
        for path in (mine, theirs):
            path.chmod(0o600)
        signer, keyring = open_signer(str(mine)), open_keyring(str(theirs))
        assert signer is not None
        assert keyring is not None
        for kind in sorted(PRIVILEGED):
            header = signer.header("ns", "r1", "c1", b"value")
            word = keyring.judge("ns", kind, "r1", "c1", "eve", b"value", header)
            assert (word.by, word.reason) == ("ada", None)
        text = told(capsys, "commands", "make-key", "ada-1", *options)
        assert len(text.splitlines()) == 2
    for wrong in (("a b", "ed25519"), ("a", "rot13")):
        error = answered(
            capsys,
            "commands",
            "make-key",
            wrong[0],
            "--speaks-for",
            "x",
            "--algorithm",
            wrong[1],
            code=2,
        )["error"]
        assert error["code"] == "R518"


def environment(**more: Any) -> GatewaySettings:
    given: dict[str, Any] = {"log_url": "memory://x", "database_url": None, "time_zone": "UTC"}
    given |= {"insecure": False, "host": None, "port": None, "tokens": None}
    return settings_from(**(given | more))


def test_the_environment_is_read_and_what_is_wrong_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert environment().port == 8080
    for name, value in {
        "HOST": "0.0.0.0",
        "PORT": "9",
        "HOSTS": " Shop.test, b ",
        "PROXIES": "10.0.0.1,10.0.0.2",
        "RATE_PER_S": "7",
        "OIDC_ISSUER": "https://id/",
        "OIDC_AUDIENCE": "shop",
        "OIDC_JWKS_URL": "https://id/jwks",
        "OIDC_ROLE_MAP": "ops=operator, fin = approver",
    }.items():
        monkeypatch.setenv(f"REFOLD_GATEWAY_{name}", value)
    found = environment(port=5)
    assert (found.host, found.port, found.rate_per_s) == ("0.0.0.0", 5, 7.0)
    assert found.trusted_hosts == ("shop.test", "b")
    assert found.proxies == ("10.0.0.1", "10.0.0.2")
    assert found.oidc is not None
    assert found.oidc.role_map == (("ops", "operator"), ("fin", "approver"))
    monkeypatch.setenv("REFOLD_GATEWAY_OIDC_ROLE_MAP", "ops")
    with pytest.raises(SettingInvalid, match="REFOLD_GATEWAY_OIDC_ROLE_MAP"):
        environment()
    monkeypatch.setenv("REFOLD_GATEWAY_OIDC_ROLE_MAP", "")
    monkeypatch.delenv("REFOLD_GATEWAY_OIDC_AUDIENCE")
    with pytest.raises(GatewayUnsafe, match="only a part"):
        environment()
