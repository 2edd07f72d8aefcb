"""The breaks of `make mutants` still fit the code, and the document lists all of them."""

import ast
from pathlib import Path

import pytest

from mutants.mutants import MUTANTS, Mutant, NamedTests, Patch, Seeds
from mutants.run import PatchUnfit, apply, main, patched, rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_break_fits_exactly_once_and_is_still_python(mutant: Mutant) -> None:
    texts: dict[str, str] = {}
    for patch in mutant.patches:
        text = texts.get(patch.path) or (ROOT / patch.path).read_text(encoding="utf-8")
        texts[patch.path] = patched(text, patch)
    for path, text in texts.items():
        ast.parse(text, path)


def test_there_are_enough_of_them_and_each_has_what_must_catch_it() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 10
    assert sum(isinstance(mutant.caught_by, Seeds) for mutant in MUTANTS) >= 6
    for mutant in MUTANTS:
        if isinstance(mutant.caught_by, NamedTests):
            for name in mutant.caught_by.names:
                assert (ROOT / name.partition("::")[0]).is_file(), name
        else:
            assert mutant.caught_by.first <= mutant.caught_by.last


def test_the_document_has_the_table() -> None:
    document = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
    assert "\n".join(rows(MUTANTS)) in document


@pytest.mark.parametrize("count", [0, 2])
def test_a_patch_that_does_not_fit_exactly_once_is_refused(count: int) -> None:
    with pytest.raises(PatchUnfit, match=f"a.py: found {count} times"):
        patched("if x:\n" * count, Patch("a.py", "if x:", "if y:"))


def test_a_break_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one\ntwo\n")
    fits, misfits = Patch("a.py", "one", "1"), Patch("a.py", "three", "3")
    with pytest.raises(PatchUnfit):
        apply(tmp_path, Mutant("m", "r", (fits, misfits), Seeds(1, 1)))
    assert (tmp_path / "a.py").read_text() == "one\ntwo\n"
    both = Mutant("m", "r", (fits, Patch("a.py", "two", "2")), Seeds(1, 1))
    assert apply(tmp_path, both) == {tmp_path / "a.py": "one\ntwo\n"}
    assert (tmp_path / "a.py").read_text() == "1\n2\n"


def test_an_unknown_break_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "no_such_break"])
    assert "no such break: no_such_break" in capsys.readouterr().err
