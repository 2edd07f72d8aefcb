"""Checks what an author declares and makes the definitions of it; refuses what cannot be kept."""

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from refold.app.definitions import NO_SECRETS, RunDef, StepDef, resolve_hints, secret_problem
from refold.app.effect import Effect
from refold_schemas.errors.run import RegistrationRefused
from refold_schemas.values import Policy, Retry

NAME_CHARS_MAX = 200
RESERVED = frozenset({"gather", "map", "each", "sleep"})
"""Names that a slot's grammar uses itself."""
SETTLE_MS_OF_KEYED = 60_000
"""What a keyed step with a lookup waits before it believes "absent", if it does not say."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]*")


class Missing:
    """The type of MISSING."""

    def __repr__(self) -> str:
        """Show it as documentation tools should."""
        return "MISSING"


MISSING = Missing()
"""Marks a declaration that was left out where None has a meaning of its own."""


@dataclass(frozen=True, slots=True)
class Declared:
    """The arguments of `@app.step(...)` or `@app.model(...)` as the author wrote them."""

    name: str | None
    policy: Policy | None
    lookup: Callable[..., object] | None
    key_ttl: timedelta | Missing | None
    settle: timedelta | None
    timeout: timedelta
    not_done: tuple[type[BaseException], ...]
    retry: Retry | None
    volatile: tuple[str, ...]
    release: Callable[..., object] | None
    valid_for: timedelta | None
    lookup_for: timedelta
    is_model: bool
    amounts: tuple[str, ...] = ()


def step_def(fn: Callable[..., object], declared: Declared, release: StepDef | None) -> StepDef:
    """Make a StepDef of a function and its declaration. Raises RegistrationRefused."""
    kind = "model" if declared.is_model else "step"
    name = declared.name if declared.name is not None else getattr(fn, "__name__", "")
    what = f"{kind} {name!r}"
    if not inspect.isroutine(fn):
        raise RegistrationRefused(what, "it is not a function", "decorate a function")
    check_name(what, name)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise RegistrationRefused(
            what, "it yields, but a step has one result", "collect the parts and return them"
        )
    policy = _policy(what, declared)
    settle_ms = _ms(what, "settle", declared.settle) or 0
    if policy is Policy.KEYED and declared.lookup is not None and declared.settle is None:
        settle_ms = SETTLE_MS_OF_KEYED
    timeout_ms = _ms(what, "timeout", declared.timeout)
    if not timeout_ms:
        raise RegistrationRefused(what, "its timeout is not positive", "give it a positive timeout")
    key_ttl = declared.key_ttl
    has_key_ttl = not isinstance(key_ttl, Missing)
    key_ttl_ms = 0 if isinstance(key_ttl, Missing) else _ms(what, "key_ttl", key_ttl)
    _check_types(what, "not_done", declared.not_done)
    if declared.retry is not None and not isinstance(declared.retry, Retry):
        raise RegistrationRefused(what, "retry is no Retry", "write retry=Retry(max_attempts=…)")
    if declared.retry is not None:
        _check_types(what, "Retry(fresh_key_on=…)", declared.retry.fresh_key_on)
    parameters = list(_signature(what, fn).parameters.values())
    wants_effect = bool(parameters) and _takes_effect_first(parameters[0])
    parameters = parameters[1:] if wants_effect else parameters
    for parameter in parameters:
        if _is_effect(parameter):
            raise RegistrationRefused(
                what,
                f"its Effect must be the first parameter, here it is {parameter.name!r}",
                f"write def {getattr(fn, '__name__', name)}({parameter.name}: Effect, …)",
            )
    names = _parameter_names(what, parameters)
    for volatile in _names(what, "volatile", declared.volatile):
        if volatile not in names:
            raise RegistrationRefused(
                what,
                f"volatile names {volatile!r}, which is no parameter of it",
                f"name one of {', '.join(names) or 'its parameters (it has none)'}",
            )
    _check_amounts(what, declared, policy, names)
    _refuse_secrets(what, fn, names)
    return StepDef(
        fn=fn,
        name=name,
        policy=policy,
        lookup=declared.lookup,
        key_ttl_ms=key_ttl_ms,
        has_key_ttl=has_key_ttl,
        settle_ms=settle_ms,
        timeout_ms=timeout_ms,
        not_done=tuple(declared.not_done),
        retry=declared.retry,
        volatile=tuple(declared.volatile),
        release=release,
        valid_for_ms=_ms(what, "valid_for", declared.valid_for),
        lookup_for_ms=_ms(what, "lookup_for", declared.lookup_for) or 0,
        is_model=declared.is_model,
        is_async=inspect.iscoroutinefunction(fn),
        wants_effect=wants_effect,
        parameters=names,
        defaults={p.name: p.default for p in parameters if p.default is not p.empty},
        positional_only=tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY),
        keyword_only=tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY),
        amounts=tuple(dict.fromkeys(declared.amounts)),
    )


def run_def(
    fn: Callable[..., Any],
    name: str,
    version: str,
    plan: Sequence[str | Callable[..., object]] | None,
    durable: str | None,
) -> RunDef:
    """Make a RunDef of a function and its declaration. Raises RegistrationRefused."""
    what = f"run {name!r}"
    check_name(what, name)
    if not isinstance(version, str) or not version or "@" in version or not version.isprintable():
        raise RegistrationRefused(
            what, f"version {version!r} cannot be used", 'write a short text, like version="2"'
        )
    if not inspect.iscoroutinefunction(fn):
        raise RegistrationRefused(
            what, "it is not an `async def` function", f"write async def {name}(ctx, …)"
        )
    if durable not in (None, "each"):
        raise RegistrationRefused(
            what, f"durable={durable!r} is unknown", 'write durable="each" or leave it out'
        )
    parameters = list(_signature(what, fn).parameters.values())
    names = _parameter_names(what, parameters)
    positional = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
    required = [p for p in parameters if p.default is p.empty]
    if not positional or len(positional) > 2 or len(required) > len(positional):
        raise RegistrationRefused(
            what,
            f"it takes ({', '.join(names)}), but is called with the run context and one input",
            "take ctx and at most one input, a pydantic model or dataclass for several values",
        )
    _refuse_secrets(what, fn, names[1:])
    return RunDef(
        fn=fn,
        name=name,
        version=version,
        plan=None if plan is None else tuple(_plan_name(what, entry) for entry in plan),
        durable=durable,
        parameter=names[1] if len(positional) == 2 else None,
    )


def check_name(what: str, name: str) -> None:
    """Refuse a name that the grammar of slots could not carry."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise RegistrationRefused(
            what,
            f"a name is a letter and up to {NAME_CHARS_MAX - 1} letters, digits and _ . : -",
            'give it one with name="…"',
        )
    if name in RESERVED:
        raise RegistrationRefused(
            what, f"{name!r} is a word of the slots' own grammar", 'give it another name="…"'
        )


def _policy(what: str, declared: Declared) -> Policy:
    undeclared = Policy.RE_EXECUTABLE if declared.is_model else Policy.ESCALATE
    policy = undeclared if declared.policy is None else declared.policy
    if not isinstance(policy, Policy):
        raise RegistrationRefused(
            what,
            f"policy={policy!r} is unknown",
            "write one of Policy.RE_EXECUTABLE, Policy.KEYED, Policy.RESOLVABLE, Policy.ESCALATE",
        )
    if declared.lookup is not None and not callable(declared.lookup):
        raise RegistrationRefused(
            what,
            "lookup cannot be called",
            "give a function lookup(key) that answers Found, Absent, Pending or Rejected",
        )
    if policy is Policy.KEYED and isinstance(declared.key_ttl, Missing):
        raise RegistrationRefused(
            what,
            "Policy.KEYED needs to know how long the far system remembers a key",
            "add key_ttl=timedelta(…), or key_ttl=None if it remembers keys for ever",
        )
    if policy is Policy.RESOLVABLE and declared.lookup is None:
        raise RegistrationRefused(
            what,
            "Policy.RESOLVABLE needs a way to ask by our own key",
            "add lookup=, a function lookup(key); without one the policy is Policy.ESCALATE",
        )
    if policy is Policy.RESOLVABLE and declared.settle is None:
        raise RegistrationRefused(
            what,
            "Policy.RESOLVABLE needs to know when an effect is surely visible to its lookup",
            "add settle=timedelta(…), the longest time by which the lookup lags",
        )
    if policy is Policy.ESCALATE and declared.lookup is not None:
        raise RegistrationRefused(
            what,
            "a lookup is never asked under Policy.ESCALATE",
            "write policy=Policy.RESOLVABLE with settle=, or leave the lookup out",
        )
    if policy is Policy.RE_EXECUTABLE:
        given = {
            "lookup": declared.lookup is not None,
            "key_ttl": not isinstance(declared.key_ttl, Missing),
            "settle": declared.settle is not None,
            "release": declared.release is not None,
        }
        useless = [name for name, is_given in given.items() if is_given]
        if useless:
            raise RegistrationRefused(
                what,
                f"{' and '.join(useless)} say that it changes something outside, "
                "Policy.RE_EXECUTABLE says that it does not",
                f"leave out {' and '.join(useless)}, or declare the policy that fits the effect",
            )
    return policy


def _signature(what: str, fn: Callable[..., object]) -> inspect.Signature:
    try:
        return inspect.signature(fn)
    except (ValueError, TypeError) as error:
        raise RegistrationRefused(
            what, "its parameters cannot be read", "wrap it in a function of your own"
        ) from error


def _check_amounts(what: str, declared: Declared, policy: Policy, names: tuple[str, ...]) -> None:
    amounts = _names(what, "amounts", declared.amounts)
    for amount in amounts:
        if amount not in names:
            raise RegistrationRefused(
                what,
                f"amounts names {amount!r}, which is no parameter of it",
                f"name one of {', '.join(names) or 'its parameters (it has none)'}",
            )
    if amounts and policy is Policy.RE_EXECUTABLE:
        raise RegistrationRefused(
            what,
            "amounts are those of an effect, and Policy.RE_EXECUTABLE says that it has none",
            "leave out amounts, or declare the policy that fits the effect",
        )


def _takes_effect_first(parameter: inspect.Parameter) -> bool:
    return parameter.kind is not parameter.KEYWORD_ONLY and _is_effect(parameter)


def _is_effect(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        annotation = annotation.strip("\"' ").rpartition(".")[2]
    if annotation in (parameter.empty, Any, "Any"):
        return parameter.name == "fx"
    return annotation is Effect or annotation == "Effect"


def _refuse_secrets(what: str, fn: Callable[..., object], names: tuple[str, ...]) -> None:
    problem = secret_problem(resolve_hints(fn), (*names, "return"))
    if problem is not None:
        raise RegistrationRefused(what, problem, NO_SECRETS)


def _parameter_names(what: str, parameters: Sequence[inspect.Parameter]) -> tuple[str, ...]:
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise RegistrationRefused(
                what,
                f"it takes {stars}{parameter.name}, but arguments are recorded by their names",
                "name every parameter; take a list or dict for an open number of values",
            )
    return tuple(parameter.name for parameter in parameters)


def _names(what: str, field: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, (tuple, list)):
        raise RegistrationRefused(
            what, f"{field} is no tuple of names", f'write {field}=("name",), with the comma'
        )
    return tuple(names)


def _check_types(what: str, field: str, types: object) -> None:
    if not isinstance(types, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in types
    ):
        raise RegistrationRefused(
            what,
            f"{field} is no tuple of exception types",
            f"write {field}=(CardDeclined,), with the comma",
        )


def _plan_name(what: str, entry: object) -> str:
    definition = getattr(entry, "__refold__", None)
    if isinstance(definition, StepDef):
        return definition.name
    if not isinstance(entry, str) or not entry:
        raise RegistrationRefused(
            what, f"its plan has {entry!r} in it", 'list step names: plan=["load_order", …]'
        )
    return entry


def _ms(what: str, field: str, duration: timedelta | None) -> int | None:
    if duration is None:
        return None
    if not isinstance(duration, timedelta):
        raise RegistrationRefused(
            what, f"{field}={duration!r} is no timedelta", f"write {field}=timedelta(seconds=…)"
        )
    if duration < timedelta(0):
        raise RegistrationRefused(what, f"{field} is negative", f"write a {field} of zero or more")
    # Rounded up: half a millisecond must not become "at once".
    whole_ms, rest = divmod(duration, timedelta(milliseconds=1))
    return whole_ms + bool(rest)
