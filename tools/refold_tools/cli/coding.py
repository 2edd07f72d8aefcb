"""The commands that look at code only: policies and check. They open no log."""

from typing import TYPE_CHECKING

from refold.client.words import seconds
from refold_tools.cli.inputs import load_app
from refold_tools.cli.key_use import reads_key
from refold_tools.cli.options import AppArgument, JsonOption

if TYPE_CHECKING:
    from refold.app import App, StepDef


def policies(target: AppArgument, as_json: JsonOption = False) -> int:
    """List each step with policy, key, lookup, settle, timeout and retry, and what is missing."""
    from refold_tools.cli.output import print_json, table

    app = load_app(target)
    rows = [step_row(step) for step in app.steps.values()]
    if as_json:
        print_json({"app": app.name, "steps": rows})
        return 0
    table(
        ["STEP", "POLICY", "KEY", "KEY LIVES", "LOOKUP", "SETTLE", "TIMEOUT", "RETRY", "MISSING"],
        (
            [
                str(row["step"]),
                str(row["policy"]),
                _key_words(app.steps[str(row["step"])]),
                _key_lives(app.steps[str(row["step"])]),
                str(row["lookup"] or ""),
                _duration(row["settle_ms"]),
                _duration(row["timeout_ms"]),
                str(row["retry"] or ""),
                "; ".join(missing(app.steps[str(row["step"])])),
            ]
            for row in rows
        ),
        {
            1: {
                "escalate": "yellow",
                "re_executable": "dim",
                "keyed": "green",
                "resolvable": "green",
            }
        },
    )
    return 0


def _duration(duration_ms: object) -> str:
    return seconds(duration_ms) if isinstance(duration_ms, int) and duration_ms else ""


def step_row(step: "StepDef") -> dict[str, object]:
    """What `--json` shows of a step; durations are milliseconds, `key_ttl_ms` null is for ever."""
    retry = step.retry
    return {
        "step": step.name,
        "kind": "model" if step.is_model else "step",
        "policy": step.policy.value,
        "takes_effect": step.wants_effect,
        "reads_key": reads_key(step.fn) if step.wants_effect else False,
        "has_key_ttl": step.has_key_ttl,
        "key_ttl_ms": step.key_ttl_ms,
        "lookup": getattr(step.lookup, "__name__", None if step.lookup is None else "yes"),
        "settle_ms": step.settle_ms,
        "timeout_ms": step.timeout_ms,
        "retry": None if retry is None else f"up to {retry.max_attempts} attempts",
        "not_done": [kind.__name__ for kind in step.not_done],
        "volatile": list(step.volatile),
        "amounts": list(step.amounts),
        "release": None if step.release is None else step.release.name,
        "valid_for_ms": step.valid_for_ms,
        "missing": list(missing(step)),
    }


def _key_words(step: "StepDef") -> str:
    """Whether the step can send its effect key; empty where it needs none."""
    if step.policy.value == "re_executable":
        return ""
    if not step.wants_effect:
        return "not taken"
    return "not read" if reads_key(step.fn) is False else "read"


def _key_lives(step: "StepDef") -> str:
    """How long the far system surely knows a key; empty where nothing is declared."""
    if not step.has_key_ttl:
        return ""
    return "for ever" if step.key_ttl_ms is None else seconds(step.key_ttl_ms)


def missing(step: "StepDef") -> tuple[str, ...]:
    """What a step lacks to be safe and unattended. Registration has refused what cannot work."""
    found: list[str] = []
    policy = step.policy.value
    if policy in ("keyed", "resolvable") and not step.wants_effect:
        found.append("takes no Effect, so its key is never sent to the far system")
    elif policy in ("keyed", "resolvable") and reads_key(step.fn) is False:
        found.append("takes an Effect but never reads its key: send fx.key to the far system")
    if policy == "escalate":
        found.append("a person is asked whenever it is in doubt")
    if policy == "keyed" and step.key_ttl_ms is not None and step.lookup is None:
        found.append("no lookup for when its key has expired: then a person is asked")
    if policy == "resolvable" and step.settle_ms == 0:
        found.append("settle is 0: an answer that lags would be believed")
    return tuple(found)


def check(target: AppArgument, as_json: JsonOption = False) -> int:
    """Import the app and report what it registers and what it lacks."""
    from refold_tools.cli.output import print_json, say

    app = load_app(target)
    notes = list(_notes(app))
    if as_json:
        print_json(
            {
                "app": app.name,
                "time_zone": app.time_zone,
                "runs": [
                    {
                        "run": run.name,
                        "version": run.version,
                        "plan": None if run.plan is None else list(run.plan),
                        "input": run.parameter,
                        "durable": run.durable or "output",
                    }
                    for run in app.runs.values()
                ],
                "versions": list(app.versions),
                "steps": list(app.steps),
                "notes": notes,
            }
        )
        return 0
    say(f"app {app.name}, times in {app.time_zone}", "bold")
    for run in app.runs.values():
        plan = f", plan: {', '.join(run.plan)}" if run.plan else ""
        say(f"  run   {run.name}@{run.version}({run.parameter or ''}){plan}")
    for step in app.steps.values():
        kind = "model" if step.is_model else "step "
        say(f"  {kind} {step.name}({', '.join(step.parameters)})  {step.policy.value}")
    for note in notes:
        say(f"  note  {note}", "yellow")
    return 0


def _notes(app: "App") -> "list[str]":
    notes = [f"step {s.name}: {lack}" for s in app.steps.values() for lack in missing(s)]
    if not app.runs:
        notes.append("the app registers no run function")
    return notes + app.plan_gaps()
