"""The errors of client and command line: reasons have classes, pages have a line in the index."""

import io
import json
import re
import sys
from datetime import UTC
from pathlib import Path

import pytest

from refold.worker import WorkerEvent
from refold_schemas.errors import (
    ForeignAwait,
    InputRefused,
    RefoldError,
    ResultUnrecordable,
    ValueUnreadable,
)
from refold_schemas.errors.base import Told, told
from refold_schemas.errors.cli import (
    REFUSALS,
    CommandRefused,
    FunctionUnknown,
    InputInvalid,
    RunExists,
    RunFailedError,
    RunUnknown,
)
from refold_schemas.errors.log import LogCorrupted, LogReadOnly
from refold_schemas.events import CommandRejected
from refold_tools.cli.failures import as_refold_error, error_object, innermost, report
from refold_tools.cli.output import say, table
from refold_tools.cli.telling import event_teller

ERRORS = Path(__file__).parents[2] / "docs/errors"


def test_every_reason_with_an_error_of_its_own_is_one_that_owners_give() -> None:
    said = " ".join((CommandRejected.__doc__ or "").split())
    reasons = set(re.findall(r"\w+", said.partition("one of:")[2].partition(".")[0]))
    assert set(REFUSALS) <= reasons
    kinds = set(REFUSALS.values())
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_a_refusal_says_command_run_reason_and_advice() -> None:
    error = InputInvalid("r1", "StartRun", "input_invalid", "pence: not a number")
    assert isinstance(error, CommandRefused)
    assert str(error) == (
        "StartRun for run r1 was refused (input_invalid): pence: not a number. "
        "Kept: nothing was started; the refusal is recorded. "
        "Next: correct the input and start again; the run id is still free. (R507)"
    )
    assert error_object(error)["code"] == "R507"


def test_what_is_kept_and_advised_depends_on_the_command_and_the_reason() -> None:
    unborn = FunctionUnknown("r1", "StartRun", "unknown_function", "no such")
    assert unborn.kept == "nothing was started; the refusal is recorded"
    exists = RunExists("r1", "StartRun", "run_exists_other_input", "other input")
    assert exists.kept == "the run as it was; the refusal is recorded"
    large = CommandRefused("r1", "StartRun", "too_large", "9 bytes, 8 are allowed")
    assert large.next == "send a reference (a key, a URL) instead of the content"
    word = InputInvalid("r1", "ResolveStep", "input_invalid", "the result does not fit")
    assert word.kept == "the run as it was; the refusal is recorded"
    assert word.next == "say it again with a result of that type; nothing was resolved"
    lost = ResultUnrecordable("draw#1", type_name="bytes", path="result", reason="big", size=9)
    assert "a reference" in lost.next
    assert "a reference" not in ResultUnrecordable("a#1", type_name="f", path="r", reason="x").next


def test_a_question_keeps_its_mark_and_is_read_back() -> None:
    error = RefoldError("no such command. Did you mean 'boundary'?", kept="nothing", next="look")
    assert str(error) == (
        "no such command. Did you mean 'boundary'? Kept: nothing. Next: look. (R000)"
    )
    assert told(str(error)) == Told(error.message, "nothing", "look", "R000")


def test_a_reader_without_write_permission_is_told_how_to_read() -> None:
    error = LogReadOnly("sqlite:///log.db", "the file log.db may not be written")
    assert error.kept == "everything in it; nothing of this command is stored"
    for way in ("readers need it too", "as the user who owns them", "a copy made with VACUUM INTO"):
        assert way in error.next


def test_a_file_that_is_no_log_may_be_the_wrong_one() -> None:
    assert LogCorrupted("sqlite:///rt.py", "no database").next.startswith(
        "if --log (or REFOLD_LOG)"
    )


def test_an_error_of_ours_inside_another_is_said_once() -> None:
    inner = ForeignAwait("a Future", "at app.py:7", "make it a step")
    failed = RunFailedError("r1", "ForeignAwait", str(inner))
    assert str(failed) == (
        "run r1 failed: ForeignAwait: run code awaited a Future at app.py:7 (R407). "
        "Kept: every recorded step of it. "
        "Next: make it a step; then `refold retry r1`. (R501)"
    )
    placed = RunFailedError("r1", "ForeignAwait", f"{inner} (in app.py:7, agent)")
    assert placed.message.endswith("awaited a Future at app.py:7 (R407) (in app.py:7, agent)")
    assert placed.next == failed.next
    unreadable = str(InputRefused("agent", ValueUnreadable("int", "it is text").message))
    refused = InputInvalid("r1", "StartRun", "input_invalid", unreadable)
    assert refused.message == (
        "StartRun for run r1 was refused (input_invalid): run 'agent': its input does not "
        "validate: a stored value of type int cannot be read: it is text (R411)"
    )
    assert str(refused).count("Kept: ") == str(refused).count("Next: ") == 1
    plain = RunFailedError("r1", "ValueError", "a. Next: b. (no)")
    assert plain.message == "run r1 failed: ValueError: a. Next: b. (no)"
    assert told(str(RefoldError("only a message"))) == Told("only a message", code="R000")


def test_the_index_lists_every_page() -> None:
    index = (ERRORS / "README.md").read_text()
    listed = re.findall(r"^- \[(R\d{3})\]\((R\d{3})\.md\): .+$", index, re.MULTILINE)
    assert [code for code, _ in listed] == sorted(path.stem for path in ERRORS.glob("R[0-9]*.md"))
    assert all(code == page for code, page in listed)


@pytest.mark.parametrize("exit_code", [0, 1, 2, 3, 4])
def test_exit_codes_come_from_the_error(exit_code: int) -> None:
    class Some(RefoldError):
        """An error of a test."""

    Some.exit_code = exit_code
    found = as_refold_error(Some("x"))
    assert found is not None
    assert found.exit_code == exit_code


def test_the_innermost_frame_is_named_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def f():\n    raise ValueError\nf()\n")
    code = compile((tmp_path / "broken.py").read_text(), str(tmp_path / "broken.py"), "exec")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (its place is what counts)
        exec(code, {})
    assert innermost(caught.value) == "broken.py:2"
    assert innermost(ValueError()) == ""


ODD = "pay \x1b[2J\x1b]0;x\x07\r\x9b31m \u202ecod.exe \ud800 now"
SHOWN = r"pay \x1b[2J\x1b]0;x\x07\x0d\x9b31m \u202ecod.exe \ud800 now"


@pytest.mark.parametrize("as_json", [False, True])
def test_what_others_say_commands_no_terminal(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    say(ODD)
    say(ODD, "bold", error=True)
    table(["a", "b"], [[ODD, ODD]], {})
    report(RuntimeError(ODD), as_json=as_json, debug=False)
    event_teller(UTC, as_json=as_json, error=False)(
        WorkerEvent("in_doubt", 0, "run-1", f"{ODD}\n12:00:00  completed    run-2  done", 0)
    )
    out, err = capsys.readouterr()
    assert SHOWN in out
    assert SHOWN in err
    assert not [c for c in out + err if not (c.isprintable() or c == "\n")]
    assert "\n12:00:00" not in out
    if as_json:
        told = json.loads(out.splitlines()[-1])
        assert told["text"].startswith(ODD)


def test_an_error_that_cannot_be_told_as_json_is_told_to_people(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert report(RunUnknown("r1", "shop"), as_json=True, debug=False) == 2
    assert "there is no run 'r1'" in capsys.readouterr().err
