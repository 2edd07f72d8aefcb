"""App: the steps, models and run functions of one program, registered by decorators."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, overload
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from refold.app.definitions import RunDef, StepDef
from refold.app.direct import callable_directly
from refold.app.register import MISSING, Declared, Missing, check_name, run_def, step_def
from refold_schemas.errors.run import RegistrationRefused
from refold_schemas.values import Policy, Retry

F = TypeVar("F", bound=Callable[..., Any])

STEP_TIMEOUT = timedelta(seconds=30)
MODEL_TIMEOUT = timedelta(minutes=10)
LOOKUP_FOR = timedelta(hours=1)


class App:
    """One program's steps, models and run functions. A namespace belongs to one App.

    `steps` by name; `runs` by name, of several versions the one registered last. `time_zone` is
    the zone in which an operator reads times.

    >>> app = App("refunds")
    >>> @app.model()
    ... async def decide(prompt: str) -> str:
    ...     return "refund"
    >>> app.steps["decide"].policy.value
    're_executable'
    """

    def __init__(self, name: str, *, time_zone: str = "UTC") -> None:
        """Raise RegistrationRefused if the name or the time zone cannot be used."""
        what = f"app {name!r}"
        check_name(what, name)
        if time_zone != "UTC":
            try:
                ZoneInfo(time_zone)
            except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
                raise RegistrationRefused(
                    what,
                    f"there is no time zone {time_zone!r} on this machine",
                    'write an IANA name, like time_zone="Europe/Berlin" (package tzdata has them)',
                ) from error
        self.name, self.time_zone = name, time_zone
        self.steps: dict[str, StepDef] = {}
        self.runs: dict[str, RunDef] = {}
        self._versions: dict[tuple[str, str], RunDef] = {}

    @property
    def versions(self) -> tuple[str, ...]:
        """Every registered run function as `name@version`."""
        return tuple(f"{name}@{version}" for name, version in self._versions)

    @overload
    def step(self, fn: F, /) -> F: ...
    @overload
    def step(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        policy: Policy | None = None,
        lookup: Callable[..., object] | None = None,
        key_ttl: timedelta | Missing | None = MISSING,
        settle: timedelta | None = None,
        timeout: timedelta = STEP_TIMEOUT,
        not_done: tuple[type[BaseException], ...] = (),
        retry: Retry | None = None,
        volatile: tuple[str, ...] = (),
        release: Callable[..., object] | None = None,
        valid_for: timedelta | None = None,
        lookup_for: timedelta = LOOKUP_FOR,
        amounts: tuple[str, ...] = (),
    ) -> Callable[[F], F]: ...
    def step(
        self,
        fn: F | None = None,
        /,
        *,
        name: str | None = None,
        policy: Policy | None = None,
        lookup: Callable[..., object] | None = None,
        key_ttl: timedelta | Missing | None = MISSING,
        settle: timedelta | None = None,
        timeout: timedelta = STEP_TIMEOUT,
        not_done: tuple[type[BaseException], ...] = (),
        retry: Retry | None = None,
        volatile: tuple[str, ...] = (),
        release: Callable[..., object] | None = None,
        valid_for: timedelta | None = None,
        lookup_for: timedelta = LOOKUP_FOR,
        amounts: tuple[str, ...] = (),
    ) -> F | Callable[[F], F]:
        """Register a step; it can be called directly in tests and other steps, not in run code.

        `policy` says what recovery may do with an attempt in doubt; undeclared it is
        Policy.ESCALATE: handed to a person. `lookup(key)` answers Found, Absent, Pending or
        Rejected; `settle` is by how long it may lag. `key_ttl` is how long the far system
        remembers a key (None: for ever). `not_done` lists exception types that say that nothing
        happened. `volatile` names parameters that are in neither fingerprint nor effect key.
        `release(fx, handle)` gives an acquisition back when the run ends, `valid_for` is how long
        its handle lives. `amounts` names parameters that are amounts (money, units): the effect
        ledger has their numbers. Raises RegistrationRefused, naming the repair.
        """
        declared = Declared(
            name=name,
            policy=policy,
            lookup=lookup,
            key_ttl=key_ttl,
            settle=settle,
            timeout=timeout,
            not_done=not_done,
            retry=retry,
            volatile=volatile,
            release=release,
            valid_for=valid_for,
            lookup_for=lookup_for,
            is_model=False,
            amounts=amounts,
        )
        if fn is not None:
            return self._add(fn, declared)
        return lambda decorated: self._add(decorated, declared)

    @overload
    def model(self, fn: F, /) -> F: ...
    @overload
    def model(
        self,
        fn: None = None,
        /,
        *,
        name: str | None = None,
        policy: Policy | None = None,
        lookup: Callable[..., object] | None = None,
        key_ttl: timedelta | Missing | None = MISSING,
        settle: timedelta | None = None,
        timeout: timedelta = MODEL_TIMEOUT,
        not_done: tuple[type[BaseException], ...] = (),
        retry: Retry | None = None,
        volatile: tuple[str, ...] = (),
        lookup_for: timedelta = LOOKUP_FOR,
    ) -> Callable[[F], F]: ...
    def model(
        self,
        fn: F | None = None,
        /,
        *,
        name: str | None = None,
        policy: Policy | None = None,
        lookup: Callable[..., object] | None = None,
        key_ttl: timedelta | Missing | None = MISSING,
        settle: timedelta | None = None,
        timeout: timedelta = MODEL_TIMEOUT,
        not_done: tuple[type[BaseException], ...] = (),
        retry: Retry | None = None,
        volatile: tuple[str, ...] = (),
        lookup_for: timedelta = LOOKUP_FOR,
    ) -> F | Callable[[F], F]:
        """Register a model call: a step whose answer is stored unchanged, with what it cost.

        Undeclared its policy is Policy.RE_EXECUTABLE. For the rest see `step`.
        """
        declared = Declared(
            name=name,
            policy=policy,
            lookup=lookup,
            key_ttl=key_ttl,
            settle=settle,
            timeout=timeout,
            not_done=not_done,
            retry=retry,
            volatile=volatile,
            release=None,
            valid_for=None,
            lookup_for=lookup_for,
            is_model=True,
        )
        if fn is not None:
            return self._add(fn, declared)
        return lambda decorated: self._add(decorated, declared)

    def run(
        self,
        name: str,
        *,
        version: str = "1",
        plan: Sequence[str | Callable[..., object]] | None = None,
        durable: str | None = None,
    ) -> Callable[[F], F]:
        """Register a run function: `async def name(ctx: RunContext, input)`.

        `plan` lists the step names that are expected, for people; nothing is enforced by it.
        `durable="each"` waits for the log at every step. Raises RegistrationRefused.
        """
        if not isinstance(name, str):
            raise RegistrationRefused(
                f"run {getattr(name, '__name__', name)!r}",
                "it has no name",
                'write @app.run("name") above the function',
            )

        def register(fn: F) -> F:
            definition = run_def(fn, name, version, plan, durable)
            if (name, version) in self._versions:
                raise RegistrationRefused(
                    f"run {name!r}",
                    f"version {version} of it is registered already",
                    'choose another name, or version="…" for a newer one',
                )
            self._mark(fn, definition, f"run {name!r}")
            self._versions[name, version] = definition
            self.runs[name] = definition
            return fn

        return register

    def step_named(self, name: str) -> StepDef | None:
        """The step or model of this name, None if this App does not have it."""
        return self.steps.get(name)

    def run_of(self, name: str, version: str) -> RunDef | None:
        """The run function of exactly this version, None if this App does not have it."""
        return self._versions.get((name, version))

    def plan_gaps(self) -> list[str]:
        """A line for each run function whose plan names what is no step of this App.

        Such a name stays "remaining" for ever in what people are told of the run's boundary.
        """
        gaps = []
        for run in self.runs.values():
            unknown = [name for name in run.plan or () if name not in self.steps]
            if unknown:
                gaps.append(
                    f"run {run.name}: its plan names no step of the app: {', '.join(unknown)}"
                )
        return gaps

    def _add(self, fn: F, declared: Declared) -> F:
        definition = step_def(fn, declared, None)
        what = f"{'model' if declared.is_model else 'step'} {definition.name!r}"
        if definition.name in self.steps:
            raise RegistrationRefused(
                what,
                "a step of this name is registered already",
                'give one of the two another name="…"; slots and records go by it',
            )
        if declared.release is not None:
            definition = replace(definition, release=self._release(declared.release, what))
        self._mark(fn, definition, what)
        self.steps[definition.name] = definition
        return callable_directly(fn)  # carries the mark too

    def _release(self, fn: Callable[..., object], what: str) -> StepDef:
        """The release as a step of its own: as it was registered, else under Policy.ESCALATE."""
        definition = getattr(fn, "__refold__", None)
        if definition is None:
            if not callable(fn):
                raise RegistrationRefused(
                    what, "release cannot be called", "give a function release(fx, handle)"
                )
            self.step(fn)
            definition = getattr(fn, "__refold__", None)
        if not isinstance(definition, StepDef) or self.steps.get(definition.name) is not definition:
            raise RegistrationRefused(
                what, "its release is not a step of this App", "give a function release(fx, handle)"
            )
        required = [name for name in definition.parameters if name not in definition.defaults]
        if not definition.parameters or required not in ([], [definition.parameters[0]]):
            raise RegistrationRefused(
                what,
                f"its release {definition.name!r} does not take the handle as its one argument",
                f"write def {definition.name}(fx: Effect, handle)",
            )
        return definition

    @staticmethod
    def _mark(fn: Callable[..., object], definition: StepDef | RunDef, what: str) -> None:
        other = getattr(fn, "__refold__", None)
        if other is not None:
            raise RegistrationRefused(
                what,
                f"the function is registered already as {other.name!r}",
                "register it once; write a second function for a second name",
            )
        try:
            fn.__refold__ = definition  # type: ignore[attr-defined]
        except AttributeError as error:
            raise RegistrationRefused(
                what,
                "the function cannot carry its definition",
                "wrap it in a function of your own",
            ) from error
