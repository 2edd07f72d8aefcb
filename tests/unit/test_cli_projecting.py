"""What the commands about the tables say where there is no database to speak of."""

import json
import sys

import pytest

from refold_projections.tables.database import check_url, client, shown
from refold_projections.tables.migrating import migrations
from refold_projections.tables.names import names_in
from refold_projections.tables.shapes import TABLES
from refold_schemas.errors.tables import DatabaseClientMissing, DatabaseUrlInvalid
from refold_tools.cli import main

SECRET = "hunter2secret"


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    found: dict[str, str] = json.loads(capsys.readouterr().out.splitlines()[-1])["error"]
    return found


@pytest.mark.parametrize("command", [["projector"], ["projections", "migrate"]])
def test_without_a_database_the_command_says_which_variable(
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("REFOLD_DATABASE_URL", raising=False)
    assert main([*command, "--json"]) == 2
    found = said(capsys)
    assert found["code"] == "R606"
    assert "REFOLD_DATABASE_URL" in found["next"]


@pytest.mark.parametrize(
    "url",
    [
        f"mysql://u:{SECRET}@h/db",
        f"postgresql://u:{SECRET}@h:port/db",
        f"postgresql://u:{SECRET}@[::1/db",
        f"postgresql://u:{SECRET}@127.0.0.1:5/db?sslmode=bogus",
    ],
)
def test_a_url_that_is_none_is_said_without_its_password(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["projections", "migrate", "--database", url, "--json"]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["error"]["code"] == "R602"
    assert SECRET not in printed.out + printed.err


def test_a_database_that_is_away_is_exit_4_without_its_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"postgresql://u:{SECRET}@127.0.0.1:1/db"
    assert main(["projections", "migrate", "--database", url, "--json"]) == 4
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["error"]["code"] == "R601"
    assert SECRET not in printed.out + printed.err
    assert shown(url) == "postgresql://u@127.0.0.1:1/db"


def test_a_schema_needs_no_quotes() -> None:
    with pytest.raises(DatabaseUrlInvalid, match="no name of a schema"):
        names_in('x"; drop table refold_live; --')
    check_url("postgres://h/db")


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(DatabaseClientMissing, match=r"refold\[postgres\]"):
        client()


def test_the_columns_that_rows_have_are_those_of_the_migrations() -> None:
    (first,) = migrations()
    for table in TABLES.values():
        start = first.before.index(f"create table @schema@.refold_{table.name} (")
        lines = first.before[start : first.before.index(") partition by", start)].splitlines()[2:]
        names = [line.split()[0].strip('"') for line in lines if line.strip()]
        assert names == [name for name, _ in table.columns]
