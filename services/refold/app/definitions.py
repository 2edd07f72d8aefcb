"""What was declared of a step and of a run function: frozen records that the engine works by."""

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from refold.app.effect import Effect
from refold_schemas.errors.base import RefoldError
from refold_schemas.errors.run import CallRefused, InputRefused
from refold_schemas.values import Policy, Retry, Value, decode_value_as, secret_in, text_of

NO_SECRETS = "pass a reference to it (a name, an id) and read the secret inside a step"
NO_DEFAULTS: Mapping[str, object] = {}


@dataclass(frozen=True, eq=False)
class StepDef:
    """A step as it was registered. Durations are milliseconds.

    `parameters` are the names in order, without the effect; `positional_only` and `keyword_only`
    are those of them that can be passed in one way only; `amounts` are those whose numbers the
    effect ledger sums. `key_ttl_ms` None is for ever; without a
    declared one (`has_key_ttl` False) it is 0: nothing is known of how long a key lives.
    """

    fn: Callable[..., object]
    name: str
    policy: Policy
    lookup: Callable[..., object] | None
    key_ttl_ms: int | None
    has_key_ttl: bool
    settle_ms: int
    timeout_ms: int
    not_done: tuple[type[BaseException], ...]
    retry: Retry | None
    volatile: tuple[str, ...]
    release: "StepDef | None"
    valid_for_ms: int | None
    lookup_for_ms: int
    is_model: bool
    is_async: bool
    wants_effect: bool
    parameters: tuple[str, ...]
    defaults: Mapping[str, object]
    positional_only: tuple[str, ...] = ()
    keyword_only: tuple[str, ...] = ()
    amounts: tuple[str, ...] = ()

    @cached_property
    def re_executable(self) -> bool:
        """True if the step changes nothing outside, so that no intent is written for it."""
        return self.policy is Policy.RE_EXECUTABLE

    @cached_property
    def acquires(self) -> bool:
        """True if the result is a handle that is released or runs out."""
        return self.release is not None or self.valid_for_ms is not None

    @cached_property
    def declared(self) -> dict[str, type[BaseException]]:
        """The exception types that come back as themselves, by `module:qualname`."""
        types = (*self.not_done, *(self.retry.fresh_key_on if self.retry else ()))
        return {f"{kind.__module__}:{kind.__qualname__}": kind for kind in types}

    @cached_property
    def _hints(self) -> dict[str, object]:
        return resolve_hints(self.fn)

    @property
    def returns(self) -> object:
        """The annotated return type, None if there is none or it cannot be resolved."""
        return self._hints.get("return")

    @cached_property
    def parameter_types(self) -> dict[str, object]:
        """The annotated type of each parameter, None where there is none."""
        return {name: self._hints.get(name) for name in self.parameters}

    @cached_property
    def _secret(self) -> str | None:
        # Looked for at registration too; a name may have been resolvable only since.
        return secret_problem(self._hints, (*self.parameters, "return"))

    @cached_property
    def _positional_max(self) -> int:
        return len(self.parameters) - len(self.keyword_only)

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Arguments by parameter name, defaults written out. Raises CallRefused naming the step."""
        if self._secret is not None:
            raise CallRefused(f"step {self.name!r}", self._secret, NO_SECRETS)
        parameters = self.parameters
        if not kwargs and len(args) == len(parameters) and not self.keyword_only:
            # Their number is known to be the same, and to say so costs as much as the rest.
            return dict(zip(parameters, args))  # noqa: B905
        if len(args) > self._positional_max:
            raise self._refused(
                f"takes {_count(self._positional_max)} by position, was given {len(args)}"
            )
        bound = dict(zip(parameters, args, strict=False))
        for name, value in kwargs.items():
            if name not in parameters or name in self.positional_only:
                raise self._refused(f"has no argument {name!r} to be given by name")
            if name in bound:
                raise self._refused(f"was given {name!r} twice")
            bound[name] = value
        return self._complete(bound)

    def invoke(self, effect: Effect, arguments: Mapping[str, object]) -> object:
        """Call the function with recorded arguments; an async step gives its coroutine.

        Parameters that the record does not know get their default. Raises CallRefused before the
        function is entered if the arguments do not fit, so that nothing can have happened.
        """
        if tuple(arguments) == self.parameters and not self.keyword_only:
            given = arguments.values()
            return self.fn(effect, *given) if self.wants_effect else self.fn(*given)
        unknown = [name for name in arguments if name not in self.parameters]
        if unknown:
            raise self._refused(f"its function takes no {', '.join(unknown)}")
        complete = self._complete(dict(arguments))
        split = self._positional_max
        positional = [complete[name] for name in self.parameters[:split]]
        named = {name: complete[name] for name in self.keyword_only}
        if self.wants_effect:
            return self.fn(effect, *positional, **named)
        return self.fn(*positional, **named)

    def _complete(self, bound: dict[str, object]) -> dict[str, object]:
        complete: dict[str, object] = {}
        missing: list[str] = []
        for name in self.parameters:
            if name in bound:
                complete[name] = bound[name]
            elif name in self.defaults:
                complete[name] = self.defaults[name]
            else:
                missing.append(name)
        if missing:
            raise self._refused(f"was not given {', '.join(missing)}")
        return complete

    def _refused(self, problem: str) -> CallRefused:
        shown = ", ".join(
            name if name not in self.defaults else f"{name}=…" for name in self.parameters
        )
        return CallRefused(
            f"step {self.name!r}", problem, f"call it as ctx.step({self.fn.__name__}, {shown})"
        )


@dataclass(frozen=True, eq=False)
class RunDef:
    """A run function as it was registered. `parameter` is its input's name, None if it takes none.

    `durable` is "each" if every step waits for its acknowledgement.
    """

    fn: Callable[..., typing.Coroutine[object, object, object]]
    name: str
    version: str
    plan: tuple[str, ...] | None
    durable: str | None
    parameter: str | None

    @cached_property
    def input_type(self) -> object:
        """The annotated type of the input, None if there is none or it cannot be resolved."""
        return None if self.parameter is None else resolve_hints(self.fn).get(self.parameter)

    @cached_property
    def _secret(self) -> str | None:
        return secret_problem({"input": self.input_type}, ("input",))

    def read_input(self, value: Value) -> object:
        """Read a stored (or plain JSON) input into today's type. Raises InputRefused."""
        if self.parameter is None:
            given = decode_value_as(value, None)
            if given is not None:
                raise InputRefused(self.name, "the run function takes no input, one was given")
            return None
        if self._secret is not None:
            raise InputRefused(self.name, f"{self._secret}; {NO_SECRETS}")
        try:
            return decode_value_as(value, self.input_type)
        except RefoldError as error:
            raise InputRefused(self.name, error.message) from error
        except (ValueError, TypeError) as error:
            raise InputRefused(self.name, text_of(error)) from error


def secret_problem(hints: Mapping[str, object], names: tuple[str, ...]) -> str | None:
    """Say that one of these annotations holds a secret, which would be in the log for ever."""
    for name in names:
        found = secret_in(hints.get(name))
        if found is not None:
            what = {"return": "its result", "input": "its input"}.get(name, f"its parameter {name}")
            return f"{what} holds a secret ({found}), and the log is kept for ever"
    return None


def _count(arguments: int) -> str:
    return "1 argument" if arguments == 1 else f"{arguments} arguments"


def resolve_hints(fn: Callable[..., object]) -> dict[str, object]:
    """The function's annotations as types; those that cannot be resolved are left out.

    Names behind `if TYPE_CHECKING` do not exist at run time; one of them must not hide the others.
    """
    try:
        return dict(typing.get_type_hints(fn))
    except Exception:
        resolved: dict[str, object] = {}
        for name, annotation in getattr(fn, "__annotations__", {}).items():
            probe = type("_Probe", (), {"__annotations__": {name: annotation}})
            try:
                resolved |= typing.get_type_hints(probe, getattr(fn, "__globals__", {}))
            except Exception:
                continue
        return resolved
