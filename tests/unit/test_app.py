"""Declaring steps and runs: what is registered, what is refused, and how a step is called."""

import asyncio
import inspect
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    assert_type,
)

import pytest
from pydantic import BaseModel, Secret, SecretBytes, SecretStr

import refold
from refold import App, Effect, Policy, RegistrationRefused, Retry, RunContext
from refold.app import RunDef, StepDef
from refold_schemas.errors import CallRefused, EffectBarred, InputRefused
from refold_schemas.values import encode_value
from support.shop import Account

if TYPE_CHECKING:
    from decimal import Decimal

SECOND = timedelta(seconds=1)


class Declined(Exception):
    pass


async def find(key: str) -> Any:
    return None


def made(fn: Any) -> StepDef:
    definition = fn.__refold__
    assert isinstance(definition, StepDef)
    return definition


# ---- what is registered


def test_a_plain_step_is_escalated_and_a_model_re_executable() -> None:
    app = App("a")

    @app.step
    async def charge(fx: Effect, pence: int, note: str = "") -> str:
        return note

    @app.model()
    def decide(prompt: str) -> dict[str, Any]:
        return {}

    step, model = app.steps["charge"], app.steps["decide"]
    assert (step.policy, step.is_async, step.wants_effect) == (Policy.ESCALATE, True, True)
    assert (step.parameters, step.defaults) == (("pence", "note"), {"note": ""})
    assert (step.timeout_ms, step.lookup_for_ms, step.settle_ms) == (30_000, 3_600_000, 0)
    assert (step.key_ttl_ms, step.has_key_ttl) == (0, False)
    assert (step.returns, step.parameter_types) == (str, {"pence": int, "note": str})
    assert (model.policy, model.is_model, model.timeout_ms) == (
        Policy.RE_EXECUTABLE,
        True,
        600_000,
    )
    assert app.step_named("charge") is step
    assert app.step_named("other") is None


def test_a_step_is_called_directly_as_if_it_were_not_decorated() -> None:
    app = App("a")

    def add(one: int, two: int = 2) -> int:
        """Add."""
        return one + two

    step = app.step(name="other_name")(add)
    assert step(1) == add(1) == 3
    assert made(step) is made(add) is app.steps["other_name"]
    assert made(step).fn is add
    assert (step.__name__, step.__doc__) == ("add", "Add.")
    assert inspect.signature(step) == inspect.signature(add)
    assert not inspect.iscoroutinefunction(step)


def test_an_async_step_stays_one_and_may_be_a_helper_of_another_step() -> None:
    app = App("a")

    @app.step
    async def load(fx: Effect, item: int) -> str:
        return f"{fx.key} {item}"

    @app.model
    async def decide(item: int) -> str:
        return await load(Effect.for_test(key="k"), item)

    assert inspect.iscoroutinefunction(load)
    assert asyncio.run(decide(3)) == "k 3"
    invoked: Any = made(decide).invoke(Effect.for_test(), {"item": 4})
    assert asyncio.run(invoked) == "k 4"


def test_what_was_declared_is_kept_in_milliseconds() -> None:
    app = App("a")

    @app.step(
        policy=Policy.RESOLVABLE,
        lookup=find,
        key_ttl=timedelta(hours=24),
        settle=timedelta(milliseconds=0.5),
        timeout=2 * SECOND,
        not_done=(Declined,),
        retry=Retry(max_attempts=5, fresh_key_on=(KeyError,)),
        volatile=("at",),
        valid_for=60 * SECOND,
        lookup_for=5 * SECOND,
    )
    def charge(pence: int, at: str) -> None: ...

    step = made(charge)
    assert (step.key_ttl_ms, step.has_key_ttl) == (86_400_000, True)
    assert step.settle_ms == 1, "half a millisecond is not at once"
    assert (step.timeout_ms, step.valid_for_ms, step.lookup_for_ms) == (2000, 60_000, 5000)
    assert (step.volatile, step.lookup) == (("at",), find)
    assert set(step.declared.values()) == {Declined, KeyError}
    assert step.acquires


def test_keys_that_live_for_ever_and_lookups_of_keyed_steps() -> None:
    app = App("a")

    @app.step(policy=Policy.KEYED, key_ttl=None)
    def one() -> None: ...

    @app.step(policy=Policy.KEYED, key_ttl=SECOND, lookup=find)
    def two() -> None: ...

    assert (made(one).key_ttl_ms, made(one).has_key_ttl, made(one).settle_ms) == (None, True, 0)
    assert made(two).settle_ms == 60_000, "undeclared, an absent is not believed at once"


def test_runs_are_found_by_name_and_version() -> None:
    app = App("a")

    @app.step
    def load() -> None: ...

    @app.run("agent", plan=[load, "notify"])
    async def old(ctx: RunContext) -> None: ...

    @app.run("agent", version="2", durable="each")
    async def new(ctx: RunContext, order: int) -> None: ...

    definition = app.runs["agent"]
    assert isinstance(definition, RunDef)
    assert (definition.version, definition.durable, definition.parameter) == ("2", "each", "order")
    assert app.versions == ("agent@1", "agent@2")
    first = app.run_of("agent", "1")
    assert first is not None
    assert (first.plan, first.parameter) == (("load", "notify"), None)
    assert new.__refold__ is definition  # type: ignore[attr-defined]


def test_a_release_is_a_step_of_its_own() -> None:
    app = App("a")

    def free(fx: Effect, handle: str) -> None: ...

    @app.step(policy=Policy.KEYED, key_ttl=None)
    def unlock(handle: str) -> None: ...

    @app.step(release=free)
    def seat(fx: Effect) -> str:
        return "12A"

    @app.step(release=unlock)
    def lock() -> str:
        return "l"

    assert made(seat).release is app.steps["free"]
    assert app.steps["free"].policy is Policy.ESCALATE
    assert made(lock).release is app.steps["unlock"]
    assert app.steps["unlock"].policy is Policy.KEYED


@pytest.mark.parametrize("annotation", ["Effect", "refold.Effect", "'Effect'", "Any", ""])
def test_the_effect_is_known_by_its_annotation_or_by_fx(annotation: str) -> None:
    app = App("a")
    scope: dict[str, Any] = {"Effect": Effect, "refold": refold, "Any": Any}
    exec(f"def charge(fx{': ' + annotation if annotation else ''}, pence): ...", scope)
    assert made(app.step(scope["charge"])).parameters == ("pence",)


def test_a_parameter_called_fx_of_another_type_is_a_parameter() -> None:
    @App("a").step
    def convert(fx: float) -> None: ...

    assert made(convert).parameters == ("fx",)


def test_types_that_exist_for_type_checkers_only_do_not_hide_the_others() -> None:
    @App("a").step
    def charge(pence: "Decimal", order: "int") -> str:
        return ""

    assert made(charge).parameter_types == {"pence": None, "order": int}
    assert made(charge).returns is str


# ---- what is refused


def refused(declare: Callable[[App], Any]) -> str:
    with pytest.raises(RegistrationRefused) as caught:
        declare(App("a"))
    assert caught.value.exit_code == 2
    assert caught.value.next
    return str(caught.value)


def plain() -> None: ...


async def with_handle(fx: Effect, handle: str, more: int) -> None: ...


async def generator() -> Any:
    yield 1


def stars(*args: int) -> None: ...


def effect_second(order: str, fx: Effect) -> None: ...


def effect_by_name(order: str, *, effect: "Effect") -> None: ...


def effect_by_name_only(*, fx: Effect) -> None: ...


def bare_fx_second(order, fx) -> None: ...  # type: ignore[no-untyped-def]


def two_effects(fx: Effect, order: str, fx2: Effect) -> None: ...


def double_stars(**kwargs: int) -> None: ...


@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        ({"policy": Policy.KEYED}, "add key_ttl=timedelta(…), or key_ttl=None"),
        ({"policy": Policy.RESOLVABLE, "settle": SECOND}, "add lookup="),
        ({"policy": Policy.RESOLVABLE, "lookup": find}, "add settle="),
        ({"policy": Policy.RE_EXECUTABLE, "lookup": find, "key_ttl": None}, "lookup and key_ttl"),
        ({"policy": Policy.RE_EXECUTABLE, "settle": SECOND}, "leave out settle"),
        ({"policy": Policy.RE_EXECUTABLE, "release": plain}, "leave out release"),
        ({"lookup": find}, "a lookup is never asked under Policy.ESCALATE"),
        ({"policy": "keyed"}, "policy='keyed' is unknown"),
        ({"policy": Policy.RESOLVABLE, "lookup": "find", "settle": SECOND}, "cannot be called"),
        ({"volatile": ("at",)}, "volatile names 'at', which is no parameter of it"),
        ({"volatile": "at"}, "volatile is no tuple of names"),
        ({"timeout": timedelta(0)}, "its timeout is not positive"),
        ({"timeout": 30}, "timeout=30 is no timedelta"),
        ({"lookup_for": -SECOND}, "lookup_for is negative"),
        ({"valid_for": -SECOND}, "valid_for is negative"),
        ({"policy": Policy.KEYED, "key_ttl": -SECOND}, "key_ttl is negative"),
        ({"not_done": Declined}, "not_done is no tuple of exception types"),
        ({"not_done": ("Declined",)}, "not_done is no tuple of exception types"),
        ({"retry": 5}, "retry is no Retry"),
        ({"retry": Retry(2, fresh_key_on=("x",))}, "Retry(fresh_key_on=…) is no tuple"),  # type: ignore[arg-type]
        ({"name": "a/b"}, "a name is a letter and up to 199"),
        ({"name": ""}, "a name is a letter"),
        ({"name": "gather"}, "a word of the slots' own grammar"),
        ({"release": 5}, "release cannot be called"),
        ({"release": with_handle}, "does not take the handle as its one argument"),
    ],
)
def test_a_step_that_cannot_keep_its_promises_is_refused(
    declared: dict[str, Any], problem: str
) -> None:
    def charge(pence: int) -> None: ...

    text = refused(lambda app: app.step(**declared)(charge))
    assert problem in text
    assert text.startswith("step '")


@pytest.mark.parametrize(
    ("fn", "problem"),
    [
        (stars, "it takes *args, but arguments are recorded by their names"),
        (double_stars, "it takes **kwargs"),
        (generator, "it yields, but a step has one result"),
        (App, "it is not a function"),
        (effect_second, "its Effect must be the first parameter, here it is 'fx'"),
        (effect_by_name, "its Effect must be the first parameter, here it is 'effect'"),
        (effect_by_name_only, "write def effect_by_name_only(fx: Effect, …)"),
        (bare_fx_second, "its Effect must be the first parameter"),
        (two_effects, "its Effect must be the first parameter, here it is 'fx2'"),
    ],
)
def test_functions_that_are_no_steps_are_refused(fn: Any, problem: str) -> None:
    assert problem in refused(lambda app: app.step()(fn))


def test_a_second_step_of_a_name_is_refused_and_the_first_kept() -> None:
    app = App("a")
    app.step(name="charge")(lambda: None)
    first = app.steps["charge"]
    with pytest.raises(RegistrationRefused, match="registered already"):
        app.step(name="charge")(lambda: None)
    assert app.steps["charge"] is first


def test_one_function_is_registered_once() -> None:
    def declare(app: App) -> None:
        def charge() -> None: ...

        app.step(charge)
        app.step(name="again")(charge)

    assert "registered already as 'charge'" in refused(declare)


async def run_function(ctx: RunContext, order: int) -> None: ...


async def run_of_three(ctx: RunContext, order: int, more: int) -> None: ...


async def run_of_none() -> None: ...


async def run_with_keyword(ctx: RunContext, *, order: int) -> None: ...


def sync_run(ctx: RunContext) -> None: ...


@pytest.mark.parametrize(
    ("fn", "declared", "problem"),
    [
        (sync_run, {}, "it is not an `async def` function"),
        (run_of_none, {}, "is called with the run context and one input"),
        (run_of_three, {}, "is called with the run context and one input"),
        (run_with_keyword, {}, "is called with the run context and one input"),
        (run_function, {"durable": "all"}, "durable='all' is unknown"),
        (run_function, {"version": ""}, "version '' cannot be used"),
        (run_function, {"version": "1@2"}, "version '1@2' cannot be used"),
        (run_function, {"plan": [3]}, "its plan has 3 in it"),
    ],
)
def test_run_functions_that_cannot_be_driven_are_refused(
    fn: Any, declared: dict[str, Any], problem: str
) -> None:
    text = refused(lambda app: app.run("agent", **declared)(fn))
    assert problem in text
    assert text.startswith("run 'agent'")


def test_a_run_without_a_name_or_registered_twice_is_refused() -> None:
    assert "it has no name" in refused(lambda app: app.run(run_of_three))  # type: ignore[arg-type]

    def twice(app: App) -> None:
        for _ in range(2):

            @app.run("agent")
            async def agent(ctx: RunContext) -> None: ...

    assert "version 1 of it is registered already" in refused(twice)


def test_an_app_needs_a_usable_name_and_time_zone() -> None:
    assert App("a", time_zone="Europe/Berlin").time_zone == "Europe/Berlin"
    for name, zone in (("", "UTC"), ("a b", "UTC"), ("a", "Europe/Atlantis"), ("a", "../x")):
        with pytest.raises(RegistrationRefused):
            App(name, time_zone=zone)


# ---- how a step is called


def test_bind_writes_defaults_out_and_keeps_the_order_of_the_parameters() -> None:
    @App("a").step
    def charge(fx: Effect, order: str, pence: int = 5, *, note: str = "n") -> None: ...

    step = made(charge)
    assert list(step.bind(("o",), {}).items()) == [("order", "o"), ("pence", 5), ("note", "n")]
    assert step.bind((), {"note": "x", "order": "o"}) == {"order": "o", "pence": 5, "note": "x"}
    assert step.bind(("o", 7), {"note": "x"}) == {"order": "o", "pence": 7, "note": "x"}
    with pytest.raises(CallRefused, match="step 'charge': was not given order"):
        step.bind((), {})
    with pytest.raises(CallRefused, match="takes 2 arguments by position, was given 3"):
        step.bind(("o", 7, "n"), {})


def test_invoke_passes_recorded_arguments_as_the_function_takes_them() -> None:
    @App("a").step
    def charge(fx: Effect, order: str, /, pence: int = 5, *, note: str = "n") -> tuple[Any, ...]:
        return fx.key, order, pence, note

    step, effect = made(charge), Effect.for_test(key="k")
    assert step.invoke(effect, {"order": "o", "note": "x"}) == ("k", "o", 5, "x")
    assert step.invoke(effect, {"pence": 1, "order": "o"}) == ("k", "o", 1, "n")
    with pytest.raises(CallRefused, match="its function takes no other"):
        step.invoke(effect, {"order": "o", "other": 1})
    with pytest.raises(CallRefused, match="was not given order"):
        step.invoke(effect, {})
    with pytest.raises(CallRefused, match="has no argument 'order' to be given by name"):
        step.bind((), {"order": "o"})


class Order(BaseModel):
    id: str
    pence: int = 0


def test_an_input_is_read_into_the_type_of_the_parameter() -> None:
    app = App("a")

    @app.run("agent")
    async def agent(ctx: RunContext, order: Order) -> None: ...

    definition = app.runs["agent"]
    assert definition.input_type is Order
    assert definition.read_input(encode_value({"id": "48211"})) == Order(id="48211")
    assert definition.read_input(encode_value(Order(id="1", pence=2))) == Order(id="1", pence=2)
    with pytest.raises(InputRefused, match="run 'agent': its input does not validate"):
        definition.read_input(encode_value({"number": 3}))


class Tree(BaseModel):
    child: "Tree | None" = None


class Token(BaseModel):
    value: Secret[int]


@dataclass
class Session:
    user: str
    tokens: dict[str, list[Token]]


class Request(TypedDict):
    key: NotRequired[SecretBytes]


class Pair(NamedTuple):
    name: str
    word: SecretStr


Word = NewType("Word", SecretStr)


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        (SecretStr, "it is a SecretStr"),
        (SecretStr | None, "it is a SecretStr"),
        (Account, "Account.password is a SecretStr"),
        (list[tuple[Account, ...]], "Account.password is a SecretStr"),
        (Session, "Token.value is a Secret"),
        (Request, "Request.key is a SecretBytes"),
        (Pair, "Pair.word is a SecretStr"),
        (Word, "it is a SecretStr"),
        (Annotated[dict[str, SecretStr], "note"], "it is a SecretStr"),
    ],
)
def test_a_secret_in_a_declared_type_is_refused_when_it_is_registered(
    kind: Any, where: str
) -> None:
    """Plain JSON has no classes: what a client sends for a SecretStr is stored as it is given."""
    app = App("a")

    def takes(given: Any) -> int:
        return 1

    def gives() -> Any: ...

    async def agent(ctx: RunContext, given: Any) -> int:
        return 1

    takes.__annotations__["given"] = agent.__annotations__["given"] = kind
    gives.__annotations__["return"] = kind
    reference = "pass a reference to it"
    with pytest.raises(RegistrationRefused, match=f"parameter given .*{where}") as refused:
        app.step(takes)
    assert reference in refused.value.repair
    with pytest.raises(RegistrationRefused, match=f"its result .*{where}"):
        app.step(gives)
    with pytest.raises(RegistrationRefused, match=f"parameter given .*{where}"):
        app.run("agent")(agent)
    assert not app.steps
    assert not app.runs


def test_a_secret_behind_a_name_that_comes_later_is_refused_at_the_first_use() -> None:
    app = App("a")

    @app.step
    def takes(given: "Later") -> int:  # type: ignore[name-defined]  # noqa: F821
        return 1

    @app.run("agent")
    async def agent(
        ctx: RunContext,
        given: "Later",  # type: ignore[name-defined]  # noqa: F821
    ) -> None: ...

    globals()["Later"] = Account
    try:
        with pytest.raises(CallRefused, match=r"Account\.password is a SecretStr"):
            app.steps["takes"].bind(("x",), {})
        with pytest.raises(InputRefused, match=r"Account\.password is a SecretStr"):
            app.runs["agent"].read_input(encode_value({"name": "a", "password": "b"}))
    finally:
        del globals()["Later"]


def test_a_type_that_names_itself_and_holds_no_secret_is_registered() -> None:
    app = App("a")

    @app.run("agent")
    async def agent(ctx: RunContext, given: Tree) -> list[Tree]:
        return [given]

    assert app.runs["agent"].read_input(encode_value({"child": {}})) == Tree(child=Tree())


def test_a_run_without_a_parameter_takes_no_input() -> None:
    app = App("a")

    @app.run("agent")
    async def agent(ctx: RunContext) -> None: ...

    assert app.runs["agent"].read_input(encode_value(None)) is None
    with pytest.raises(InputRefused, match="takes no input"):
        app.runs["agent"].read_input(encode_value(3))


def test_an_effect_says_how_long_and_whether_it_may_go_on() -> None:
    effect = Effect.for_test(key="k-1", timeout=60 * SECOND)
    assert (effect.key, effect.attempt, effect.slot) == ("k-1", 1, "test#1")
    assert timedelta(0) < effect.remaining() <= 60 * SECOND
    assert effect.deadline.utcoffset() == timedelta(0)
    effect.check()
    with pytest.raises(EffectBarred, match=r"the deadline .* has passed"):
        Effect.for_test(timeout=timedelta(0)).check()
    assert Effect.for_test(timeout=-SECOND).remaining() == timedelta(0)
    stop = threading.Event()
    barred = Effect(
        key="k",
        attempt=2,
        run_id="r",
        slot="s#1",
        deadline=effect.deadline,
        remaining_s=lambda: 5.0,
        barred=stop.is_set,
    )
    barred.check()
    stop.set()
    with pytest.raises(EffectBarred, match="was barred"):
        barred.check()
    assert "s#1" in repr(barred)


# ---- the package


def test_every_public_name_can_be_imported_from_refold() -> None:
    for name in refold.__all__:
        assert getattr(refold, name).__name__ == name
        assert name in dir(refold)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        refold.Nothing  # noqa: B018


def test_importing_refold_loads_none_of_its_rooms() -> None:
    code = "import sys, refold; print([m for m in sys.modules if m.startswith('refold')])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "['refold']"


def test_importing_the_app_loads_no_pydantic_and_no_asyncio() -> None:
    code = "import sys, refold; refold.App; print({'pydantic', 'asyncio'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


# ---- types: checked by mypy, which reads this file too


def test_the_context_keeps_a_steps_signature_for_type_checkers() -> None:
    app = App("a")

    @app.step()
    async def charge(fx: Effect, order: str, pence: int) -> Order:
        return Order(id=order, pence=pence)

    @app.step
    def read(order: str) -> int:
        return 1

    @app.model()
    async def decide(prompt: str) -> dict[str, int]:
        return {}

    @app.run("typed")
    async def typed(ctx: RunContext, order: Order) -> None:
        assert_type(await ctx.step(charge, order.id, pence=3), Order)
        assert_type(await ctx.step(read, order.id), int)
        assert_type(await ctx.step(decide, "p"), dict[str, int])
        assert_type(
            await ctx.gather(ctx.step(read, "a"), ctx.step(decide, "p")), tuple[int, dict[str, int]]
        )
        assert_type(await ctx.gather(a=ctx.step(read, "a")), dict[str, int])
        assert_type(await ctx.map(read, ["a"]), list[int])
        assert_type(await ctx.map(decide, ["a"]), list[dict[str, int]])
        assert_type(await ctx.revalidate(read, "a", recorded=3), int)
        loop = ctx.each(["a"], state=0.5)
        async for batch, state in loop:
            assert_type(batch[0], str)
            assert_type(state, float)
            batch.commit(state + 1)
            batch.commit("x")  # type: ignore[arg-type]
        assert_type(loop.state, float)
        await ctx.step(charge, order.id)  # type: ignore[call-overload]
        await ctx.step(read, 3)  # type: ignore[call-overload]

    assert app.runs["typed"].fn is typed
