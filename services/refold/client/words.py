"""What events and boundaries mean, in words for people. Pure."""

from datetime import date, tzinfo
from typing import NamedTuple

from refold_projections.fold import FOR_A_PERSON, Boundary, RunState, Slot, moment, moment_near
from refold_projections.fold.boundary import OpenStep
from refold_projections.fold.state import UNSETTLED
from refold_schemas.errors.base import told
from refold_schemas.errors.shell import shell_line
from refold_schemas.events import (
    AmountsDeclared,
    AttemptReported,
    CommandEmitted,
    CommandParked,
    CommandRejected,
    CursorAdvanced,
    Event,
    EvidenceConflict,
    FindingRecorded,
    PartitionClaimed,
    PartitionReleased,
    PlanDeclared,
    RunBlocked,
    RunCancelled,
    RunCancelRequested,
    RunCompleted,
    RunDiverged,
    RunFailed,
    RunResumed,
    RunStarted,
    StepCompleted,
    StepFailed,
    StepInDoubt,
    StepIntended,
    StepResolved,
    TimerCancelled,
    TimerFired,
    TimerScheduled,
)
from refold_schemas.values import Value

SHOWN_MAX = 60


class Line(NamedTuple):
    """One event in words: its name, the slot it is about (or empty), and what it says."""

    event: str
    slot: str
    what: str


def seconds(duration_ms: int) -> str:
    """A duration as people write it.

    >>> seconds(1500), seconds(60_000), seconds(7_200_000), seconds(86_400_000)
    ('1.5 s', '1 min', '2 h', '1 d')
    """
    for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if duration_ms >= unit_ms and duration_ms % unit_ms == 0:
            return f"{duration_ms // unit_ms} {unit}"
    return f"{duration_ms / 1000:g} s"


def short(text: str) -> str:
    """A text cut to one line of SHOWN_MAX characters."""
    flat = " ".join(text.split())
    return flat if len(flat) <= SHOWN_MAX else flat[: SHOWN_MAX - 1] + "…"


def value_words(value: Value | None) -> str:
    """A stored value, cut."""
    if value is None:
        return ""
    if value.body is None:
        return f"(digest, {value.ref.size if value.ref else 0} bytes)"
    return short(value.body.decode("utf-8", "replace"))


def event_words(event: Event, zone: tzinfo, today: date) -> Line:
    """One event as a line of `refold history`."""
    name = type(event).__name__
    slot = getattr(event, "slot", None) or ""
    return Line(name, slot, _what(event, zone, today))


def _what(event: Event, zone: tzinfo, today: date) -> str:
    match event:
        case PartitionClaimed(owner=owner, app=app):
            return f"{owner} owns the partition now, with app {app}"
        case PartitionReleased(reason=reason):
            return f"handed over: {reason}"
        case RunStarted(run=run, version=version, input=given, started_by=by):
            return f"{run} version {version} by {by}, input {value_words(given)}"
        case PlanDeclared(steps=steps):
            return f"plan: {', '.join(steps)}"
        case AmountsDeclared(step=step, arguments=arguments):
            named = ", ".join(arguments)
            return f"amounts of {step}: {named}" if named else f"{step} has no amounts any more"
        case StepIntended(attempt=attempt, policy=policy, effect_key=key, timeout_ms=timeout_ms):
            return f"attempt {attempt}, {policy}, key {key}, timeout {seconds(timeout_ms)}"
        case StepCompleted(attempt=attempt, unrecordable=None, result=result):
            return f"attempt {attempt} returned {value_words(result)}"
        case StepCompleted(attempt=attempt, unrecordable=lost):
            reason = "" if lost is None else f" ({lost.type} at {lost.path}: {lost.reason})"
            return f"attempt {attempt} returned what cannot be stored{reason}"
        case StepFailed(attempt=attempt, error=error, final=final):
            after = "for good" if final else "it will be tried again"
            why = short(told(error.message).brief)
            return f"attempt {attempt} did not act: {error.type}: {why}, {after}"
        case StepInDoubt(attempt=attempt, reason=reason, escalated=escalated):
            tail = "; a person must say" if escalated else ""
            return f"attempt {attempt}: {reason}{tail}"
        case StepResolved():
            return _resolved_words(event)
        case AttemptReported(attempt=attempt, outcome=outcome, reporter=reporter):
            return f"{reporter} reports attempt {attempt}: {outcome.replace('_', ' ')}"
        case EvidenceConflict(attempt=attempt, settled=settled, evidence=evidence):
            return f"attempt {attempt} was settled as {settled}, evidence says {evidence}"
        case FindingRecorded(kind=kind, status=status, detail=detail, by=by, why=why):
            said = {"open": "", "agreed": "settled: ", "accepted": f"dealt with by {by}: "}
            told_why = f" ({why})" if why else ""
            return f"{kind}: {said.get(status, f'{status}: ')}{told(detail).brief}{told_why}"
        case CursorAdvanced(cursor=cursor, total=total):
            return f"{cursor} of {total} items"
        case TimerScheduled(kind=kind, deadline_ms=deadline_ms):
            return f"{kind} until {moment(deadline_ms, zone, today)}"
        case TimerFired(timer_id=timer_id):
            return f"{timer_id} was due"
        case TimerCancelled(timer_id=timer_id):
            return f"{timer_id} is not needed any more"
        case RunDiverged(detail=detail):
            return detail
        case RunBlocked(reason=reason, detail=detail):
            return f"{reason}: {detail}"
        case RunResumed(by=by, why=why, slot=slot):
            who = f" by {by}" if by else " by matching code"
            again = f", {slot} is tried again" if slot else ""
            return f"resumed{who}{f': {why}' if why else ''}{again}"
        case RunCancelRequested(by=by, why=why):
            return f"by {by}{f': {why}' if why else ''}"
        case RunCompleted(result=result):
            return f"result {value_words(result)}"
        case RunFailed(error=error):
            return f"{error.type}: {short(told(error.message).brief)}"
        case RunCancelled(reason=reason):
            return reason
        case CommandRejected(command_type=kind, reason=reason, detail=detail):
            return f"{kind or 'a command'} refused ({reason}): {told(detail).brief}"
        case CommandParked(command_offset=offset, state=state, detail=detail):
            return f"command at offset {offset}, {state}: {told(detail).brief}"
        case CommandEmitted(command_type=kind, command_offset=offset, partition=place):
            return f"{kind} at offset {offset} is sent to partition {place}, where its run is"


def _resolved_words(event: StepResolved) -> str:
    who = {
        "lookup": "the lookup says",
        "person": f"{event.by or 'a person'} says",
        "late_report": "a late report says",
        "owner": "its owner knows",
    }.get(event.evidence, f"{event.evidence} says")
    verdict = {
        "done": f"it happened, result {value_words(event.result)}",
        "absent": "it did not happen",
        "failed": "it was refused",
        "never_started": "it never started",
    }.get(event.verdict, event.verdict)
    why = f" ({event.why})" if event.why else ""
    return f"attempt {event.attempt}: {who} {verdict}{why}"


class Explained(NamedTuple):
    """Why a run stands where it stands: sentences, and the commands that a person may type.

    `next` is what moves it, in one sentence, as an error says it.
    """

    sentences: tuple[str, ...]
    commands: tuple[str, ...]
    next: str

    @property
    def text(self) -> str:
        """The paragraph."""
        return " ".join(self.sentences)


class Scene(NamedTuple):
    """What `explain` needs beside the run: who owns its partition, and how to write times.

    `owner_lives`: None where nobody can say. `orders`: sentences on commands that wait or were
    refused.
    """

    owner: str
    owner_lives: bool | None
    released: bool
    zone: tzinfo
    now_ms: int
    orders: tuple[str, ...] = ()
    refold: str = "refold"


def explain(seen: Boundary, state: RunState, sentence: str, scene: Scene) -> Explained:
    """What is known of a run, since when, on what evidence, and what moves it next."""
    said = [f"Run {seen.run_id} ({seen.run}, version {seen.version}): {sentence}."]
    commands: list[str] = []
    for entry in seen.in_doubt:
        _doubt(entry, state.slots[entry.slot], seen, scene, said, commands)
    for entry in seen.under_way:
        slot = state.slots[entry.slot]
        attempt = next(a for a in slot.attempts if a.number == entry.attempt)
        deadline = moment_near(entry.since_ms + attempt.timeout_ms, scene.zone, scene.now_ms)
        since = moment_near(entry.since_ms, scene.zone, scene.now_ms)
        said.append(
            f"{entry.slot}, attempt {entry.attempt}, is being executed by {scene.owner} since "
            f"{since}; if it has not ended by {deadline} "
            f"it will be in doubt and its policy ({entry.policy}) decides."
        )
    _by_status(seen, state, scene, said, commands)
    if seen.conflicts:
        said.append(
            f"Evidence contradicts what was settled for {', '.join(seen.conflicts)}: refold "
            "repairs nothing there; compare the far system with the record."
        )
        commands.append(shell_line(f"{scene.refold} history", seen.run_id))
    for finding in sorted(state.findings.values()):
        if finding.is_open:
            at = moment_near(finding.at_ms, scene.zone, scene.now_ms)
            said.append(f"A reconciliation found at {at} ({finding.kind}): {finding.detail}.")
            if is_ours(finding.command):
                commands.append(finding.command)
    said.extend(scene.orders)
    ended = seen.status in ("completed", "failed", "cancelled")
    advice = _advice(seen, state, scene, commands)
    if not ended and (scene.released or scene.owner_lives is False):
        if seen.needs in ("person", "code"):
            said.append(f"No live worker owns its partition now: {advice}.")
        else:
            said.append("No live worker owns its partition now: start one and it goes on.")
        commands.append(f"{scene.refold} worker MODULE:APP")
    return Explained(tuple(said), tuple(commands), advice)


def _advice(seen: Boundary, state: RunState, scene: Scene, commands: list[str]) -> str:
    """What moves the run, for somebody who has read how it stands."""
    worker = f"`{scene.refold} worker MODULE:APP`"
    retry = f"`{shell_line(f'{scene.refold} retry', seen.run_id)}`"
    parked = state.parked
    if seen.status == "diverged":
        return (
            f"deploy the code that matches; then a worker with it goes on by itself ({worker}), or "
            f"{retry} to let the present code compare again"
        )
    if seen.status == "blocked" and parked is not None:
        if parked.reason in FOR_A_PERSON:
            return f"repair the cause, say {retry} and have a worker running to take it ({worker})"
        return (
            f"deploy code that can continue it; then a worker with it goes on by itself ({worker})"
        )
    if seen.needs == "person" and commands:
        said = " or ".join(f"`{one}`" for one in commands)
        return f"say it with {said}, and have a worker running to take it ({worker})"
    return f"`{shell_line(f'{scene.refold} why', seen.run_id)}`"


def _doubt(
    entry: OpenStep,
    slot: Slot,
    seen: Boundary,
    scene: Scene,
    said: list[str],
    commands: list[str],
) -> None:
    attempt = next(a for a in slot.attempts if a.number == entry.attempt)
    since = moment_near(entry.since_ms, scene.zone, scene.now_ms)
    reason = entry.reason or "the process that ran it ended before an outcome was recorded"
    others = sum(1 for a in slot.attempts if a.status in UNSETTLED) - 1
    said.append(
        f"{entry.slot}, attempt {entry.attempt}, was intended at {since} under the effect key "
        f"{entry.effect_key} and nobody knows whether it acted: {reason}."
        + (f" {others} more of its attempts are open." if others else "")
    )
    facts = sorted(fact for a in slot.attempts for fact in a.evidence)
    if facts:
        said.append(f"Reported of it: {', '.join(fact.replace('_', ' ') for fact in facts)}.")
    wait = seconds(round((attempt.timeout_ms + attempt.settle_ms) * 1.01))
    person = entry.escalated or entry.policy == "escalate"
    if person:
        said.append(
            f"Its policy is {entry.policy}, and a person must say what happened: look it up in "
            "the far system by that key."
        )
        for said_of_it in (("--happened", "--result", "JSON"), ("--did-not-happen",)):
            resolve = f"{scene.refold} resolve"
            commands.append(shell_line(resolve, seen.run_id, entry.slot, options=said_of_it))
    elif entry.policy == "keyed":
        said.append(
            "Its policy is keyed: the owner repeats it under the same key while the key surely "
            "lives, and asks a lookup or a person after that."
        )
    else:
        said.append(
            f"Its policy is {entry.policy}: an owner looks it up by that key, at once. Found "
            "settles it; absent is believed, by an owner that did not see its end, only "
            f"{wait} after its own claim (timeout and settle), and is asked again then."
        )


def _by_status(
    seen: Boundary, state: RunState, scene: Scene, said: list[str], commands: list[str]
) -> None:
    retry = shell_line(f"{scene.refold} retry", seen.run_id)
    at = moment_near(state.changed_ms, scene.zone, scene.now_ms)
    match seen.status:
        case "completed":
            said.append(f"It completed at {at}; nothing is left to do.")
        case "failed":
            said.append(f"It failed at {at}: {seen.reason}. Nothing of it moves by itself.")
            commands.append(retry)
        case "cancelled":
            said.append(f"It was cancelled; its end was recorded at {at}.")
        case "diverged":
            said.append(
                "The code and the record differ, so nothing was executed and nothing is lost. It "
                "goes on by itself when a worker with matching code owns it; "
                f"`{scene.refold} retry` makes the present one compare again."
            )
            commands.append(retry)
        case "blocked":
            said.append("No live worker can continue it as it is.")
            commands.append(retry)
        case "waiting" if seen.wakes_ms is not None:
            wakes = moment_near(seen.wakes_ms, scene.zone, scene.now_ms)
            said.append(f"It waits for a timer and goes on by itself at {wakes}.")
        case "cancelling":
            said.append(
                "Its end was asked for; nothing new starts, and it ends once every open attempt "
                "is settled."
            )
        case "running" if not seen.under_way:
            idle = scene.released or scene.owner_lives is False
            doing = "Nobody executes it" if idle else "Run code is at work"
            said.append(f"{doing}; the last record of it is of {at}.")
        case _:
            if seen.wakes_ms is not None:
                wakes = moment_near(seen.wakes_ms, scene.zone, scene.now_ms)
                said.append(f"The next timer of it is due at {wakes}.")


def is_ours(command: str) -> bool:
    r"""Whether a line from the record is a command of refold's with nothing else for a shell in it.

    Whoever may write commands may write any line into a finding; only such are given to be typed.

    >>> is_ours("refold resolve r1 'charge#1' --happened --result '{\"id\": 1}'")
    True
    >>> [is_ours(one) for one in ("refold why r1; id", "refold why $(id)", "id", "refold why\nid")]
    [False, False, False, False]
    """
    import shlex

    try:
        parts = shlex.split(command)
    except ValueError:
        return False
    seen = not any(one < " " or "\x7f" <= one <= "\x9f" for one in command)
    return parts[:1] == ["refold"] and seen and shlex.join(parts) == command
