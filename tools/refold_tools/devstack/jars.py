"""Brings the jars of a service with Maven into a cache that holds whole ones only."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from refold_tools.devstack.errors import JarsUnresolved, PrerequisiteMissing
from refold_tools.devstack.java import Java
from refold_tools.devstack.layout import KAFKA, KAFKA_VERSION, REGISTRY, REGISTRY_VERSION
from refold_tools.devstack.telling import Tell

POM = Path(__file__).with_name("pom.xml")
MAVEN_WITHIN_S = 1_800.0
VERSIONS = {KAFKA: KAFKA_VERSION, REGISTRY: REGISTRY_VERSION}
SIZES = {KAFKA: "44 MB", REGISTRY: "158 MB"}
"""What is fetched where Maven's own repository on this machine has nothing of it yet."""


def bring(service: str, cache: Path, java: Java, tell: Tell) -> Path:
    """The folder with the files of a service, fetched if the cache has none for this pom.

    A folder appears under its name once it is whole, so one that is there can be used.
    """
    return bring_from(POM, service, VERSIONS[service], SIZES[service], cache, java, tell)


def bring_from(
    pom: Path, profile: str, version: str, size: str, cache: Path, java: Java, tell: Tell
) -> Path:
    """The same of a profile of another pom, which puts its files into `files/`."""
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:10]
    whole = cache / f"{profile}-{version}-{digest}"
    if whole.is_dir():
        return whole
    what = f"{profile} {version}"
    maven = shutil.which("mvn")
    if maven is None:
        raise PrerequisiteMissing(
            f"the jars of {what} come through Maven, and there is no `mvn` on PATH",
            "install Maven 3.6.3 or newer (Debian and Ubuntu: apt install maven), "
            "then repeat `refold devstack up`",
        )
    cache.mkdir(parents=True, exist_ok=True)
    tell(f"{what}: fetching it with Maven ({size} the first time)")
    with tempfile.TemporaryDirectory(prefix="fetching-", dir=cache) as made:
        shutil.copy(pom, Path(made, "pom.xml"))
        command = [maven, "-B", "-Dstyle.color=never", "-P", profile, "generate-resources"]
        _run(command, Path(made), java, what, tell)
        try:
            Path(made, "files").rename(whole)
        except OSError:
            if not whole.is_dir():  # else another process was faster, with the same files
                raise
    return whole


def _run(command: list[str], folder: Path, java: Java, what: str, tell: Tell) -> None:
    said: list[str] = []
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "JAVA_HOME": str(java.home)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    limit = threading.Timer(MAVEN_WITHIN_S, process.kill)
    limit.start()
    try:
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line.rstrip())
                if name := downloading(line):
                    tell(f"{what}: {name}", passing=True)
    except BaseException:
        process.kill()
        raise
    finally:
        limit.cancel()
    if process.returncode:
        raise JarsUnresolved(what, reason(said))


def downloading(line: str) -> str:
    """The name of the file that a line of Maven's says it fetches, empty for any other line.

    >>> downloading("[INFO] Downloading from there: https://there/org/a/1/a-1.jar")
    'a-1.jar'
    >>> downloading("[INFO] BUILD SUCCESS")
    ''
    """
    found = re.search(r"Downloading from .*/([^/\s]+)\s*$", line)
    return found[1] if found else ""


def reason(said: list[str]) -> str:
    """The first line in which Maven says what is wrong; its last one is advice on its options.

    >>> reason(["[INFO] Scanning", "[ERROR] no such artifact -> [Help 1]", "[ERROR] To see more"])
    'no such artifact'
    """
    wrong = [one for one in said if one.startswith("[ERROR]")]
    first = (wrong or said or ["it said nothing"])[0]
    return first.removeprefix("[ERROR]").split(" -> [Help")[0].strip()[:300]
