"""`refold gateway`: serves HTTP until a signal; and makes, lists and revokes its tokens."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold_tools.cli.options import JsonOption, LogFormatOption, LogOption, MetricsPortOption

if TYPE_CHECKING:
    from refold.client import Client
    from refold.gateway.metrics import GatewayMetrics
    from refold.gateway.settings import GatewaySettings
    from refold.gateway.tokens import Token
    from refold.telemetry.lines import Line
    from refold.telemetry.serving import Server
    from refold_tools.cli.observing import Observing

gateway = typer.Typer(
    help="Answer over HTTP what the command line answers, with roles.",
    invoke_without_command=True,
    add_completion=False,
)
tokens = typer.Typer(
    help="Make, list and revoke tokens of the gateway.", no_args_is_help=True, add_completion=False
)
gateway.add_typer(tokens, name="tokens")

ROLES = ("viewer", "operator", "approver", "admin")
VALID_DAYS = 90

TokensOption = Annotated[
    Path | None,
    typer.Option(
        "--tokens",
        metavar="FILE",
        help="The file of tokens. Default: REFOLD_GATEWAY_TOKENS, else .refold/tokens.json.",
        show_default=False,
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        help="Postgres with the tables, for lists. Default: REFOLD_DATABASE_URL.",
        show_default=False,
    ),
]


@gateway.callback()
def serve(
    context: typer.Context,
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="HOST", help="Default: REFOLD_GATEWAY_HOST, else 127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="PORT",
            min=0,
            max=65_535,
            help="Default: REFOLD_GATEWAY_PORT, else 8080; 0: any that is free.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Let everybody in, with every role: on this machine's address only."
        ),
    ] = False,
    file: TokensOption = None,
    database: DatabaseOption = None,
    metrics_port: MetricsPortOption = None,
    log_format: LogFormatOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Answer over HTTP until SIGINT or SIGTERM: then what is under way ends.

    Without a database it serves everything that needs the log alone, and says so for lists.
    """
    if context.invoked_subcommand is not None:
        return 0
    _check_installed()
    from refold.gateway.environment import settings_from
    from refold.settings import load_settings, log_url
    from refold_tools.cli.observing import observing

    settings = load_settings()
    seen = observing(settings, metrics_port, log_format)
    wanted = settings_from(
        log_url=log_url(log),
        database_url=database or settings.database_url,
        time_zone=settings.time_zone,
        insecure=insecure,
        host=host,
        port=port,
        tokens=file,
    )
    return asyncio.run(_serve(wanted, seen, as_json=as_json))


async def _serve(settings: "GatewaySettings", seen: "Observing", *, as_json: bool) -> int:
    from refold.gateway.serving import serve
    from refold_tools.cli.output import print_json, say
    from refold_tools.cli.signals import stop_on_signals

    opened: list[Server] = []
    lines: list[Line] = []

    def open_metrics(samples: "GatewayMetrics") -> None:
        server = seen.serve(lambda _: [samples])
        if server is not None:
            opened.append(server)

    def ready(url: str, client: "Client") -> None:
        facts = client.log.facts
        line = seen.lines("gateway", facts.namespace)  # what libraries and defects log, from now on
        metrics = f"http://{opened[0].host}:{opened[0].port}/metrics" if opened else None
        if line is not None:
            lines.append(line)
            line("info", "serving", f"serving {facts.namespace}", {"url": url, "metrics": metrics})
        if as_json:
            said = {"url": url, "namespace": facts.namespace, "insecure": settings.insecure}
            print_json({**said, "metrics": metrics})
        elif line is None:
            who = "everybody, with every role" if settings.insecure else "those with a token"
            lists = "with lists" if settings.database_url else "without lists: no database is set"
            at = "" if metrics is None else f"; metrics at {metrics}"
            say(f"serving {facts.namespace} in {client.log.url} at {url} for {who}, {lists}{at}")

    stopping = asyncio.Event()
    try:
        with stop_on_signals(stopping.set):
            await serve(settings, stopping, ready, on_open=open_metrics)
    finally:
        for server in opened:
            server.close()
    ending = "stopped; what was under way has ended"
    for line in lines:
        line("info", "stopped", ending, {})
    if as_json:
        print_json({"stopped": True})
    elif not lines:
        say(ending)
    return 0


@tokens.command("create")
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Who it is for, as commands record it.")
    ],
    role: Annotated[
        list[str], typer.Option("--role", help="viewer, operator, approver or admin; repeatable.")
    ],
    valid_days: Annotated[
        int,
        typer.Option("--valid-days", min=1, max=3_650, help="How long it is valid."),
    ] = VALID_DAYS,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", metavar="NAME", help="Whose log it is for. Default: the log's own."
        ),
    ] = None,
    file: TokensOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Make a token. Its secret is shown this once and kept nowhere."""
    _check_installed()
    from refold.gateway.environment import tokens_path
    from refold.gateway.roles import Role
    from refold.gateway.tokens import TokenFile, check_name
    from refold_schemas.errors.cli import UsageRefused
    from refold_tools.cli.inputs import check_one_of
    from refold_tools.cli.output import print_json, say

    command = "refold gateway tokens create"
    for one in role:
        check_one_of("--role", one, ROLES, command)
    try:
        check_name(name)
    except ValueError as error:
        raise UsageRefused(f"NAME: {error}", command) from None
    of = namespace or asyncio.run(_namespace(log))
    roles = frozenset(Role(one) for one in role)
    store = TokenFile(tokens_path(file))
    valid_s = timedelta(days=valid_days).total_seconds()
    token, secret = store.create(name, roles, of, valid_s=valid_s)
    if as_json:
        print_json({**_token_json(token), "token": secret})
        return 0
    until = _at(token.expires_s)
    say(f"made {token.token_id} for {name}: {', '.join(token.roles)} in {of}, until {until}")
    say("its secret, shown this once:", "bold")
    print(secret)
    return 0


@tokens.command("list")
def listed(file: TokensOption = None, as_json: JsonOption = False) -> int:
    """List tokens, the newest first; no secret is among what is kept."""
    _check_installed()
    from refold.gateway.environment import tokens_path
    from refold.gateway.tokens import TokenFile
    from refold_tools.cli.output import print_json, say, table

    found = TokenFile(tokens_path(file)).all()
    if as_json:
        print_json({"tokens": [_token_json(one) for one in found]})
        return 0
    if not found:
        say("no tokens")
        return 0
    table(
        ["ID", "NAME", "ROLES", "NAMESPACE", "STATE"],
        (
            [one.token_id, one.name, ", ".join(one.roles), one.namespace, _state(one)]
            for one in found
        ),
        {},
    )
    return 0


@tokens.command("revoke")
def revoke(
    wanted: Annotated[
        str, typer.Argument(metavar="ID|NAME", help="One by its id, or all of this name.")
    ],
    forget: Annotated[
        bool, typer.Option("--forget", help="Take its line out of the file too.")
    ] = False,
    file: TokensOption = None,
    as_json: JsonOption = False,
) -> int:
    """End tokens: gateways that read the file refuse them, and their sessions, within a second."""
    _check_installed()
    from refold.gateway.environment import tokens_path
    from refold.gateway.tokens import TokenFile
    from refold_tools.cli.output import print_json, say

    found = TokenFile(tokens_path(file)).revoke(wanted, forget=forget)
    if as_json:
        print_json({"revoked": [one.token_id for one in found]})
        return 0
    for one in found:
        say(f"revoked {one.token_id} of {one.name}")
    return 0


def _check_installed() -> None:
    """Raise GatewayPackageMissing, naming the extra."""
    from importlib.util import find_spec

    from refold_schemas.errors.gateway import GatewayPackageMissing

    for module in ("fastapi", "uvicorn", "jwt", "cryptography", "asyncpg"):
        if find_spec(module) is None:
            raise GatewayPackageMissing(module)


async def _namespace(log: str | None) -> str:
    from refold.log import open_log
    from refold.settings import log_url

    opened = open_log(log_url(log))
    await opened.open(create=False)
    try:
        return opened.facts.namespace
    finally:
        await opened.close()


def _token_json(token: "Token") -> dict[str, object]:
    return {
        "id": token.token_id,
        "name": token.name,
        "roles": list(token.roles),
        "namespace": token.namespace,
        "created": _at(token.created_s),
        "expires": _at(token.expires_s),
        "revoked": _at(token.revoked_s),
        "state": _state(token),
    }


def _state(token: "Token") -> str:
    if token.revoked_s is not None:
        return "revoked"
    if token.expires_s is not None and token.expires_s <= datetime.now(UTC).timestamp():
        return "expired"
    return f"valid until {_at(token.expires_s)}" if token.expires_s else "valid"


def _at(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
