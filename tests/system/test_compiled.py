"""The compiled wheel is the same program: what a log holds and how a run goes on, tested on it."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
HELD_TO = (
    *("tests/unit/test_codec.py", "tests/unit/test_codec_golden.py"),
    *("tests/unit/test_fold_properties.py", "tests/unit/test_fold_keys.py"),
    *("tests/unit/test_canon.py", "tests/unit/test_values_models.py", "tests/unit/test_session.py"),
    "tests/conformance/test_memory_log.py",
    *("tests/simulation/test_engine_lives.py", "tests/simulation/test_kill_matrix.py"),
)
"""Bytes, fold, what run code sees, and whole lives with kills."""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with refold as its wheel carries it, compiled without optimizing."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        pytest.skip("there is no C compiler here: nobody compiles on this machine")
    made = tmp_path_factory.mktemp("compiled")
    environment = {
        **_environment(),
        "HATCH_BUILD_HOOK_ENABLE_CUSTOM": "1",
        "REFOLD_COMPILE_LEVEL": "0",
    }
    quiet = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    wheel = [*quiet, "wheel", "--no-deps", "--no-build-isolation", "-w", str(made / "wheel")]
    subprocess.run([*wheel, str(ROOT)], env=environment, check=True)
    (file,) = (made / "wheel").glob("*.whl")
    unpacked = made / "refold"
    subprocess.run([*quiet, "install", "--no-deps", "--target", unpacked, file], check=True)
    return unpacked


def _environment() -> dict[str, str]:
    """For a process of its own: without what the tests' runner and tracer keep for themselves."""
    own = ("PYTEST_", "COVERAGE_", "COV_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def _run(compiled: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**_environment(), "PYTHONPATH": str(compiled)}
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=ROOT, capture_output=True, text=True
    )


def _hook() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: dict[str, Any] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    return found


def _sources() -> list[Path]:
    hook = _hook()
    return [
        path.relative_to(ROOT)
        for pattern in hook["modules"]
        for path in ROOT.glob(pattern)
        if not any(path.relative_to(ROOT).match(plain) for plain in hook["plain"])
    ]


def _caught(function: ast.AST) -> dict[str, set[str]]:
    """Under which names a function catches which errors; one inside it stands for itself."""
    found: dict[str, set[str]] = {}
    within = [*ast.iter_child_nodes(function)]
    while within:
        node = within.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            found.setdefault(node.name, set()).add(ast.unparse(node.type))
        within += ast.iter_child_nodes(node)
    return found


def test_no_name_is_given_to_errors_of_two_types() -> None:
    """mypyc gives a name one type in a function: a second type caught under it is a TypeError."""
    twice = [
        f"{path}:{node.lineno}: {name} is {sorted(types)}"
        for path in _sources()
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for name, types in _caught(node).items()
        if len(types) > 1
    ]
    assert twice == []


def test_every_module_that_is_named_is_machine_code_and_the_version_says_so(compiled: Path) -> None:
    suffix = EXTENSION_SUFFIXES[0]
    named = {path.with_suffix("").relative_to(path.parts[0]) for path in _sources()}
    built = {
        path.relative_to(compiled).with_name(path.name.removesuffix(suffix))
        for path in compiled.rglob(f"*{suffix}")
    }
    assert named == built - {Path("refold__mypyc")}
    assert len(named) > 50
    said = _run(compiled, "-m", "refold_tools.cli", "--version")
    assert said.stdout.strip().endswith("(compiled)"), said
    plain = subprocess.run(
        [sys.executable, "-m", "refold_tools.cli", "--version"], capture_output=True, text=True
    )
    assert "compiled" not in plain.stdout, "the tests themselves run on plain Python"


def test_the_version_says_so_only_if_nothing_of_it_is_missing(compiled: Path) -> None:
    one = compiled / "refold" / "engine" / f"tail{EXTENSION_SUFFIXES[0]}"
    aside = one.rename(one.with_suffix(".aside"))
    try:
        said = _run(compiled, "-m", "refold_tools.cli", "--version")
    finally:
        aside.rename(one)
    assert said.returncode == 0, said
    assert "compiled" not in said.stdout


def test_it_keeps_what_plain_python_keeps(compiled: Path) -> None:
    done = _run(compiled, "-m", "pytest", "-q", "-p", "no:cacheprovider", *HELD_TO)
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-2_000:]
