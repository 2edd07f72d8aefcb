"""The claim protocol under the model: the rules as written hold, and each rule broken is caught."""

from dataclasses import replace
from pathlib import Path

import pytest

from model.cases import CASES, Case
from model.check import check_case, check_mutant, main
from model.explorer import Explorer
from model.mutants import MUTANTS, Mutant
from model.properties import visible
from model.rules import Rules
from model.settings import ESCALATE, KEYED, Settings
from model.sums import Sum, sums
from model.transitions import Protocol
from model.words import result_words

pytestmark = pytest.mark.untraced

QUICK = [case for case in CASES if case.is_quick]


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_the_rules_as_written_hold(case: Case) -> None:
    protocol, result = check_case(case)
    assert result.broken is None, "\n".join([result.broken, *result_words(protocol, result)])
    assert result.exhausted, "a quick case is small enough to be seen whole"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_caught(mutant: Mutant) -> None:
    assert mutant.rules != Rules()
    _, result = check_mutant(mutant)
    assert result.broken is not None, f"{mutant.name}: {result.states} states and nothing broke"
    assert result.trace


def test_no_world_of_a_mutant_is_broken_without_the_mutation() -> None:
    """Else a mutant could be "caught" by a fault of its world. The cases look deeper."""
    for settings in dict.fromkeys(mutant.settings for mutant in MUTANTS):
        result = Explorer(Protocol(replace(settings, states_max=1_500), Rules())).explore()
        assert result.broken is None, settings


@pytest.mark.parametrize("one", sums(), ids=lambda one: one.name)
def test_a_sum(one: Sum) -> None:
    assert (one.found is None) == one.must_hold, one.found


@pytest.mark.parametrize(
    "settings",
    [
        Settings(attempts=1, unknowns=1),
        Settings(attempts=1, crashes=1),
        Settings(policy=KEYED, workers=1, claims=1, refusals=1, doubts=True),
        Settings(policy=ESCALATE, deduplicates=False, workers=1, unknowns=1, doubts=True),
        Settings(start=True, cancels=1, attempts=1, workers=1, claims=1, copies=1),
    ],
    ids=["unknown", "crash", "keyed", "escalate", "copies"],
)
def test_the_normal_form_loses_nothing_that_anyone_can_see(settings: Settings) -> None:
    assert _seen(settings) == _seen(replace(settings, reduced=False))


def _seen(settings: Settings) -> set[tuple[object, ...]]:
    """What all worlds of a case show: the run as readers see it, and what the far system did."""
    protocol = Protocol(settings, Rules())
    explorer = Explorer(protocol)
    result = explorer.explore()
    assert result.exhausted
    assert result.broken is None
    return {
        (visible(protocol.state(w.end)), w.effects, w.commands, w.budget) for w in explorer.worlds
    }


def test_the_names_of_cases_and_mutants_are_their_own() -> None:
    names = [case.name for case in CASES] + [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)


def test_every_rule_has_a_mutant() -> None:
    written = Rules()
    kept = {
        name
        for name in Rules.__slots__
        if all(getattr(m.rules, name) == getattr(written, name) for m in MUTANTS)
    }
    assert kept == set()


def test_the_page_lists_every_mutant_with_its_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "model.md").read_text(encoding="utf-8")
    rows = {line for line in page.splitlines() if line.startswith("| ")}
    missing = [m.name for m in MUTANTS if f"| {m.name} | {m.rule} |" not in rows]
    assert not missing


def test_the_command_names_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nonsense"]) == 2
    assert "nothing is called 'nonsense'" in capsys.readouterr().out


def test_the_command_shows_the_trace_of_a_named_mutant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["no last look at the deadline"]) == 0
    out = capsys.readouterr().out
    assert "sends attempt 0" in out
    assert "1 of 1 as they must be" in out
