"""Whether a command that comes again under an id is the one that was decided under it."""

from refold_schemas.commands import (
    CancelRun,
    Command,
    RecordFinding,
    ResolveStep,
    RetryRun,
    StartRun,
)
from refold_schemas.errors.cli import CommandIdReused
from refold_schemas.events import (
    CommandRejected,
    FindingRecorded,
    RunCancelRequested,
    RunResumed,
    RunStarted,
    StepResolved,
)
from refold_schemas.values import canon_of

DECIDED_BY = {
    StartRun: RunStarted,
    ResolveStep: StepResolved,
    CancelRun: RunCancelRequested,
    RetryRun: RunResumed,
    RecordFinding: FindingRecorded,
}
"""The event that a command becomes where it is accepted."""


def check_same(command: Command, event: object) -> None:
    """Raise CommandIdReused where the first decision under an id was about another command."""
    kind = type(command).__name__
    if isinstance(event, CommandRejected):
        same, before = event.command_type == kind, event.command_type
    else:
        same, before = isinstance(event, DECIDED_BY[type(command)]), type(event).__name__
        if same and isinstance(command, ResolveStep) and isinstance(event, StepResolved):
            word = "done" if command.happened else "absent"
            same = (event.slot, event.verdict) == (command.slot, word)
            before = f"{event.slot}, {event.verdict}"
            if same and command.result is not None and event.result is not None:
                same = canon_of(command.result) == canon_of(event.result)
                before += ", with another result"
        if same and isinstance(command, RetryRun) and isinstance(event, RunResumed):
            same = event.fresh_key == command.fresh_key and command.slot in (None, event.slot)
            before = f"a retry of {event.slot or 'the run'}{' under a fresh key' * event.fresh_key}"
        if same and isinstance(command, RecordFinding) and isinstance(event, FindingRecorded):
            said = (command.finding_id, command.status)
            same, before = (event.finding_id, event.status) == said, f"finding {event.finding_id}"
        if same and isinstance(command, StartRun) and isinstance(event, RunStarted):
            same = command.run == event.run and canon_of(command.input) == canon_of(event.input)
            before = f"a start of {event.run} with other input"
    if not same:
        raise CommandIdReused(command.run_id, kind, command.command_id, before)
