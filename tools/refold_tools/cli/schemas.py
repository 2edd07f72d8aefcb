"""The commands about schemas: listed, shown, checked, and registered with a schema registry."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_tools.cli.options import JsonOption

if TYPE_CHECKING:
    from refold_schemas.registry import FileRegistry

schemas = typer.Typer(
    help="List, show, check or register the schemas of the records.",
    no_args_is_help=True,
    add_completion=False,
)


@schemas.command("list")
def list_schemas(as_json: JsonOption = False) -> int:
    """List the record types: id, name, version, fingerprints of the canonical form."""
    from refold_schemas.registry import FileRegistry, fingerprint
    from refold_tools.cli.output import print_json, table

    registry = FileRegistry()
    rows = [
        {
            "id": one,
            "name": registry.name_version(one)[0],
            "version": registry.name_version(one)[1],
            "sha256": registry.fingerprint(one),
            "rabin": fingerprint(registry.schema(one), "CRC-64-AVRO"),
        }
        for one in registry.all_ids()
    ]
    if as_json:
        print_json({"schemas": rows})
    else:
        columns = ["ID", "NAME", "VERSION", "RABIN", "SHA-256"]
        keys = ("id", "name", "version", "rabin", "sha256")
        table(columns, ([str(row[key]) for key in keys] for row in rows), {})
    return 0


@schemas.command("check")
def check_schemas(as_json: JsonOption = False) -> int:
    """Check files, ids, fingerprints, and that all versions of a record can read each other."""
    from refold_schemas.registry import FileRegistry
    from refold_tools.cli.output import print_json, say

    registry = FileRegistry()
    found = schema_problems(registry)
    names = {registry.name_version(one)[0] for one in registry.all_ids()}
    if as_json:
        print_json({"schemas": len(registry.all_ids()), "records": len(names), "problems": found})
        return 1 if found else 0
    for problem in found:
        say(problem, "bold red")
    said = f"{len(found)} problem(s)" if found else "all as released, FULL_TRANSITIVE"
    say(f"{len(registry.all_ids())} schemas of {len(names)} records: {said}")
    return 1 if found else 0


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
