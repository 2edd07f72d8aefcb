"""Compiles a Java program for a test, with Eclipse's compiler: a plain Java runs it."""

import subprocess
from pathlib import Path

from refold_tools.devstack import home
from refold_tools.devstack.jars import bring_from
from refold_tools.devstack.java import Java
from refold_tools.devstack.telling import quiet

POM = Path(__file__).with_suffix(".xml")
VERSION = "3.45.0"
SOURCE = "17"


def compile_java(source: Path, classes: Path, jars: Path, java: Java) -> None:
    """Put the classes of `source` into `classes`; `jars` is the folder of what it imports."""
    compiler = bring_from(POM, "java-compiler", VERSION, "3 MB", home() / "jars", java, quiet)
    command = [str(java.path), "-cp", f"{compiler}/*"]
    command += ["org.eclipse.jdt.internal.compiler.batch.Main"]
    command += ["-source", SOURCE, "-target", SOURCE, "-proceedOnError", "-nowarn"]
    command += ["-cp", ":".join(map(str, sorted(jars.glob("*.jar")))), "-d", str(classes)]
    done = subprocess.run(
        [*command, str(source)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
