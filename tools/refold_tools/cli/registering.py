"""`refold schemas register`, and what the tools do that make what is missing."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from refold_tools.cli.options import JsonOption

if TYPE_CHECKING:
    from refold_schemas.codec import Codec
    from refold_schemas.registry.subjects import Did


def register(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be registered.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Register all schemas of this version with the registry of REFOLD_REGISTRY_URL.

    What is there already is left alone; older versions go first; each subject is FULL_TRANSITIVE.
    """
    return asyncio.run(_register(dry_run=dry_run, as_json=as_json))


async def _register(*, dry_run: bool, as_json: bool) -> int:
    from refold.settings.registry import registry_access
    from refold_schemas.errors import RegistryUnset
    from refold_schemas.registry import FileRegistry
    from refold_schemas.registry.subjects import register as register_all
    from refold_tools.cli.output import print_json, say

    access = registry_access()
    if access is None:
        raise RegistryUnset
    files = FileRegistry()
    done: list[Did] = []
    async for one in register_all(access, files, dry_run=dry_run):
        done.append(one)
        if not as_json:
            say(_words(one, dry_run=dry_run))
    count = sum(one.what == "register" for one in done)
    already = len(files.all_ids()) - count
    if as_json:
        told = [one._asdict() for one in done]
        print_json(
            {"registry": access.url, "dry_run": dry_run, "did": told, "there_already": already}
        )
        return 0
    would = "would be registered" if dry_run else "registered"
    say(f"{access.url}: {count} {would}, {already} there already", "bold")
    return 0


def _words(one: "Did", *, dry_run: bool) -> str:
    from refold_schemas.registry.subjects import COMPATIBILITY

    if one.what == "set":
        return f"{'would set' if dry_run else 'set'} {COMPATIBILITY} for {one.name}"
    named = f"{one.name} version {one.version}"
    return f"would register {named}" if dry_run else f"registered {named}: id {one.schema_id}"


async def make_ready(log_url: str, codec: "Codec | None" = None) -> None:
    """Return once records of the log can be written; says what had to be registered for that.

    For the tools that make what is missing. Raises RegistryUnavailable, RegistryRefused.
    """
    from refold.client.registering import make_registered
    from refold_tools.cli.output import say

    made = await make_registered(log_url, codec)
    if made is not None:
        say(made, "dim", error=True)
