"""Breaks the engine on purpose, one rule at a time; what is named for a break must catch it.

`make mutants`, or `python tests/mutants/run.py [--only NAME …] [--jobs N]`. The tree is copied; the
working tree is never touched. The unbroken copy must pass first everything that is to catch a
break. Exit 0 if each break was caught, 1 if one survived or could not be judged.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants.mutants import MUTANTS, Mutant, NamedTests, Patch, Seeds

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("services", "schemas", "projections", "tools")
COPIED = (*PACKAGES, "tests", "examples", "docs")
LIMIT_S = 240

SIMULATE = """
import sys
from refold.testing.simulate import run_seed
profile = None if sys.argv[1] == "-" else sys.argv[1]
for seed in map(int, sys.argv[2:]):
    report = run_seed(seed, profile)
    if not report.ok:
        print(f"BROKEN seed {seed}: {report.violation}")
        sys.exit(1)
"""
"""As `python -m refold.testing.simulate`, but it stops at the first seed that fails."""


class PatchUnfit(Exception):
    """The text of a patch is not found exactly once: the code has moved on, or it was wrong."""


class Seen(NamedTuple):
    """What a check did. `failed` is None where it cannot be said (it broke or hung)."""

    failed: bool | None
    said: str


class Judged(NamedTuple):
    """One mutant with what became of it."""

    mutant: Mutant
    seen: Seen
    seconds: float


def patched(text: str, patch: Patch) -> str:
    """The text with the patch in it. Raises PatchUnfit."""
    count = text.count(patch.old)
    if count != 1:
        raise PatchUnfit(f"{patch.path}: found {count} times, not once: {patch.old.strip()!r}")
    return text.replace(patch.old, patch.new)


def apply(root: Path, mutant: Mutant) -> dict[Path, str]:
    """Write the mutant's patches below `root`; returns the texts that stood there. May raise."""
    before: dict[Path, str] = {}
    after: dict[Path, str] = {}
    for patch in mutant.patches:
        path = root / patch.path
        text = after.get(path) or path.read_text(encoding="utf-8")
        before.setdefault(path, text)
        after[path] = patched(text, patch)
    _write(after)
    return before


def _write(texts: dict[Path, str]) -> None:
    for path, text in texts.items():
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()
        path.write_text(text, encoding="utf-8")


class Copy:
    """A copy of the tree in a folder of its own, and the processes that run in it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        for name in COPIED:
            ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "*.db")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("REFOLD_")},
            "PYTHONPATH": os.pathsep.join(str(folder / name) for name in PACKAGES),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._check_place()

    def _check_place(self) -> None:
        names = ("refold", "refold_schemas", "refold_projections", "refold_tools")
        code = f"import {', '.join(names)}\nprint(*[m.__file__ for m in ({', '.join(names)})])"
        said = self._run(["-c", code])
        for place in said.stdout.split():
            if not Path(place).is_relative_to(self.root):
                raise SystemExit(f"the copy is not what runs: {place} is outside of {self.root}")

    def _run(self, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def check(self, what: Seeds | NamedTests) -> Seen:
        """Run it in this copy as it stands now."""
        if isinstance(what, Seeds):
            seeds = [str(seed) for seed in range(what.first, what.last + 1)]
            return self.simulate(what.profile, seeds)
        return self.test(what.names)

    def simulate(self, profile: str | None, seeds: Sequence[str]) -> Seen:
        """Worlds until one is broken; an exception of the simulation itself judges nothing."""
        try:
            done = self._run(["-c", SIMULATE, profile or "-", *seeds])
        except subprocess.TimeoutExpired:
            return Seen(None, f"no end within {LIMIT_S} s")
        lines = [line for line in done.stdout.splitlines() if line.startswith("BROKEN ")]
        if done.returncode == 1 and lines:
            return Seen(True, lines[0].removeprefix("BROKEN "))
        if done.returncode == 0:
            return Seen(False, f"{len(seeds)} seeds hold")
        return Seen(None, _last(done.stdout + done.stderr))

    def test(self, names: Sequence[str]) -> Seen:
        """Tests until one fails; only a failing test counts, not one that cannot be collected."""
        options = ["-m", "pytest", "-q", "-x", "--tb=no", "-p", "no:cacheprovider"]
        try:
            done = self._run([*options, *names])
        except subprocess.TimeoutExpired:
            return Seen(None, f"no end within {LIMIT_S} s")
        failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
        if done.returncode == 1 and failed:
            return Seen(True, failed[0].removeprefix("FAILED ").partition(" - ")[0])
        if done.returncode == 0:
            return Seen(False, _last(done.stdout))
        return Seen(None, _last(done.stdout + done.stderr))


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing was said"


def unbroken(copies: Sequence[Copy], mutants: Sequence[Mutant]) -> list[str]:
    """What fails without any break, one sentence each: then nothing could be said of a break."""
    seeds: dict[str | None, set[int]] = {}
    tests: dict[str, None] = {}
    for mutant in mutants:
        if isinstance(mutant.caught_by, Seeds):
            wanted = range(mutant.caught_by.first, mutant.caught_by.last + 1)
            seeds.setdefault(mutant.caught_by.profile, set()).update(wanted)
        else:
            tests.update(dict.fromkeys(mutant.caught_by.names))
    with ThreadPoolExecutor(len(copies)) as pool:
        jobs = [
            pool.submit(
                copies[part].simulate, profile, [str(s) for s in sorted(found)[part::count]]
            )
            for profile, found in seeds.items()
            for count in [len(copies)]
            for part in range(count)
            if sorted(found)[part::count]
        ]
        if tests:
            jobs.append(pool.submit(copies[-1].test, list(tests)))
        return [seen.said for seen in (job.result() for job in jobs) if seen.failed is not False]


def judge(copy: Copy, mutant: Mutant) -> Judged:
    """Break the copy, look whether it is noticed, and mend it."""
    began = time.monotonic()
    before = apply(copy.root, mutant)
    try:
        seen = copy.check(mutant.caught_by)
    finally:
        _write(before)
    return Judged(mutant, seen, time.monotonic() - began)


def rows(mutants: Sequence[Mutant]) -> list[str]:
    """The table of `docs/mutants.md`, without figures."""
    lines = ["| break | rule | caught by |", "| --- | --- | --- |"]
    for mutant in mutants:
        words = mutant.caught_by.words.replace(" tests/", "`, `tests/")
        lines.append(f"| {mutant.name.replace('_', ' ')} | {mutant.rule} | `{words}` |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these breaks")
    parser.add_argument("--jobs", type=int, default=2, help="copies that work beside each other")
    parser.add_argument("--table", action="store_true", help="print the table of the document")
    args = parser.parse_args(argv)
    chosen = [m for m in MUTANTS if not args.only or m.name in args.only]
    unknown = set(args.only or ()) - {m.name for m in MUTANTS}
    if unknown or args.jobs < 1:
        parser.error(f"no such break: {', '.join(sorted(unknown))}" if unknown else "--jobs >= 1")
    out = sys.stdout
    if args.table:
        out.write("\n".join(rows(chosen)) + "\n")
        return 0
    for mutant in chosen:  # before anything is run
        for patch in mutant.patches:
            patched((ROOT / patch.path).read_text(encoding="utf-8"), patch)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="refold-mutants-") as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(args.jobs)]
        problems = unbroken(copies, chosen)
        for problem in problems:
            out.write(f"the unbroken tree fails: {problem}\n")
        if problems:
            return 1
        out.write(f"unbroken: all holds ({time.monotonic() - began:.0f} s)\n")
        out.flush()
        survived = _judge_all(copies, chosen)
    caught = len(chosen) - survived
    took = time.monotonic() - began
    out.write(f"{len(chosen)} breaks, {caught} caught, {survived} not, {took:.0f} s\n")
    return 1 if survived else 0


def _judge_all(copies: Sequence[Copy], mutants: Sequence[Mutant]) -> int:
    """Judge each and print a line for it; returns how many were not caught."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutant: Mutant) -> Judged:
        copy = free.get()
        try:
            return judge(copy, mutant)
        finally:
            free.put(copy)

    survived = 0
    with ThreadPoolExecutor(len(copies)) as pool:
        for mutant, seen, seconds in pool.map(one, mutants):
            verdict = {True: "caught", False: "SURVIVED", None: "NOT JUDGED"}[seen.failed]
            survived += seen.failed is not True
            sys.stdout.write(
                f"{verdict:10} {seconds:5.1f} s  {mutant.name}\n"
                f"{'':19}breaks: {mutant.rule}\n"
                f"{'':19}caught by: {mutant.caught_by.words}\n"
                f"{'':19}{seen.said[:200]}\n"
            )
            sys.stdout.flush()
    return survived


if __name__ == "__main__":
    sys.exit(main())
