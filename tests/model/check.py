"""The one command that checks the protocol.

`python tests/model/check.py [quick|cases|mutants|all|list|NAME] [-v]`

Exit code 1 if a case is violated, or a mutant is not caught; 2 for an unknown name.
"""

import argparse
import gc
import sys
from pathlib import Path

if __name__ == "__main__":
    # Run by path: this folder is on sys.path and its parent is not.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from model.cases import CASES, Case
from model.explorer import Explorer, Result
from model.mutants import MUTANTS, Mutant
from model.rules import Rules
from model.sums import Sum, sums
from model.transitions import Protocol
from model.words import result_words


def check_case(case: Case) -> tuple[Protocol, Result]:
    """Explore a case under the rules as written."""
    protocol = Protocol(case.settings, Rules())
    return protocol, Explorer(protocol).explore()


def check_mutant(mutant: Mutant) -> tuple[Protocol, Result]:
    """Explore a mutant until a property breaks."""
    protocol = Protocol(mutant.settings, mutant.rules)
    return protocol, Explorer(protocol).explore()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _say_result(name: str, result: Result, verdict: str) -> None:
    _say(f"{result.states:>9,} states {result.seconds:6.1f} s  {name}: {verdict}")


def _run_case(case: Case) -> bool:
    protocol, result = check_case(case)
    if result.broken:
        verdict = f"VIOLATED: {result.broken}"
    elif result.exhausted:
        verdict = "holds"
    else:
        verdict = "holds as far as the state limit, progress not judged"
    _say_result(f"{case.name} ({case.title})", result, verdict)
    if result.broken:
        for line in result_words(protocol, result):
            _say(f"    {line}")
    return result.broken is None


def _run_mutant(mutant: Mutant, *, verbose: bool) -> bool:
    protocol, result = check_mutant(mutant)
    verdict = f"caught: {result.broken}" if result.broken else "NOT CAUGHT"
    _say_result(f"mutant: {mutant.name} ({mutant.rule})", result, verdict)
    if verbose:
        for line in result_words(protocol, result):
            _say(f"    {line}")
    return result.broken is not None


def _run_sum(one: Sum) -> bool:
    is_good = (one.found is None) == one.must_hold
    if one.must_hold:
        verdict = f"VIOLATED: {one.found}" if one.found else "holds"
    else:
        verdict = f"caught: {one.found}" if one.found else "NOT CAUGHT"
    _say(f"{'sum':>26}  {one.name} ({one.rule}): {verdict}")
    return is_good


def main(arguments: list[str]) -> int:
    """Run what the arguments name. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python tests/model/check.py", description="Model-check the claim protocol."
    )
    parser.add_argument(
        "what",
        nargs="?",
        default="quick",
        help="quick, cases, mutants, all, list, or the name of a case or mutant",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="the trace of each mutant")
    chosen = parser.parse_args(arguments)
    what = chosen.what
    if what == "list":
        for name in [case.name for case in CASES] + [mutant.name for mutant in MUTANTS]:
            _say(name)
        return 0
    cases = [
        c for c in CASES if what in ("cases", "all", c.name) or (what == "quick" and c.is_quick)
    ]
    is_named = what not in ("quick", "cases", "mutants", "all")
    mutants = [m for m in MUTANTS if what in ("quick", "mutants", "all", m.name)]
    small = () if is_named or what == "cases" else sums()
    if not cases and not mutants:
        _say(f"nothing is called {what!r}; nothing was checked; `list` shows the names")
        return 2
    verbose = chosen.verbose or is_named
    good = [_run_case(case) for case in cases]
    good += [_run_mutant(mutant, verbose=verbose) for mutant in mutants]
    good += [_run_sum(one) for one in small]
    _say(f"{sum(good)} of {len(good)} as they must be")
    return 0 if all(good) else 1


if __name__ == "__main__":
    gc.disable()  # worlds hold no cycles: looking for some costs a tenth of the time
    raise SystemExit(main(sys.argv[1:]))
