"""How a run stands when a command stops waiting for it: what is printed, and the exit code."""

import time
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, NamedTuple

from refold.client.handle import end_error
from refold.client.words import Scene, explain
from refold_projections.fold import sentence
from refold_schemas.errors.base import RefoldError
from refold_schemas.errors.cli import RunInterrupted, RunStopped
from refold_schemas.values.plain import plain_value
from refold_tools.cli.failures import error_object
from refold_tools.cli.output import STATUS_STYLES, print_json, say

if TYPE_CHECKING:
    from refold.client import Client


class Outcome(NamedTuple):
    """A run's status and sentence, with its result or the error that says why there is none."""

    run_id: str
    status: str
    sentence: str
    result: object
    error: RefoldError | None


async def outcome_of(
    client: "Client", run_id: str, zone: tzinfo, *, interrupted: bool = False
) -> Outcome:
    """The run as it stands now. `interrupted`: a signal came before its end. Raises RunUnknown."""
    seen = await client.boundary_at(run_id)
    today = datetime.now(zone).date()
    said = sentence(seen.boundary, zone, today)
    status = seen.boundary.status
    if status == "completed":
        ended = seen.state.ended
        return Outcome(run_id, status, said, plain_value(ended.result if ended else None), None)
    error: RefoldError | None = end_error(run_id, seen.state.ended, seen.state.cancel)
    if error is None and interrupted:
        error = RunInterrupted(run_id, said)
    elif error is None:
        scene = Scene(
            seen.owner, seen.owner_lives, seen.released, zone, time.time_ns() // 1_000_000
        )
        explained = explain(seen.boundary, seen.state, said, scene)
        error = RunStopped(run_id, said, explained.next)
    return Outcome(run_id, status, said, None, error)


def finish(outcome: Outcome, *, as_json: bool) -> int:
    """Print how the run stands and return the exit code."""
    error = outcome.error
    if as_json:
        payload: dict[str, object] = {"run_id": outcome.run_id, "status": outcome.status}
        if error is None:
            payload["result"] = outcome.result
        else:
            payload["error"] = error_object(error)
        payload["sentence"] = outcome.sentence
        print_json(payload)
    elif error is None:
        say(f"{outcome.run_id}: {outcome.sentence}", STATUS_STYLES["completed"], error=True)
        print_json(outcome.result)
    else:
        say(f"refold: {error}", STATUS_STYLES.get(outcome.status, ""), error=True)
    return 0 if error is None else error.exit_code
