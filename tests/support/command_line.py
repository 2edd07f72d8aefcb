"""The command line in this process: where it runs, and what it answers as JSON."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from refold_tools.cli import main

VARIABLES = ("REFOLD_LOG", "REFOLD_DEBUG", "REFOLD_TIME_ZONE", "REFOLD_REGISTRY_URL", "NO_COLOR")


def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of what the environment says to the command line."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@contextmanager
def folder_with(
    module: str, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """`folder` is the working directory and holds a module, which is forgotten behind the block."""
    (folder / f"{module}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    plain_environment(monkeypatch)
    yield
    sys.modules.pop(module, None)


def answer_of(
    capsys: pytest.CaptureFixture[str], url: str, *arguments: str, code: int = 0
) -> dict[str, Any]:
    """What a command says with `--json` of the log at `url`, as the last line of stdout."""
    found = main([*arguments, "--json", "--log", url])
    out, err = capsys.readouterr()
    assert found == code, err + out
    payload: dict[str, Any] = json.loads(out.splitlines()[-1])
    return payload
