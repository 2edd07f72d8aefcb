"""Which registry follows from the environment, and what of it is wrong, in words."""

import json

import pytest

from refold.settings import load_settings
from refold.settings.registry import open_registry, registry_access
from refold_schemas.errors.cli import SettingInvalid
from refold_schemas.registry import FileRegistry
from refold_schemas.registry.confluent import ConfluentRegistry
from refold_schemas.registry.subjects import Subject
from refold_tools.cli import main
from refold_tools.cli.schemas import subject_problems

URL = "REFOLD_REGISTRY_URL"
NAMES = ("USERNAME", "PASSWORD", "CAFILE")
KAFKA = "kafka://127.0.0.1:9092/shop"


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (URL, "REFOLD_LOG", *(f"REFOLD_REGISTRY_{one}" for one in NAMES)):
        monkeypatch.delenv(name, raising=False)


def test_without_a_url_it_is_the_embedded_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(open_registry(KAFKA), FileRegistry)
    monkeypatch.setenv(URL, "  ")
    assert isinstance(open_registry(KAFKA), FileRegistry)
    assert registry_access() is None
    assert load_settings().registry_url is None


def test_a_log_on_kafka_is_written_under_its_ids_one_in_a_file_is_only_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(URL, "http://registry:8081/apis/ccompat/v7/")
    for log, writes in ((KAFKA, True), ("sqlite:///log.db", False)):
        registry = open_registry(log)
        assert isinstance(registry, ConfluentRegistry)
        assert registry.url == "http://registry:8081/apis/ccompat/v7"
        assert registry.writes is writes
    assert isinstance(open_registry("memory://shop"), FileRegistry)
    given = open_registry(KAFKA, "http://another")
    assert isinstance(given, ConfluentRegistry)
    assert given.url == "http://another"


def test_credentials_come_from_the_url_or_from_variables_and_are_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(URL, "https://ada:correct%3Ahorse@registry/api")
    access = registry_access()
    assert access is not None
    assert (access.url, access.username, access.password) == (
        "https://registry/api",
        "ada",
        "correct:horse",
    )
    assert "horse" not in f"{access!r} {access}"
    monkeypatch.setenv(URL, "https://registry/api")
    monkeypatch.setenv("REFOLD_REGISTRY_USERNAME", "eve")
    monkeypatch.setenv("REFOLD_REGISTRY_PASSWORD", "battery-staple")
    access = registry_access()
    assert access is not None
    assert (access.username, access.password) == ("eve", "battery-staple")
    assert "battery" not in f"{access!r} {load_settings()!r}"


@pytest.mark.parametrize(
    "url", ["registry:8081", "ftp://registry", "http://", "http://a:b:c@", "http://a,http://b",
            "http://ada:secret@registry:port/"],
)  # fmt: skip
def test_a_url_that_is_none_is_refused_without_repeating_it(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(URL, url)
    for ask in (registry_access, load_settings):
        with pytest.raises(SettingInvalid, match=f"{URL} cannot be used") as caught:
            ask()
        assert "secret" not in str(caught.value)
    assert main(["schemas", "check", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "R520"


def test_nothing_is_registered_with_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schemas", "register", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "R532"


def test_what_a_registry_lacks_is_said_by_name() -> None:
    good = Subject("refold.events.A", {1: 11, 2: 12}, (), "FULL_TRANSITIVE", ())
    assert subject_problems((good,)) == []
    assert subject_problems((good._replace(foreign=(13,)),)) == []
    assert subject_problems((good._replace(ids={1: 11, 2: None}),)) == [
        "refold.events.A version 2 is not registered: `refold schemas register`"
    ]
    assert subject_problems((good._replace(ids={1: 11, 2: None}, unfit=(2,)),)) == [
        "refold.events.A version 2 is not registered, and not compatible with what stands under "
        "its name"
    ]
    assert subject_problems((good._replace(compatibility="BACKWARD"),)) == [
        "refold.events.A: its compatibility is BACKWARD, not FULL_TRANSITIVE"
    ]
    unset = good._replace(compatibility=None)
    assert "its compatibility is the registry's own" in subject_problems((unset,))[0]
