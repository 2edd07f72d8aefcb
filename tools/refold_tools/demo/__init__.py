"""`refold demo`: an application of the examples loses its process for real, and finishes once."""

import asyncio
import importlib
import json
import signal
import sys
import tempfile
from collections.abc import Collection, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_schemas.errors.shell import shell_line

if TYPE_CHECKING:
    from refold.client import Client
    from refold_tools.demo.director import Told
    from refold_tools.demo.stories import Story

NAMES = ("refund-agent", "purchase-order", "recorded-agent")
NEXT = (
    "Next, your own code with a page to watch it: refold dev MODULE:APP (docs/howto/dev.md in a "
    "clone)"
)
DEATHS_MAX = 2
"""Of a file with many conversations only the first ones lose their process."""


def demo(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help=f"One of {', '.join(NAMES)}.")
    ] = NAMES[0],
    kill_at: Annotated[
        list[int] | None,
        typer.Option(
            "--kill-at",
            metavar="TURN",
            help="refund-agent: kill the worker at this turn (repeatable; default: 22 and 31).",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="recorded-agent: play the conversations of this file (JSON lines).",
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            "--log", metavar="URL", help="Keep the log there. Default: a temporary SQLite file."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what came of it as JSON, on the last line.")
    ] = False,
) -> int:
    """Watch an agent lose its process twice and finish with one refund.

    Starts vendors and a worker, each a process of its own, kills the worker with SIGKILL between
    an act and its record, shows what the record says before anybody works again, and starts
    another one. Exit 0 if the run completed and every effect was done exactly once.
    """
    from refold_schemas.errors.cli import UsageRefused
    from refold_tools.demo.errors import ExtraMissing

    if name not in NAMES:
        raise UsageRefused(
            f"there is no demo {name!r}; there are {', '.join(NAMES)}", "refold demo"
        )
    if kill_at and name != NAMES[0]:
        raise UsageRefused(f"--kill-at names turns of {NAMES[0]}, {name} has none", "refold demo")
    if file is not None and name != NAMES[2]:
        raise UsageRefused(f"--file is played by {NAMES[2]}, not by {name}", "refold demo")
    if not _has_aiohttp():
        raise ExtraMissing("aiohttp")
    examples = find_examples()
    sys.path.insert(0, str(examples))
    try:
        told = _run(_play(name, tuple(kill_at or ()), file, log, examples, as_json=as_json))
    finally:
        sys.path.remove(str(examples))
    if as_json:
        sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
    elif told["completed"]:
        sys.stdout.write(f"\n{NEXT}\n")
    return 0 if told["completed"] else 1


def _has_aiohttp() -> bool:
    """Whether the world and the applications can speak HTTP here."""
    try:
        return find_spec("aiohttp") is not None
    except ImportError:
        return False


def find_examples() -> Path:
    """The folder of the example applications: in the package of a wheel, else in the checkout."""
    from refold_tools.demo.errors import ExtraMissing

    package = Path(__file__).resolve().parents[1]
    for folder in (package / "examples", package.parents[1] / "examples"):
        if (folder / "world" / "__main__.py").is_file():
            return folder
    raise ExtraMissing("the folder of its examples")


def _run(work: Coroutine[Any, Any, dict[str, object]]) -> dict[str, object]:
    """Run it; Ctrl-C and SIGTERM end it in the usual way, after everything was stopped."""

    async def main() -> dict[str, object]:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError, ValueError):
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def _play(
    name: str,
    kill_at: tuple[int, ...],
    file: Path | None,
    url: str | None,
    examples: Path,
    *,
    as_json: bool,
) -> dict[str, object]:
    from refold.client.registering import make_registered
    from refold.log import open_log
    from refold_tools.demo.director import Director
    from refold_tools.demo.timeline import Timeline

    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    # With --json the timeline goes where it is in nobody's way.
    timeline = Timeline(sys.stderr if as_json else sys.stdout, zone)
    with tempfile.TemporaryDirectory(prefix="refold-demo-", ignore_cleanup_errors=True) as folder:
        log = open_log(absolute(url or f"sqlite:///{folder}/log.db"))
        await log.open(create=True)
        try:
            registered = await make_registered(log.url)
            if registered is not None:
                timeline.say("log", registered)
            kept = url is not None
            async with Director(log, examples, Path(folder), timeline, log_kept=kept) as director:
                told = [
                    await director.play(story)
                    for story in await _stories(name, kill_at, file, director.client)
                ]
        finally:
            await log.close()
    if url is not None:
        timeline.head(
            "The log is kept: "
            + shell_line("refold history", told[0].story.run_id, options=("--log", url))
        )
    return _summary(told)


def absolute(url: str) -> str:
    """The URL with the whole path of its file: the worker runs in another folder.

    >>> absolute("sqlite:////var/log.db?ns=a"), absolute("kafka://host:9092/a")
    ('sqlite:////var/log.db?ns=a', 'kafka://host:9092/a')
    """
    prefix = "sqlite:///"
    if not url.startswith(prefix) or url.startswith(prefix + "/"):
        return url
    return f"{prefix}{Path.cwd() / url.removeprefix(prefix)}"


async def _stories(
    name: str, kill_at: tuple[int, ...], file: Path | None, client: "Client"
) -> "Sequence[Story]":
    if name == NAMES[0]:
        from refold_tools.demo.refund import KILL_AT, RefundStory

        script = importlib.import_module("refund_agent.script")
        return [RefundStory(script, await _free(client, "order-48211"), kill_at or KILL_AT)]
    if name == NAMES[1]:
        from refold_tools.demo.purchase import PurchaseStory

        return [PurchaseStory(await _free(client, "purchase-PR-7"))]
    return await _conversations(file, client)


async def _conversations(file: Path | None, client: "Client") -> "Sequence[Story]":
    from refold_schemas.errors.cli import InputUnreadable
    from refold_tools.demo.recorded import RecordedStory

    module = importlib.import_module("recorded_agent.app")
    reader = importlib.import_module("recorded_agent.conversation")
    path = file or Path(str(module.__file__)).with_name("conversations.jsonl")
    try:
        conversations = reader.read_conversations(path)
    except reader.FileUnusable as error:
        raise InputUnreadable("--file", str(error)) from error
    stories: list[RecordedStory] = []
    deaths = 0
    for conversation in conversations:
        taken = {story.run_id for story in stories}
        run_id = await _free(client, conversation.id, taken)
        story = RecordedStory(module, conversation, run_id, dies=deaths < DEATHS_MAX)
        deaths += len(story.moments)
        stories.append(story)
    return stories


async def _free(client: "Client", run_id: str, taken: Collection[str] = ()) -> str:
    """`run_id`, with a number behind it if it is taken, or a log that was kept has it already."""
    number, free = 1, run_id
    while free in taken or await client.find(free) is not None:
        number += 1
        free = f"{run_id}-{number}"
    return free


def _summary(told: "Sequence[Told]") -> dict[str, object]:
    """One story as it is; of several the sums, with each of them behind."""
    if len(told) == 1:
        return told[0].as_json()
    effects: dict[str, int] = {}
    for one in told:
        for kind, count in one.effects.items():
            effects[kind] = effects.get(kind, 0) + count
    return {
        "demo": told[0].story.name,
        "completed": all(one.good for one in told),
        "kills": [kill for one in told for kill in one.kills],
        "sentence": next((one.sentences[0] for one in told if one.sentences), ""),
        "effects": effects,
        "executed_twice": [f"{one.story.run_id}: {s}" for one in told for s in one.executed_twice],
        "problems": [problem for one in told for problem in one.problems],
        "runs": [one.as_json() for one in told],
    }
