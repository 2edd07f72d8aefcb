"""The commands that look at code, at a namespace and at schemas, and what they are given."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.log import open_log
from refold.log.sqlite import SqliteLog
from refold.settings import LOG_DEFAULT, load_settings, log_url, time_zone
from refold.worker import WorkerSettings
from refold.worker.worker import CLAIM_END_MS, HAND_OVER_MS, REPORTS_MS
from refold_schemas.errors import RegistryUnavailable
from refold_schemas.errors.cli import InputUnreadable, SettingInvalid
from refold_schemas.registry import FileRegistry, fingerprint
from refold_schemas.registry.files import PACKAGE
from refold_schemas.values.plain import untagged
from refold_tools.cli import main, registering
from refold_tools.cli.inputs import read_json
from refold_tools.cli.schemas import schema_problems
from refold_tools.dev.changes import snapshot
from refold_tools.dev.child import STOP_WITHIN_S

Capture = pytest.CaptureFixture[str]

SHOP = """
from datetime import timedelta
from refold import Absent, App, Effect, Policy, Retry, RunContext

app = App("shop", time_zone="Europe/Berlin")
number = 7

@app.step(policy=Policy.RE_EXECUTABLE)
async def load(order_id: str) -> dict: ...

async def find(key: str) -> Absent: ...

@app.step(policy=Policy.RESOLVABLE, lookup=find, key_ttl=timedelta(hours=24),
          settle=timedelta(minutes=1), retry=Retry(max_attempts=5))
async def refund(fx: Effect, order_id: str, pence: int) -> dict:
    return {"key": fx.key}

@app.step(policy=Policy.KEYED, key_ttl=None)
async def notify(fx: Effect, order_id: str) -> None:
    print(fx.slot)

@app.step(policy=Policy.KEYED, key_ttl=None)
async def pass_on(fx: Effect, order_id: str) -> None:
    print(fx)

@app.step(policy=Policy.KEYED, key_ttl=timedelta(hours=1))
async def ticket(order_id: str) -> str: ...

@app.step
async def mail(fx: Effect, to: str) -> None: ...

@app.run("refund-agent", version="3", plan=["load", "refund", "thank"])
async def agent(ctx: RunContext, order_id: str) -> None: ...
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def answered(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    found = main([*arguments, "--json"])
    out, err = capsys.readouterr()
    assert found == code, err or out
    payload: dict[str, Any] = json.loads(out.splitlines()[-1])
    return payload


# ---- policies and check


def test_dev_gives_its_worker_the_time_that_the_worker_gives_itself() -> None:
    own_ms = WorkerSettings().drain_ms + HAND_OVER_MS + 2 * CLAIM_END_MS + REPORTS_MS
    assert own_ms < STOP_WITHIN_S * 1000


def test_policies_lists_each_step_and_what_it_lacks(capsys: Capture, project: Path) -> None:
    (project / "shop1.py").write_text(SHOP)
    answer = answered(capsys, "policies", "shop1:app")
    steps = {one["step"]: one for one in answer["steps"]}
    assert answer["app"] == "shop"
    assert (steps["refund"]["policy"], steps["refund"]["lookup"]) == ("resolvable", "find")
    assert (steps["refund"]["settle_ms"], steps["refund"]["key_ttl_ms"]) == (60_000, 86_400_000)
    assert steps["refund"]["missing"] == []
    assert steps["load"]["missing"] == []
    assert steps["ticket"]["missing"] == [
        "takes no Effect, so its key is never sent to the far system",
        "no lookup for when its key has expired: then a person is asked",
    ]
    assert steps["notify"]["missing"] == [
        "takes an Effect but never reads its key: send fx.key to the far system"
    ]
    assert steps["pass_on"]["missing"] == []
    assert [steps[name]["reads_key"] for name in ("refund", "notify", "pass_on", "ticket")] == [
        *(True, False, None, False)
    ]
    assert steps["mail"]["missing"] == ["a person is asked whenever it is in doubt"]


def test_policies_for_people_is_a_table(capsys: Capture, project: Path) -> None:
    (project / "shop2.py").write_text(SHOP)
    assert main(["policies", "shop2:app"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == [
        *("STEP", "POLICY", "KEY", "KEY", "LIVES", "LOOKUP", "SETTLE", "TIMEOUT", "RETRY"),
        "MISSING",
    ]
    assert [row.split()[:2] for row in rows] == [
        ["load", "re_executable"],
        ["refund", "resolvable"],
        ["notify", "keyed"],
        ["pass_on", "keyed"],
        ["ticket", "keyed"],
        ["mail", "escalate"],
    ]
    assert re.search(r"read +1 d +find +1 min +30 s +up to 5 attempts", rows[1])
    assert "not read   for ever" in rows[2]
    assert "not taken" in rows[4]


def test_check_reports_registrations_and_notes(capsys: Capture, project: Path) -> None:
    (project / "shop3.py").write_text(SHOP)
    answer = answered(capsys, "check", "shop3:app")
    assert (answer["app"], answer["time_zone"]) == ("shop", "Europe/Berlin")
    assert answer["versions"] == ["refund-agent@3"]
    assert answer["steps"] == ["load", "refund", "notify", "pass_on", "ticket", "mail"]
    assert answer["runs"][0]["input"] == "order_id"
    assert "run refund-agent: its plan names no step of the app: thank" in answer["notes"]
    assert main(["check", "shop3:app"]) == 0
    assert "run   refund-agent@3(order_id), plan: load, refund, thank" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        (None, "nowhere:app", "there is no module 'nowhere' here or on PYTHONPATH"),
        (None, "nowhere.at.all:app", "there is no module 'nowhere' here or on PYTHONPATH"),
        (None, "nowhere", "it is not written MODULE:APP"),
        (None, ":app", "it is not written MODULE:APP"),
        (None, "shop.py:app", "shop.py is a file; write the module, shop:app"),
        ("x = 1\nimport missing_thing\n", "m:app", "at m.py:2: ModuleNotFoundError"),
        ("def f():\n    return 1 / 0\nf()\n", "m:app", "at m.py:2: ZeroDivisionError: division"),
        ("x = 1\ndef f(:\n", "m:app", "at m.py:2: SyntaxError"),
        ("raise SystemExit(3)\n", "m:app", "at m.py:1: SystemExit: 3"),
        ("raise ValueError('two\\nlines')\n", "m:app", "at m.py:1: ValueError: two"),
        (SHOP, "m:application", "module m has no 'application'; it has app"),
        (SHOP, "m:number", "number in m is a int, not a refold.App"),
        (SHOP, "m:agent", "agent in m is a function, not a refold.App"),
        (
            SHOP + "\n@app.step(policy=Policy.KEYED)\nasync def pay(fx: Effect) -> None: ...\n",
            "m:app",
            "RegistrationRefused: step 'pay'",
        ),
    ],
)
def test_an_app_that_cannot_be_used_is_said_in_one_sentence(
    capsys: Capture, project: Path, source: str | None, target: str, said: str
) -> None:
    if source is not None:
        (project / "m.py").write_text(source)
    for command in (["check", target], ["run", target, "x"], ["worker", target]):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert said in err
        assert "(R516)" in err
        assert err.count("\n") == 1
        sys.modules.pop("m", None)
    assert not (project / ".refold").exists(), "nothing was made for an app that does not load"


def test_an_error_inside_a_library_is_placed_in_the_users_file(
    capsys: Capture, project: Path
) -> None:
    source = SHOP + "\nimport json\njson.loads('{')\n"
    (project / "shop7.py").write_text(source)
    assert main(["check", "shop7:app"]) == 2
    line = source.splitlines().index("json.loads('{')") + 1
    assert f"at shop7.py:{line}: JSONDecodeError" in capsys.readouterr().err


def test_a_refused_registration_is_placed_in_the_users_file(capsys: Capture, project: Path) -> None:
    source = SHOP + "\n@app.step(policy=Policy.KEYED)\nasync def pay(fx: Effect) -> None: ...\n"
    (project / "shop4.py").write_text(source)
    assert main(["check", "shop4:app"]) == 2
    line = source.splitlines().index("@app.step(policy=Policy.KEYED)") + 1
    assert f"at shop4.py:{line}: RegistrationRefused" in capsys.readouterr().err
    error = answered(capsys, "check", "shop4:app", code=2)["error"]
    assert error["code"] == "R516"
    assert "key_ttl=" in error["next"], "the repair of the registration"
    assert "write MODULE:APP" not in error["next"]


def test_a_run_function_that_the_app_does_not_have(capsys: Capture, project: Path) -> None:
    (project / "shop5.py").write_text(SHOP)
    answer = answered(capsys, "run", "shop5:app", "refund", "--input", '"o1"', code=2)
    assert answer["error"]["message"] == (
        "shop5:app has no run function 'refund'; it has refund-agent"
    )


def test_input_that_does_not_validate_is_refused_before_a_log_is_made(
    capsys: Capture, project: Path
) -> None:
    (project / "shop6.py").write_text(SHOP)
    answer = answered(capsys, "run", "shop6:app", "refund-agent", "--input", "[1]", code=2)
    assert "order_id" in answer["error"]["message"] or "refund-agent" in answer["error"]["message"]
    assert not (project / ".refold").exists()


# ---- what is handed in


def test_json_is_read_from_the_argument_a_file_and_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    (tmp_path / "order.json").write_text('{"id": "£"}', encoding="utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("[1, 2]"))
    assert read_json("--input", None) is None
    assert read_json("--input", '{"id": 1}') == {"id": 1}
    assert read_json("--input", f"@{tmp_path / 'order.json'}") == {"id": "£"}
    assert read_json("--input", "@-") == [1, 2]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{id: 1}", "it is not JSON (Expecting property name enclosed in double quotes, line 1"),
        ("", "it is not JSON (Expecting value, line 1, column 1)"),
        ('{"id": 1, "of": {"a": 1, "a": 1}}', "the key 'a' stands twice in one object"),
        ("NaN", "NaN is no JSON number"),
        ("[" * 100_000, "it is not JSON"),
        ("@missing.json", "missing.json: No such file or directory"),
        ("@.", ".: Is a directory"),
        ("@a\0b", "embedded null byte"),
    ],
)
def test_what_is_no_json_is_refused_with_its_place(given: str, said: str) -> None:
    with pytest.raises(InputUnreadable) as caught:
        read_json("--input", given)
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "order.json").write_bytes(b'"\xff"')
    with pytest.raises(InputUnreadable, match=r"order\.json is not UTF-8"):
        read_json("--input", f"@{tmp_path / 'order.json'}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["resolve", "r1", "charge#1"], "say --happened --result JSON or --did-not-happen"),
        (["resolve", "r1", "charge#1", "--happened"], "--happened needs --result JSON"),
        (
            ["resolve", "r1", "charge#1", "--did-not-happen", "--result", "1"],
            "--did-not-happen takes no --result",
        ),
        (["start", "shop", "--input", "{"], "--input cannot be read"),
        (["resolve", "r1", "charge#1", "--happened", "--result", "{"], "--result cannot be read"),
    ],
)
def test_a_command_that_is_not_complete_is_refused(
    capsys: Capture, arguments: list[str], said: str
) -> None:
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ({"$": {"$odd": 1}}, {"$odd": 1}),
        ({"$enum": ["shop:Kind", "REFUND"]}, "REFUND"),
        ({"$record": ["shop:Order", {"id": {"$uuid": "7c"}}, {"unset": []}]}, {"id": "7c"}),
        (
            {"$map": [[1, {"$decimal": "2.50"}], [{"$tuple": [1, 2]}, 3]]},
            {"1": "2.50", "[1, 2]": 3},
        ),
        ({"$timedelta": [1, 5, 0]}, 86_405),
        ({"$timedelta": [0, 1, 500_000]}, 1.5),
        ({"$datetime": "2026-08-01T12:00:00+02:00[Europe/Berlin]"}, "2026-08-01T12:00:00+02:00"),
        ([{"$set": [1]}, {"$bytes": "AAE="}, None, True], [[1], "AAE=", None, True]),
    ],
)
def test_stored_kinds_are_shown_as_plain_json(stored: Any, shown: object) -> None:
    assert untagged(stored) == shown


# ---- namespace and schemas


def test_a_registry_that_is_away_leaves_no_log_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    closed: list[str] = []
    close = SqliteLog.close

    async def noted(log: SqliteLog) -> None:
        closed.append(log.url)
        await close(log)

    async def is_away(log_url: str) -> None:
        raise RegistryUnavailable("http://registry", "nobody is at home")

    monkeypatch.setattr(SqliteLog, "close", noted)
    monkeypatch.setattr(registering, "make_ready", is_away)
    url = f"sqlite:///{tmp_path}/log.db"
    assert main(["namespace", "create", "--log", url]) == 4
    assert "nobody is at home" in capsys.readouterr().err
    assert closed == [url]


def test_a_namespace_is_made_once_and_shown(capsys: Capture, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/log.db?ns=refunds&partitions=4"
    assert answered(capsys, "namespace", "show", "--log", url, code=4)["error"]["code"] == "R304"
    assert answered(capsys, "namespace", "create", "--log", url)["made"] is True
    again = answered(capsys, "namespace", "create", "--log", url)
    assert (again["made"], again["partitions"], again["namespace"]) == (False, 4, "refunds")
    assert set(again["topics"]) == {
        *("refunds.commands", "refunds.events", "refunds.snapshots", "refunds.dead-letters")
    }
    assert main(["namespace", "show", "--log", url]) == 0
    assert "namespace refunds, 4 partition(s)" in capsys.readouterr().out


def test_schemas_are_listed_and_shown(capsys: Capture) -> None:
    listed = answered(capsys, "schemas", "list")["schemas"]
    assert {"id", "name", "version", "sha256", "rabin", "registry_id"} == set(listed[0])
    assert listed[0]["registry_id"] is None, "no registry is set"
    assert (len(listed[0]["sha256"]), len(listed[0]["rabin"])) == (64, 16)
    names = [one["name"] for one in listed]
    assert "refold.events.StepIntended" in names
    shown = answered(capsys, "schemas", "show", "StepIntended")
    assert (shown["name"], shown["schema"]["name"]) == (
        "refold.events.StepIntended",
        "StepIntended",
    )
    by_id = answered(capsys, "schemas", "show", str(shown["id"]))
    assert by_id == shown
    assert answered(capsys, "schemas", "show", "StepIntnded", code=2)["error"]["code"] == "R521"
    assert main(["schemas", "show", "StepIntended"]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "record"


def test_schemas_are_checked(capsys: Capture, tmp_path: Path) -> None:
    checked = answered(capsys, "schemas", "check")
    assert checked["problems"] == []
    assert checked["schemas"] >= checked["records"] > 20
    assert main(["schemas", "check"]) == 0
    assert "all as released, FULL_TRANSITIVE" in capsys.readouterr().out
    for room in ("events", "commands", "snapshots"):
        shutil.copytree(PACKAGE / room / "avro", tmp_path / room / "avro")
    ids = json.loads((PACKAGE / "registry" / "ids.json").read_text())
    avro = tmp_path / "events" / "avro"
    two = json.loads((avro / "TimerFired.v1.avsc").read_text())
    two["fields"].append({"name": "why", "type": "string"})
    (avro / "TimerFired.v2.avsc").write_text(json.dumps(two))
    ids["refold.events.TimerFired"]["2"] = {"id": 1999, "fingerprint": fingerprint(two)}
    (avro / "StepFailed.v1.avsc").write_text((avro / "StepFailed.v1.avsc").read_text()[:-9])
    shutil.copy(avro / "TimerCancelled.v1.avsc", avro / "TimerCancelled.v2.avsc")
    changed = json.loads((avro / "RunFailed.v1.avsc").read_text())
    changed["fields"] = []
    (avro / "RunFailed.v1.avsc").write_text(json.dumps(changed))
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / "ids.json").write_text(json.dumps(ids))
    problems = schema_problems(FileRegistry(tmp_path))
    assert len(problems) == 4
    for said in (
        "events/avro/TimerCancelled.v2.avsc has no id",
        "StepFailed.v1.avsc",
        "refold.events.RunFailed version 1, has changed",
        "refold.events.TimerFired: version 2 cannot read version 1",
    ):
        assert any(said in problem for problem in problems)


# ---- settings


def test_the_short_way_and_pydantic_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_log().url == LOG_DEFAULT
    for value in (None, "", "  ", "sqlite:///a.db", " sqlite:///a.db "):
        for name in ("REFOLD_LOG", "REFOLD_TIME_ZONE"):
            monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv("REFOLD_LOG", value)
        assert log_url() == load_settings().log
    assert log_url("sqlite:///given.db") == "sqlite:///given.db"
    monkeypatch.setenv("REFOLD_TIME_ZONE", "Asia/Tokyo")
    assert time_zone() == load_settings().time_zone == "Asia/Tokyo"


def test_a_setting_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_LOG", "log.db")
    with pytest.raises(SettingInvalid, match=r"REFOLD_LOG cannot be used: 'log\.db' is no"):
        load_settings()


def test_a_database_is_named_by_a_url_of_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "REFOLD_DATABASE_URL"
    monkeypatch.setenv(name, " ")
    assert load_settings().database_url is None
    monkeypatch.setenv(name, "postgresql://refold@127.0.0.1:5432/refold")  # as the devstack says it
    assert load_settings().database_url == "postgresql://refold@127.0.0.1:5432/refold"
    monkeypatch.setenv(name, "http://127.0.0.1:8081")
    with pytest.raises(SettingInvalid, match=rf"{name} cannot be used: it is no URL of a Postgres"):
        load_settings()


# ---- dev


def test_a_change_of_any_python_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / "agents/a.py").write_text("a = 1")
    (tmp_path / ".venv/b.py").write_text("b = 1")
    (tmp_path / "notes.txt").write_text("x")
    before = snapshot((tmp_path,))
    assert [Path(path).name for path in before] == ["a.py"]
    (tmp_path / "agents/c.py").write_text("c = 1")
    assert set(snapshot((tmp_path,))) - set(before) == {str(tmp_path / "agents/c.py")}


# ---- start-up


def test_help_and_reading_commands_load_no_more_than_they_need() -> None:
    import subprocess

    heavy = ["refold.app", "refold.worker", "refold.engine.owner", "pydantic", "refold.client"]
    code = (
        "import sys\nfrom refold_tools.cli import main\nmain({argv})\n"
        f"print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    for argv, expected in (
        (["--help"], "[]"),
        (["boundary", "x", "--log", "sqlite:////nowhere/x.db"], "['refold.client']"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.replace("{argv}", repr(argv))],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stderr.splitlines()[-1] == expected
