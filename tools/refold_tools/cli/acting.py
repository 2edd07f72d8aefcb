"""The commands that ask for something: start, resolve, retry and cancel. A worker decides them."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold_tools.cli.asking import ask
from refold_tools.cli.inputs import read_json, zone_of
from refold_tools.cli.options import (
    ByOption,
    InputOption,
    JsonOption,
    LogOption,
    NameArgument,
    NewRunIdOption,
    RunIdArgument,
    WhyOption,
    WithinOption,
    asker,
)

if TYPE_CHECKING:
    from refold.client import Client
    from refold_schemas.commands import CancelRun, ResolveStep, RetryRun


def _ask(
    command: str,
    run_id: str,
    log: str | None,
    work: "Callable[[Client, asyncio.Event], Coroutine[Any, Any, int]]",
) -> int:
    """As `ask`, but a signal ends the waiting with a word about what was asked for.

    `work` sets its event once it has a worker's answer. Raises AskingInterrupted.
    """

    async def until_stopped(client: "Client") -> int:
        from refold_schemas.errors.cli import AskingInterrupted
        from refold_tools.cli.signals import stop_on_signals

        answered, stopped = asyncio.Event(), asyncio.Event()
        working = asyncio.create_task(work(client, answered))

        def stop() -> None:
            stopped.set()
            working.cancel()

        with stop_on_signals(stop):
            try:
                return await working
            except asyncio.CancelledError:
                if not stopped.is_set():
                    raise
                raise AskingInterrupted(
                    run_id, command, sent=bool(client.sent), answered=answered.is_set()
                ) from None

    return ask(log, until_stopped)


async def _patience(client: "Client", run_id: str, within: float | None) -> timedelta:
    """How long to wait for a decision on the run."""
    if within is not None:
        return timedelta(seconds=within)
    from refold.client.waiting import patience

    return await patience(client, run_id)


def start(
    name: NameArgument,
    given: InputOption = None,
    run_id: NewRunIdOption = None,
    version: Annotated[
        str | None, typer.Option("--version", help="Only in this version of the run function.")
    ] = None,
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Wait for the run's end, or until it waits for somebody."),
    ] = False,
    within: WithinOption = None,
    by: ByOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Ask for a run; a worker will do it. Returns once a worker has taken it.

    A run id that exists with the same name and input is that run: nothing is started twice.
    """
    data = read_json("--input", given)
    wanted = str(uuid.uuid4()) if run_id is None else run_id

    async def work(client: "Client", answered: asyncio.Event) -> int:
        from refold_schemas.values import check_run_id
        from refold_tools.cli.ending import finish, outcome_of
        from refold_tools.cli.output import print_json, say

        client.by = asker(by)
        check_run_id(wanted)
        patience = await _patience(client, wanted, within)
        handle = await client.start(name, data, run_id=wanted, version=version, within=patience)
        answered.set()
        told = f"started {handle.run_id}"
        status = ""
        if handle.existed or (as_json and not wait):
            status = (await handle.boundary()).status
        if handle.existed:
            told = f"{handle.run_id} was there already, with this input: {status}"
        if not wait:
            if as_json:
                seen = {"run_id": handle.run_id, "run": name, "status": status}
                print_json({**seen, "existed": handle.existed})
            else:
                say(told)
            return 0
        if not as_json:
            say(told, error=True)
        await handle.wait()
        return finish(await outcome_of(client, handle.run_id, zone_of()), as_json=as_json)

    return _ask("start", wanted, log, work)


def resolve(
    run_id: RunIdArgument,
    slot: Annotated[str, typer.Argument(metavar="SLOT", help="The slot in doubt.")],
    happened: Annotated[
        bool,
        typer.Option(
            "--happened", help="The effect is there: the far system says so by the effect key."
        ),
    ] = False,
    did_not_happen: Annotated[
        bool,
        typer.Option("--did-not-happen", help="The effect is not there and never will be."),
    ] = False,
    result: Annotated[
        str | None,
        typer.Option(
            "--result", metavar="JSON|@FILE", help="With --happened: what the step returned."
        ),
    ] = None,
    within: WithinOption = None,
    by: ByOption = None,
    why: WhyOption = "",
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Say of a step in doubt whether its effect happened; who said so and why is recorded."""
    from refold_schemas.errors.cli import UsageRefused

    if happened == did_not_happen:
        both = ", not both" if happened else ""
        raise UsageRefused(
            f"say --happened --result JSON or --did-not-happen{both}", "refold resolve"
        )
    if happened and result is None:
        raise UsageRefused(
            "--happened needs --result JSON, what the step returned (null if nothing)",
            "refold resolve",
        )
    if not happened and result is not None:
        raise UsageRefused("--did-not-happen takes no --result", "refold resolve")
    data = read_json("--result", result)

    async def work(client: "Client", answered: asyncio.Event) -> int:
        from refold_schemas.commands import ResolveStep

        state = await client.find(run_id)
        seen = None if state is None else state.slots.get(slot)
        # The word is about what stands in the record now, not about a later attempt.
        attempt = seen.attempts[-1].number if seen is not None and seen.attempts else None
        word = ResolveStep("", run_id, slot, attempt, happened, None, asker(by), why)
        await _refuse_in_advance(client, word)
        await client.resolve(
            run_id,
            slot,
            attempt=attempt,
            happened=happened,
            result=data,
            by=asker(by),
            why=why,
            within=await _patience(client, run_id, within),
        )
        answered.set()
        verdict = "happened" if happened else "did not happen"
        return await _accepted(client, run_id, f"{slot} {verdict}", as_json=as_json)

    return _ask("resolve", run_id, log, work)


def retry(
    run_id: RunIdArgument,
    slot: Annotated[
        str | None,
        typer.Option("--slot", metavar="SLOT", help="The failed slot to try again."),
    ] = None,
    fresh_key: Annotated[
        bool,
        typer.Option(
            "--fresh-key",
            help="Under the next generation of its effect key: providers replay stored failures.",
        ),
    ] = False,
    within: WithinOption = None,
    by: ByOption = None,
    why: WhyOption = "",
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Let a diverged or blocked run go on, or try the failure of a failed one again."""

    async def work(client: "Client", answered: asyncio.Event) -> int:
        from refold_schemas.commands import RetryRun

        await _refuse_in_advance(client, RetryRun("", run_id, slot, fresh_key, asker(by), why))
        await client.retry(
            run_id,
            slot=slot,
            fresh_key=fresh_key,
            by=asker(by),
            why=why,
            within=await _patience(client, run_id, within),
        )
        answered.set()
        return await _accepted(client, run_id, "it goes on", as_json=as_json)

    return _ask("retry", run_id, log, work)


def cancel(
    run_id: RunIdArgument,
    within: WithinOption = None,
    by: ByOption = None,
    why: WhyOption = "",
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """End a run: nothing new starts, what is open is settled first, then it is cancelled."""

    async def work(client: "Client", answered: asyncio.Event) -> int:
        from refold_schemas.commands import CancelRun

        await _refuse_in_advance(client, CancelRun("", run_id, asker(by), why))
        await client.cancel(
            run_id, by=asker(by), why=why, within=await _patience(client, run_id, within)
        )
        answered.set()
        return await _accepted(client, run_id, "cancellation asked for", as_json=as_json)

    return _ask("cancel", run_id, log, work)


async def _refuse_in_advance(
    client: "Client", command: "ResolveStep | RetryRun | CancelRun"
) -> None:
    """Where no worker lives, refuse at once what every worker will refuse."""
    from refold.client.pending import refuse_in_advance
    from refold_tools.cli.output import say

    await refuse_in_advance(client, command, lambda told: say(f"note: {told}", error=True))


async def _accepted(client: "Client", run_id: str, said: str, *, as_json: bool) -> int:
    from refold_projections.fold import sentence
    from refold_tools.cli.output import print_json, say

    seen = await client.boundary(run_id)
    zone = zone_of()
    words = sentence(seen, zone, datetime.now(zone).date())
    if as_json:
        print_json({"run_id": run_id, "status": seen.status, "sentence": words})
    else:
        say(f"recorded: {said}. {run_id}: {words}")
    return 0
