"""The house keeps its own rules: codes have pages, links lead somewhere, schemas are documented."""

import ast
import asyncio
import importlib
import json
import pkgutil
import re
import subprocess
import sys
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CODE = re.compile(r"R\d{3}")
PACKAGES = ("refold_schemas", "refold_projections", "refold", "refold_tools")
SOURCES = ("schemas", "projections", "services", "tools")
PAGE_SECTIONS = ["What happened", "What was kept", "What to do next"]
IMPORTED_AS = {
    "faust_streaming": "faust",
    "opentelemetry_exporter_otlp_proto_http": "opentelemetry",
    "opentelemetry_sdk": "opentelemetry",
    "pyjwt": "jwt",
    "pyyaml": "yaml",
}
LOCKS = tuple(f"requirements-{name}.lock" for name in ("demo", "services", "compile", "dev"))
ADR_SECTIONS = ["Context", "Choice", "What we gave up"]


@cache
def tracked() -> tuple[Path, ...]:
    """The files of the project: what git tracks or would; without git what is no build product."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        found = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    except (OSError, subprocess.CalledProcessError):  # a copy of the tree without its history
        found = [
            path
            for path in ROOT.rglob("*")
            if not any(part in (".git", ".venv", "__pycache__") for part in path.parts)
        ]
    return tuple(sorted(path for path in found if path.is_file()))


def python_files(*folders: str) -> list[Path]:
    roots = [ROOT / folder for folder in folders]
    return [p for p in tracked() if p.suffix == ".py" and any(p.is_relative_to(r) for r in roots)]


@cache
def error_classes() -> tuple[type[BaseException], ...]:
    """Every class with a code of its own, in all four packages, found by importing every module."""
    for package in PACKAGES:
        top = importlib.import_module(package)
        for module in pkgutil.walk_packages(top.__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)

    def below(cls: type[BaseException]) -> Iterator[type[BaseException]]:
        for sub in cls.__subclasses__():
            yield sub
            yield from below(sub)

    ours = {cls for cls in below(BaseException) if cls.__module__.split(".")[0] in PACKAGES}
    return tuple(sorted((c for c in ours if "code" in vars(c)), key=lambda c: c.__qualname__))


@cache
def warning_codes() -> frozenset[str]:
    """Codes that are no class: a warning names them in its text or passes them to `warn`."""
    found: set[str] = set()
    for path in python_files(*SOURCES):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "warn":
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Constant) and CODE.fullmatch(str(first.value)):
                    found.add(str(first.value))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(re.findall(r"\((R0\d\d)\)", node.value))
    return frozenset(found - {"R000"})


def sections(path: Path) -> list[str]:
    return re.findall(r"^## (.+)$", path.read_text(), re.MULTILINE)


# ---- errors


def test_every_error_class_has_a_code_of_its_own() -> None:
    codes = Counter(str(vars(cls)["code"]) for cls in error_classes())
    assert [code for code, count in codes.items() if count > 1] == []
    assert [code for code in codes if not CODE.fullmatch(code)] == []
    assert len(codes) > 40


def test_every_refold_error_says_its_own_code() -> None:
    from refold_schemas.errors import RefoldError

    unnamed = [
        cls.__qualname__
        for cls in RefoldError.__subclasses__()
        if "code" not in vars(cls) and cls.__module__.split(".")[0] in PACKAGES
    ]
    assert unnamed == []


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    known = {str(vars(cls)["code"]) for cls in error_classes()} | warning_codes()
    pages = {path.stem for path in (ROOT / "docs/errors").glob("R[0-9]*.md")}
    assert known - pages == {"R000"} & known, "codes without a page"
    assert pages - known == set(), "pages without a code"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs/errors").glob("R[0-9]*.md")), ids=lambda path: path.stem
)
def test_an_error_page_says_what_happened_what_was_kept_and_what_to_do_next(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(f"# {path.stem}: ")
    assert sections(path)[:3] == PAGE_SECTIONS
    bodies = re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]
    assert all(len(body.strip()) > 10 for body in bodies)
    for cls in error_classes():
        if vars(cls)["code"] == path.stem:
            assert cls.__name__ in text, "the page does not name its class"


# ---- documents


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub and most viewers make them."""
    heads = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", head.lower()) for head in heads)
    return {head.strip().replace(" ", "-") for head in plain}


def links() -> list[tuple[Path, str]]:
    found = []
    for path in tracked():
        if path.suffix == ".md":
            text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
            found += [(path, link) for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    return found


def test_every_relative_link_of_a_document_leads_somewhere() -> None:
    broken = []
    for path, link in links():
        if "://" in link or link.startswith("mailto:"):
            continue
        place, _, anchor = link.partition("#")
        target = path if not place else (path.parent / place).resolve()
        if not target.exists() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target)
        ):
            broken.append(f"{path.relative_to(ROOT)}: {link}")
    assert len(links()) > 30
    assert broken == []


def test_every_document_is_in_the_index() -> None:
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link).resolve() for path, link in links() if path == index}
    documents = {p for p in tracked() if p.suffix == ".md" and p.is_relative_to(ROOT / "docs")}
    errors = {p for p in documents if p.parent.name == "errors"}
    assert [str(p.relative_to(ROOT)) for p in sorted(documents - errors - linked - {index})] == []


def test_every_decision_has_context_choice_and_what_was_given_up() -> None:
    decisions = sorted((ROOT / "docs/adr").glob("*.md"))
    numbers = [int(path.name.split("-")[0]) for path in decisions]
    assert numbers == list(range(1, len(decisions) + 1)), "one number each, without a gap"
    assert {p.name: sections(p)[:3] for p in decisions} == {p.name: ADR_SECTIONS for p in decisions}


def test_the_commands_in_documents_are_make_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"(?:`|\$ )make ([a-z-]+)", (ROOT / name).read_text(), re.MULTILINE))
        assert named, f"{name} names no command"
        assert named - targets == set(), name
    assert {"demo", "test"} <= targets


def test_the_refold_commands_in_documents_exist() -> None:
    from refold_tools.cli.table import COMMANDS

    known = {entry.name for entry in COMMANDS}
    named: dict[str, str] = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for name in re.findall(r"(?:`|\$ )refold ([a-z]+)", path.read_text(), re.MULTILINE):
            named[name] = path.name
    assert {name: place for name, place in named.items() if name not in known} == {}
    assert len(named) > 8


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def test_the_code_in_documents_is_python_and_imports_what_exists() -> None:
    count = 0
    for path in tracked():
        if path.suffix != ".md":
            continue
        for block in python_blocks(path):
            # In a function, since a document may show the middle of one.
            tree = ast.parse("async def shown():\n" + textwrap.indent(block, "    "))
            for node in ast.walk(tree):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("refold"):
                    module = importlib.import_module(str(node.module))
                    assert [a.name for a in node.names if not hasattr(module, a.name)] == [], path
            count += 1
    assert count > 8


def test_the_example_of_the_front_page_runs() -> None:
    from refold import Client
    from refold.log.memory import MemoryLog
    from refold.worker import Worker

    example: dict[str, Any] = {"__name__": "front_page"}
    exec(compile(python_blocks(ROOT / "README.md")[0], "README.md", "exec"), example)

    async def play() -> tuple[object, str]:
        log = MemoryLog("memory://front-page")
        await log.open(create=True)
        worker = Worker(example["app"], log)
        serving = asyncio.create_task(worker.run())
        async with Client(log) as client:
            handle = await client.start("refund-agent", "48211", run_id="order-48211")
            result = await handle.result()
            status = (await handle.boundary()).status
        worker.stop()
        await serving
        await log.close()
        return result, status

    assert asyncio.run(play()) == ("refund of 4160 for 48211", "completed")
    assert list(example["paid"].values()) == ["refund of 4160 for 48211"]


# ---- schemas


def undocumented(schema: Any, place: str) -> Iterator[str]:
    """Records, enums and fields of an Avro schema that say nothing about themselves."""
    if isinstance(schema, list):
        for branch in schema:
            yield from undocumented(branch, place)
    elif isinstance(schema, dict):
        if schema.get("type") in ("record", "enum") and not schema.get("doc", "").strip():
            yield place
        for field in schema.get("fields", ()):
            here = f"{place}.{field['name']}"
            if not field.get("doc", "").strip():
                yield here
            yield from undocumented(field["type"], here)
        for inner in ("items", "values"):
            yield from undocumented(schema.get(inner), place)
        if isinstance(schema.get("type"), (dict, list)):
            yield from undocumented(schema["type"], place)


def test_every_record_and_field_of_the_schemas_is_documented() -> None:
    files = [path for path in tracked() if path.suffix == ".avsc"]
    assert len(files) > 20
    bare = [
        place for path in files for place in undocumented(json.loads(path.read_text()), path.name)
    ]
    assert bare == []


# ---- what must not be in the tree


def test_no_file_names_a_home_directory_or_a_package_index() -> None:
    # Put together here, so that this file is not a hit itself.
    words = [
        "/" + "home/",
        "/" + "root/",
        "/" + "Users/",
        "py" + "pi.org",
        "pythonhosted" + ".org",
        "--index" + "-url",
        "--extra-index" + "-url",
        "--find" + "-links",
        "--trusted" + "-host",
    ]
    hits = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "replace")
        hits += [f"{path.relative_to(ROOT)}: {word}" for word in words if word in text]
    assert hits == []


def test_lock_files_pin_every_package_with_hashes_and_agree() -> None:
    pins: dict[str, dict[str, str]] = {}
    for name in LOCKS:
        text = (ROOT / name).read_text()
        assert not re.search(r"^\s*-(?!-hash)", text, re.MULTILINE), "a lock holds pins only"
        blocks = re.split(r"\n(?=\S)", text.strip())
        for block in blocks:
            pin = re.match(r"([a-z0-9.-]+)==(\S+)", block)
            assert pin, block.splitlines()[0]
            assert "--hash=sha256:" in block, f"{name}: {pin[1]} has no hash"
            pins.setdefault(name, {})[pin[1]] = pin[2]
    dev = pins["requirements-dev.lock"]
    for name in LOCKS:
        differing = {one for one, version in pins[name].items() if dev.get(one) != version}
        assert differing == set(), f"{name} pins others than requirements-dev.lock"
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in LOCKS if f"-o {name}" not in makefile] == []
    assert {path.name for path in ROOT.glob("requirements*")} == set(LOCKS)


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def names(requirements: list[str]) -> set[str]:
        bare = (re.split(r"[<>=\[; ]", r)[0].replace("-", "_").lower() for r in requirements)
        return {IMPORTED_AS.get(name, name) for name in bare}

    declared = names(project["dependencies"])
    extra = {name: names(requirements) for name, requirements in extras.items()}
    demo, kafka = extra["demo"], extra["kafka"]
    everything = set().union(*extra.values())
    ours = {*PACKAGES, "chaos", "support", "model", "mutants", "world"}
    ours |= {p.stem if p.suffix else p.name for p in (ROOT / "examples").iterdir()}
    allowed = {
        "schemas": declared | extra["registry"],
        "projections": declared | extra["postgres"],
        # the conformance suite and the pytest plugin are for people who have pytest
        "services": declared
        | kafka
        | extra["gateway"]
        | extra["live"]
        | extra["signing"]
        | extra["telemetry"]
        | {"pytest"},
        # the bench measures what a Kafka transaction would cost, where Kafka's clients are there
        "tools": declared | demo | kafka | extra["export"],
        "examples": declared | demo | kafka,
        "tests": declared | everything,
    }
    missing = []
    for folder, known in allowed.items():
        local = {p.stem for p in python_files(folder)} if folder in ("tests", "examples") else set()
        for path in python_files(folder):
            for name in imported(path) - known - ours - local:
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []


def imported(path: Path) -> set[str]:
    """First names of what a file imports from outside the standard library, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names)


def test_every_module_says_in_one_sentence_what_it_is() -> None:
    bare = [
        str(path.relative_to(ROOT))
        for path in python_files(*SOURCES, "examples", "tests")
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert bare == []


def test_the_changelog_has_an_unreleased_section_and_falling_versions() -> None:
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    numbers = [tuple(int(part) for part in head.split(".")) for head in heads[1:]]
    assert all(later > earlier for later, earlier in pairwise(numbers))


def test_the_ci_script_and_the_makefile_name_no_file_that_is_missing() -> None:
    text = (ROOT / "Makefile").read_text() + (ROOT / ".ci/run").read_text()
    named = set(re.findall(r"\b(?:tests|requirements)[\w/-]*\.(?:py|lock)\b", text))
    assert {name for name in named if not (ROOT / name).exists()} == set()
