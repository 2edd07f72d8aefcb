"""The commands about a namespace and its schemas."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_tools.cli.options import JsonOption, LogOption

if TYPE_CHECKING:
    from refold_schemas.registry import FileRegistry

namespace = typer.Typer(
    help="Make or show a namespace of a log.", no_args_is_help=True, add_completion=False
)
schemas = typer.Typer(
    help="List, show or check the schemas of the records.",
    no_args_is_help=True,
    add_completion=False,
)


@namespace.command("create")
def create(log: LogOption = None, as_json: JsonOption = False) -> int:
    """Make the log and its topics where they are missing; `?partitions=N` in its URL counts."""
    return asyncio.run(_namespace(log, create=True, as_json=as_json))


@namespace.command("show")
def show(log: LogOption = None, as_json: JsonOption = False) -> int:
    """Show a namespace: partitions, topics, how many records each holds, limits."""
    return asyncio.run(_namespace(log, create=False, as_json=as_json))


async def _namespace(given: str | None, *, create: bool, as_json: bool) -> int:
    from refold.log import Topic, open_log
    from refold.settings import log_url
    from refold_tools.cli.output import print_json, say

    log = open_log(log_url(given))
    made = await log.open(create=create)
    try:
        facts = log.facts
        ids = dict(zip(Topic, facts.topic_ids, strict=False))
        bounds = {
            topic: [await log.bounds(topic, one) for one in range(facts.partition_count)]
            for topic in Topic
        }
        if as_json:
            print_json(
                {
                    "log": log.url,
                    "namespace": facts.namespace,
                    "made": made,
                    "partitions": facts.partition_count,
                    "batch_size_max": facts.batch_size_max,
                    "topics": {
                        f"{facts.namespace}.{topic.value}": {
                            "id": ids.get(topic),
                            "bounds": [list(one) for one in bounds[topic]],
                        }
                        for topic in Topic
                    },
                }
            )
            return 0
        if create:
            say(f"{'made' if made else 'there already:'} namespace {facts.namespace} in {log.url}")
        say(
            f"namespace {facts.namespace}, {facts.partition_count} partition(s), "
            f"batches up to {facts.batch_size_max} bytes"
        )
        for topic in Topic:
            count = sum(end - start for start, end in bounds[topic])
            say(f"  {facts.namespace}.{topic.value:<12}  {count:>10,} offsets in use")
        return 0
    finally:
        await log.close()


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
