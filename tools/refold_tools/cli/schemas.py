"""The commands about schemas: listed, shown, checked, and registered with a schema registry."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_tools.cli.options import JsonOption
from refold_tools.cli.registering import register

if TYPE_CHECKING:
    from refold_schemas.registry import FileRegistry
    from refold_schemas.registry.subjects import Subject

schemas = typer.Typer(
    help="List, show, check or register the schemas of the records.",
    no_args_is_help=True,
    add_completion=False,
)
schemas.command("register")(register)


async def survey() -> "tuple[Subject, ...] | None":
    """What the registry of the environment has; None where none is set."""
    from refold.settings.registry import registry_access
    from refold_schemas.registry import FileRegistry
    from refold_schemas.registry.subjects import survey as look

    access = registry_access()
    return None if access is None else await look(access, FileRegistry())


@schemas.command("list")
def list_schemas(as_json: JsonOption = False) -> int:
    """List the record types: id, name, version, fingerprints of the canonical form.

    With REFOLD_REGISTRY_URL also the registry's id of each.
    """
    from refold_schemas.registry import FileRegistry, fingerprint
    from refold_tools.cli.output import print_json, table

    registry = FileRegistry()
    subjects = asyncio.run(survey())
    outer = {(one.name, v): given for one in subjects or () for v, given in one.ids.items()}
    rows = []
    for one in registry.all_ids():
        name, version = registry.name_version(one)
        rows.append(
            {
                "id": one,
                "registry_id": outer.get((name, version)),
                "name": name,
                "version": version,
                "sha256": registry.fingerprint(one),
                "rabin": fingerprint(registry.schema(one), "CRC-64-AVRO"),
            }
        )
    if as_json:
        print_json({"schemas": rows})
        return 0
    columns = {"id": "ID", "name": "NAME", "version": "VERSION", "rabin": "RABIN"}
    columns["sha256"] = "SHA-256"
    if subjects is not None:
        columns = {"id": "ID", "registry_id": "REGISTRY", **columns}
    texts = ([str("-" if row[key] is None else row[key]) for key in columns] for row in rows)
    table(list(columns.values()), texts, {})
    return 0


@schemas.command("check")
def check_schemas(as_json: JsonOption = False) -> int:
    """Check files, ids, fingerprints, and that all versions of a record can read each other.

    With REFOLD_REGISTRY_URL also that the registry has them, and would take what it lacks.
    """
    from refold_schemas.registry import FileRegistry
    from refold_tools.cli.output import print_json, say

    registry = FileRegistry()
    found = schema_problems(registry)
    subjects = asyncio.run(survey())
    if subjects is not None:
        found += subject_problems(subjects)
    names = {registry.name_version(one)[0] for one in registry.all_ids()}
    notes = [note for one in subjects or () for note in _notes(one)]
    if as_json:
        print_json(
            {
                "schemas": len(registry.all_ids()),
                "records": len(names),
                "problems": found,
                "notes": notes,
                "registry": subjects is not None,
            }
        )
        return 1 if found else 0
    for problem in found:
        say(problem, "bold red")
    for note in notes:
        say(note, "yellow")
    where = "" if subjects is None else ", here and in the registry"
    said = f"{len(found)} problem(s)" if found else f"all as released, FULL_TRANSITIVE{where}"
    say(f"{len(registry.all_ids())} schemas of {len(names)} records: {said}")
    return 1 if found else 0


def subject_problems(subjects: "tuple[Subject, ...]") -> list[str]:
    """What of a registry keeps this version from writing, one sentence each."""
    from refold_schemas.registry.subjects import COMPATIBILITY

    found: list[str] = []
    for one in subjects:
        for version in one.missing:
            if version in one.unfit:
                what = "is not registered, and not compatible with what stands under its name"
            else:
                what = "is not registered: `refold schemas register`"
            found.append(f"{one.name} version {version} {what}")
        if one.compatibility != COMPATIBILITY and len(one.missing) < len(one.ids):
            has = one.compatibility or "the registry's own"
            found.append(f"{one.name}: its compatibility is {has}, not {COMPATIBILITY}")
    return found


def _notes(one: "Subject") -> list[str]:
    if not one.foreign:
        return []
    ids = ", ".join(str(found) for found in one.foreign)
    return [f"{one.name} has other versions there (ids {ids}): a newer refold's, or somebody's"]


def schema_problems(registry: "FileRegistry") -> list[str]:
    """What is wrong with a registry's files, one sentence each. Raises RegistryUnreadable."""
    from refold_schemas.errors import RegistryUnreadable, SchemaChanged
    from refold_schemas.registry import incompatibilities

    found = [f"{path} has no id in ids.json" for path in registry.files_without_id()]
    versions: dict[str, dict[int, Any]] = {}
    for one in registry.all_ids():
        name, version = registry.name_version(one)
        try:
            versions.setdefault(name, {})[version] = registry.schema(one)
        except (RegistryUnreadable, SchemaChanged) as error:
            found.append(error.message)
    for name, schemas in versions.items():
        found += (
            f"{name}: version {one.reader} cannot read version {one.writer} ({one.reason})"
            for one in incompatibilities(schemas)
        )
    return found


@schemas.command("show")
def show_schema(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME|ID", help="As listed; the short name of a record will do."),
    ],
    version: Annotated[int | None, typer.Option("--version", help="Default: the newest.")] = None,
    as_json: JsonOption = False,
) -> int:
    """Show one schema as Avro's JSON."""
    from refold_schemas.errors.cli import SchemaAbsent
    from refold_schemas.registry import FileRegistry
    from refold_tools.cli.output import print_json, say

    registry = FileRegistry()
    found = None
    for one in registry.all_ids():
        full, number = registry.name_version(one)
        named = name in (str(one), full, full.rpartition(".")[2])
        if named and (version is None or version == number or name == str(one)):
            found = one if found is None else max(found, one)
    if found is None:
        raise SchemaAbsent(name if version is None else f"{name} version {version}")
    full, number = registry.name_version(found)
    schema = registry.schema(found)
    if as_json:
        print_json({"id": found, "name": full, "version": number, "schema": schema})
    else:
        say(json.dumps(schema, indent=2, ensure_ascii=False))
    return 0
