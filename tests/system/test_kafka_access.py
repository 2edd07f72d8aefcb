"""A Kafka broker that asks who comes in: TLS and SASL, as `REFOLD_KAFKA_*` say."""

import asyncio
from pathlib import Path

import pytest

from refold.log import Entry, Topic, open_log
from refold_schemas.errors import LogUnavailable
from refold_schemas.errors.cli import SettingInvalid
from support.kafka_broker import PASSWORD, SCRAM_PASSWORDS, USER, Broker


@pytest.fixture
def url(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("REFOLD_KAFKA_SECURITY_PROTOCOL", "SASL_SSL")
    monkeypatch.setenv("REFOLD_KAFKA_USERNAME", USER)
    monkeypatch.setenv("REFOLD_KAFKA_PASSWORD", PASSWORD)
    monkeypatch.setenv("REFOLD_KAFKA_CAFILE", str(broker.cafile))
    return f"kafka://{broker.secure_server}/secure?partitions=2"


async def works(url: str) -> None:
    log = open_log(url)
    await log.open(create=True)
    ack = await log.append(Topic.EVENTS, 1, [Entry(b"k", b"v", b"h")])
    assert ack.offset is not None
    [record] = await log.read(Topic.EVENTS, 1, ack.offset)
    assert record.value == b"v"
    while not (await log.suggest("owner")).partitions:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert await log.owner_lives(0) is True
    await log.close()


def test_a_log_behind_tls_and_a_password_works_like_any_other(url: str) -> None:
    asyncio.run(works(url))


@pytest.mark.parametrize("mechanism", SCRAM_PASSWORDS)
def test_a_password_is_proved_without_being_sent(
    url: str, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCRAM, with both client libraries: the one makes the topics, the other does the rest."""
    monkeypatch.setenv("REFOLD_KAFKA_SASL_MECHANISM", mechanism)
    assert "uthentication" in asyncio.run(refused(url)), "that is the password of PLAIN"
    monkeypatch.setenv("REFOLD_KAFKA_PASSWORD", SCRAM_PASSWORDS[mechanism])
    asyncio.run(works(url.replace("/secure", f"/{mechanism.lower()}")))


async def refused(url: str) -> str:
    with pytest.raises(LogUnavailable) as error:
        await open_log(url).open(create=False)
    assert error.value.exit_code == 4
    await asyncio.sleep(0.2)  # a connection under TLS takes a moment to end, the loop ends at once
    return str(error.value)


def test_a_wrong_password_is_said_without_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_KAFKA_PASSWORD", "hunter2")
    told = asyncio.run(refused(url))
    assert "hunter2" not in told
    assert "uthentication" in told
    assert "REFOLD_KAFKA_" in told


def test_a_certificate_that_is_not_trusted_is_said(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REFOLD_KAFKA_CAFILE")
    assert "ertificate" in asyncio.run(refused(url))


def test_a_file_that_holds_no_certificate_is_said(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "ca.pem").write_text("nothing")
    monkeypatch.setenv("REFOLD_KAFKA_CAFILE", str(tmp_path / "ca.pem"))
    assert "REFOLD_KAFKA_CAFILE" in asyncio.run(refused(url))


def test_a_setting_that_is_none_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_KAFKA_SECURITY_PROTOCOL", "TLS")
    with pytest.raises(SettingInvalid, match="REFOLD_KAFKA_SECURITY_PROTOCOL"):
        asyncio.run(open_log(url).open(create=False))
