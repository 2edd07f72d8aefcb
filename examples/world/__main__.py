"""`python -m world`: the service in a process of its own, ready when it says READY."""

import argparse
import asyncio
import os
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from world.core import World
from world.ledger import LedgerUnusable
from world.server import serve
from world.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; exit 0 then, 2 with one sentence if it cannot start."""
    options = _parser().parse_args(arguments)
    try:
        settings = _settings(options.set, options.seed)
        with World(settings=settings, ledger=options.ledger) as world:
            asyncio.run(_serve(world, options.host, options.port, options.port_file))
    except (LedgerUnusable, ValueError) as error:
        sys.stderr.write(f"world: {error}\n")
        return 2
    except OSError as error:
        sys.stderr.write(
            f"world: {options.host}:{options.port} cannot be served: {error}. Nothing was done. "
            "Next: choose another --port; 0 takes a free one.\n"
        )
        return 2
    return 0


async def _serve(world: World, host: str, port: int, port_file: Path | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serve(world, host=host, port=port) as url:
        if port_file is not None:
            _write_port(port_file, url.rsplit(":", 1)[1])
        sys.stdout.write(f"READY {url}\n")
        sys.stdout.flush()
        await stop.wait()


def _write_port(port_file: Path, port: str) -> None:
    # Written aside and moved, so that whoever waits for the file never reads half of it.
    part = port_file.with_name(port_file.name + ".part")
    part.write_text(port)
    os.replace(part, port_file)


def _settings(assignments: Sequence[str], seed: int | None) -> Settings:
    changes: dict[str, int | str] = {}
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        changes[name] = int(value) if value.lstrip("-").isdecimal() else value
    # Without a seed every service is another world: ids and wordings are new each time.
    changes.setdefault("seed", secrets.randbits(32))
    if seed is not None:
        changes["seed"] = seed
    return Settings().but(changes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m world", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--ledger", type=Path, required=True, help="the SQLite file")
    parser.add_argument("--port-file", type=Path, help="where to write the port once it listens")
    parser.add_argument("--seed", type=int, help="makes lags, ids and wordings repeatable")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="e.g. credit_lag_ms=500"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
