"""A stored value comes back equal and of the same kind, or storing it is refused with its path."""

import inspect
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold_schemas.errors import BadRunId, ValueRefused, ValueUnreadable
from refold_schemas.values import (
    DEPTH_MAX,
    NODES_MAX,
    Ref,
    Value,
    canon,
    canon_of,
    check_run_id,
    decode_value,
    decode_value_as,
    derive_seed,
    derive_uuid,
    digest_value,
    encode_value,
)
from refold_schemas.values.copying import NOT_PLAIN, copied
from support.shop import Colour, Record, Text
from support.storable import PLAIN, STORABLE, same


def stored(body: bytes, type: str = "") -> Value:
    return Value(type, 1, "j1", None, body, None)


def test_scalars_that_are_kept_are_told_apart_by_their_kind() -> None:
    for obj in (1, True, 1.0, "1", "true", 0, False, -0.0, "", 2**63 - 1, 2**63):
        for _ in range(2):
            assert same(obj, decode_value(encode_value(obj)))


def comes_back(obj: object) -> bool:
    return same(obj, decode_value(encode_value(obj)))


@given(STORABLE)
def test_whatever_is_stored_comes_back_equal_and_of_the_same_kind(obj: object) -> None:
    value = encode_value(obj)
    assert same(obj, decode_value(value))
    assert encode_value(decode_value(value)) == value


@given(STORABLE)
def test_a_copy_is_what_reading_the_stored_value_gives(obj: object) -> None:
    copy = copied(obj)
    if copy is not NOT_PLAIN:
        assert same(decode_value(encode_value(obj)), copy)
        assert encode_value(copy) == encode_value(obj)
        assert not _containers(obj) & _containers(copy)


@given(PLAIN)
def test_plain_data_is_copied(obj: object) -> None:
    assert copied(obj) is not NOT_PLAIN


def test_a_copy_has_limits() -> None:
    wide: list[Any] = [0]
    for _ in range(40):
        wide = [wide, wide]  # a million million items that take no room
    assert copied(wide) is NOT_PLAIN
    assert copied([0] * (NODES_MAX + 1)) is NOT_PLAIN
    assert copied({"a": [0] * NODES_MAX}) is NOT_PLAIN


def _containers(obj: object) -> set[int]:
    """The identities of every list and dict in plain data."""
    if type(obj) is dict:
        return {id(obj)}.union(*(_containers(item) for item in obj.values()))
    if type(obj) is list:
        return {id(obj)}.union(*(_containers(item) for item in obj))
    return set()


@given(PLAIN)
def test_the_quick_ways_write_the_bytes_of_the_slow_one(obj: object) -> None:
    import json

    body = encode_value(obj).body or b""
    if b'"$' not in body:
        slow = json.dumps(obj, ensure_ascii=False, separators=(",", ":"))
        assert body == slow.encode()
    assert encode_value(obj).body == body


@given(PLAIN)
def test_plain_data_is_stored_as_plain_json_in_its_own_order(obj: object) -> None:
    import json

    value = encode_value(obj)
    assert value.type == ""
    assert same(decode_value(value), obj)
    if b'"$' not in (value.body or b""):
        assert value.body is not None
        assert same(json.loads(value.body), obj)


@pytest.mark.parametrize(
    "number",
    [
        3.7,
        2**31,
        2**53 + 1,
        2**63,
        -(2**63) - 1,
        True,
        False,
        0.1,
        -0.0,
        1e308,
        5e-324,
        10**30,
        1.0,
        1,
    ],
)
def test_a_number_is_never_rounded_nor_changed_in_kind(number: object) -> None:
    """F33: integers of any size, bool stays bool, 1.0 stays a float, -0.0 keeps its sign."""
    assert comes_back(number)
    assert comes_back([number, {"n": number}])


def test_an_integer_longer_than_python_prints_comes_back() -> None:
    assert comes_back([10**5000, -(10**5000)])


def test_numbers_that_are_equal_but_of_different_kinds_stay_apart() -> None:
    kinds = [1, 1.0, True, Decimal(1), Colour.RED, "1", b"1"]
    assert len({canon(kind) for kind in kinds}) == len(kinds)


@pytest.mark.parametrize(
    "text", ["", "\0", "a\\u0000b", "￿", "\U0001f600", "‏", "\x7f\x1f\r\n", '"$int"']
)
def test_text_comes_back_character_by_character(text: str) -> None:
    assert comes_back(text)
    assert comes_back({text: text})


@pytest.mark.parametrize("obj", [["\ud800"], {"a": "x\udfff"}, {"\ud800": 1}, "\ud800"])
def test_a_lone_surrogate_is_refused_by_path(obj: object) -> None:
    with pytest.raises(ValueRefused, match="surrogate"):
        encode_value(obj)


@pytest.mark.parametrize(
    "obj",
    [
        {"$int": "x"},
        {"$": {"$": 1}},
        {"$": 1},
        {"$set": [1]},
        {"$record": ["a:B", {}]},
        {"$x": 1},
        {"$a": 1, "$b": 2},
        [{"$map": []}],
        {1: {"$int": "3"}},
        {"": {"$datetime": "x"}},
        {"$": {}},
    ],
)
def test_a_dict_that_looks_like_a_tag_comes_back_as_a_dict(obj: object) -> None:
    assert comes_back(obj)
    assert canon_of(encode_value(obj)) == canon(obj)


@pytest.mark.parametrize(
    ("obj", "path", "type_name", "reason"),
    [
        (float("nan"), "result", "float", "finite"),
        ({"a": [1, float("inf")]}, "result.a[1]", "float", "finite"),
        ({"a": (1, -float("inf"))}, "result.a[1]", "float", "finite"),
        (Decimal("NaN"), "result", "Decimal", "finite"),
        ([{"the price": Decimal("Infinity")}], 'result[0]["the price"]', "Decimal", "finite"),
        (datetime(2026, 1, 2), "result", "datetime", "naive"),  # noqa: DTZ001
        ({1: datetime(2026, 1, 2)}, "result[1]", "datetime", "naive"),  # noqa: DTZ001
        (time(1, 2, tzinfo=ZoneInfo("Asia/Tokyo")), "result", "time", "fixed offset"),
        (Text("a"), "result", "support.shop:Text", "subclass of str"),
        (Record(a=1), "result", "support.shop:Record", "subclass of dict"),
        (bytearray(b"x"), "result", "bytearray", "no way"),
        (object(), "result", "object", "no way"),
        (1j, "result", "complex", "no way"),
        ([ValueError("x")], "result[0]", "ValueError", "exception"),
        ({(1, object()): 2}, "result{key}[1]", "object", "no way"),
        ({frozenset([1j])}, "result{}{}", "complex", "no way"),
        (int, "result", "type", "no way"),
    ],
)  # fmt: skip
def test_what_would_not_come_back_is_refused_with_path_type_and_reason(
    obj: object, path: str, type_name: str, reason: str
) -> None:
    with pytest.raises(ValueRefused) as caught:
        encode_value(obj)
    assert caught.value.path == path
    assert caught.value.type_name == type_name
    assert reason in caught.value.reason
    assert path in str(caught.value)
    with pytest.raises(ValueRefused):
        canon(obj)


def _generator() -> Any:
    yield 1


def _cycle() -> list[object]:
    cycle: list[object] = []
    cycle.append({"again": cycle})
    return cycle


def _cycle_of_tuples() -> list[object]:
    cycle: list[object] = []
    cycle.append((1, cycle))
    return cycle


def _deep(levels: int) -> list[object]:
    deep: list[object] = []
    for _ in range(levels):
        deep = [deep]
    return deep


def _wide_by_sharing() -> list[object]:
    shared: list[object] = [1, 2]
    for _ in range(60):
        shared = [shared, shared]
    return shared


@pytest.mark.parametrize(
    ("make", "type_name"),
    [
        (_generator, "generator"),
        (lambda: lambda: 0, "function"),
        (_cycle, "dict"),
        (_cycle_of_tuples, "tuple"),
        (lambda: _deep(100_000), "list"),
        (_wide_by_sharing, "list"),
    ],
    ids=["generator", "lambda", "cycle", "cycle of tuples", "1e5 deep", "2^60 by sharing"],
)
def test_what_can_never_be_stored_is_refused_at_once_with_path_and_type(
    make: Any, type_name: str
) -> None:
    """F40: refused when it is stored, as a value's fault, never as a RecursionError or a hang."""
    with pytest.raises(ValueRefused) as caught:
        encode_value({"held": make()})
    assert caught.value.path.startswith("result.held")
    assert caught.value.type_name.endswith(type_name)
    assert len(caught.value.path) <= 200
    with pytest.raises(ValueRefused):
        canon({"held": make()})


class Proxy:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("nothing is behind it")


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__qualname__", "__module__"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


def nameless() -> object:
    return Meta("Nameless", (), {})()


class Counted(dict[str, int]):
    def __len__(self) -> int:
        raise RuntimeError("no length")


class OddZone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        raise RuntimeError("no offset")

    def tzname(self, moment: datetime | None) -> str:
        return "odd"

    def dst(self, moment: datetime | None) -> None:
        return None


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Proxy, "Proxy"),
        (nameless, "Nameless"),
        (lambda: Counted(a=1), "Counted"),
        (lambda: datetime(2026, 1, 2, tzinfo=OddZone()), "datetime"),
        (
            lambda: datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1), "\ud800")),
            "datetime",
        ),
    ],
)
def test_an_object_whose_own_code_raises_is_refused_with_path_and_type(
    make: Callable[[], object], kind: str
) -> None:
    for refuses in (encode_value, canon):
        with pytest.raises(ValueRefused) as refused:
            refuses({"lines": [make()]})
        assert refused.value.path.endswith(".lines[0]")
        assert kind in str(refused.value)


@pytest.mark.parametrize("offset", [timedelta(microseconds=5), timedelta(hours=1, microseconds=-1)])
def test_an_offset_that_is_not_whole_seconds_is_refused(offset: timedelta) -> None:
    """Python reads `+00:00:00.000005` back as UTC."""
    zone = timezone(offset)
    for moment in (datetime(2026, 1, 2, tzinfo=zone), time(1, 2, tzinfo=zone)):
        with pytest.raises(ValueRefused, match="is not whole seconds"):
            encode_value([moment])
    assert comes_back(datetime(1890, 1, 2, tzinfo=timezone(timedelta(hours=1, seconds=-1))))


def test_an_open_socket_is_refused_with_path_and_type() -> None:
    """F40."""
    with socket.socket() as held, pytest.raises(ValueRefused) as caught:
        encode_value({"connection": [held]})
    assert (caught.value.path, caught.value.type_name) == ("result.connection[0]", "socket:socket")


def test_the_limits_are_where_they_are_said_to_be() -> None:
    assert comes_back(_deep(DEPTH_MAX - 1))
    with pytest.raises(ValueRefused, match=f"deeper than {DEPTH_MAX}"):
        encode_value(_deep(DEPTH_MAX))
    assert comes_back([0] * NODES_MAX)
    with pytest.raises(ValueRefused, match=f"more than {NODES_MAX}"):
        encode_value([0] * (NODES_MAX + 1))


def _near_the_stack_limit(call: Any) -> Any:
    """Call with so few frames left that a walk of a hundred levels does not fit."""

    def descend(frames: int) -> Any:
        return call() if frames <= 0 else descend(frames - 1)

    return descend(sys.getrecursionlimit() - len(inspect.stack(0)) - 60)


@pytest.mark.parametrize("wrap", [lambda inner: [inner], lambda inner: (inner,)])
def test_a_deep_value_in_a_deep_program_is_refused_never_a_recursion_error(wrap: Any) -> None:
    deep: Any = 1
    for _ in range(DEPTH_MAX - 10):
        deep = wrap(deep)
    value = encode_value(deep)
    with pytest.raises(ValueRefused):
        _near_the_stack_limit(lambda: encode_value(deep))
    with pytest.raises(ValueRefused):
        _near_the_stack_limit(lambda: canon(deep))
    if value.body is not None and b'"$' in value.body:
        with pytest.raises(ValueUnreadable):
            _near_the_stack_limit(lambda: decode_value(value))
        with pytest.raises(ValueUnreadable):
            _near_the_stack_limit(lambda: decode_value_as(value, Any))
        with pytest.raises(ValueUnreadable):
            _near_the_stack_limit(lambda: canon_of(value))
    assert comes_back(deep)


def test_a_zone_of_another_library_is_refused_by_its_class() -> None:
    class Foreign(tzinfo):
        def utcoffset(self, at: datetime | None) -> timedelta:
            return timedelta(hours=1)

        def dst(self, at: datetime | None) -> None:
            return None

        def tzname(self, at: datetime | None) -> str:
            return "foreign"

    with pytest.raises(ValueRefused, match=r"Foreign; use datetime\.timezone"):
        encode_value(datetime(2026, 1, 2, tzinfo=Foreign()))


def test_a_zone_whose_rules_have_changed_keeps_the_instant() -> None:
    body = b'{"$datetime":"2026-07-02T03:04:00+02:00[Europe/London]"}'
    moment = decode_value(stored(body))
    assert isinstance(moment, datetime)
    assert moment == datetime(2026, 7, 2, 1, 4, tzinfo=UTC)
    assert moment.tzinfo == ZoneInfo("Europe/London")


def test_the_path_begins_where_the_caller_says() -> None:
    with pytest.raises(ValueRefused, match=r"argument order\.at"):
        encode_value({"at": object()}, path="argument order")


ZONE_SCRIPT = """
import sys, time
from datetime import datetime, timedelta, timezone
from refold_schemas.codec import Codec
from refold_schemas.errors import ValueRefused
from refold_schemas.events import RunCompleted
from refold_schemas.registry import FileRegistry
from refold_schemas.values import encode_value
time.tzset()
try:
    encode_value(datetime(2026, 3, 4, 5, 6, 7))
except ValueRefused as refused:
    print(refused.reason)
moments = [
    datetime(2026, 3, 4, 5, 6, 7, tzinfo=timezone(timedelta(hours=9))),
    datetime(2026, 3, 4, 5, 6, 7, 123457, tzinfo=timezone.utc),
]
print(Codec(FileRegistry()).encode(RunCompleted(encode_value(moments))).hex())
"""


def test_the_machines_time_zone_changes_no_byte_in_the_log() -> None:
    """F34: naive is refused everywhere; aware ones give equal bytes under three TZ values."""
    printed = set()
    for zone in ("UTC", "Asia/Tokyo", "America/New_York"):
        environment = {**os.environ, "TZ": zone, "PYTHONPATH": os.pathsep.join(sys.path)}
        printed.add(
            subprocess.run(
                [sys.executable, "-c", ZONE_SCRIPT],
                env=environment, capture_output=True, check=True, text=True,
            ).stdout
        )  # fmt: skip
    assert len(printed) == 1
    refused, hexed = printed.pop().splitlines()
    assert "naive" in refused
    assert b"2026-03-04T05:06:07.123457+00:00" in bytes.fromhex(hexed)
    assert b"2026-03-04T05:06:07+09:00" in bytes.fromhex(hexed)


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 3, 4, 5, 6, 7, 1, tzinfo=UTC),
        datetime(2026, 3, 4, 5, 6, 7, tzinfo=timezone(timedelta(hours=5, minutes=45, seconds=1))),
        datetime(2026, 3, 4, 5, 6, 7, tzinfo=timezone(timedelta(hours=1), "CET")),
        datetime(2026, 3, 4, 5, 6, 7, tzinfo=timezone(timedelta(hours=1), "odd] name")),
        datetime(2026, 7, 4, 5, 6, 7, tzinfo=ZoneInfo("Europe/London")),
        datetime(2026, 10, 25, 1, 30, tzinfo=ZoneInfo("Europe/London"), fold=0),
        datetime(2026, 10, 25, 1, 30, tzinfo=ZoneInfo("Europe/London"), fold=1),
        datetime(2026, 3, 29, 1, 30, tzinfo=ZoneInfo("Europe/London"), fold=0),
        datetime(2026, 3, 29, 1, 30, tzinfo=ZoneInfo("Europe/London"), fold=1),
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ],
)
def test_a_datetime_keeps_its_instant_its_offset_and_its_zone(moment: datetime) -> None:
    back = decode_value(encode_value(moment))
    assert isinstance(back, datetime)
    assert back == moment
    assert back.isoformat() == moment.isoformat()
    assert back.tzname() == moment.tzname()
    assert back.fold == moment.fold


@pytest.mark.parametrize(
    "obj",
    [
        date(2026, 2, 28),
        time(23, 59, 59, 999_999),
        time(1, tzinfo=UTC),
        timedelta.max,
        timedelta.min,
        timedelta(microseconds=-1),
        UUID(int=5),
        b"",
        bytes(range(256)),
        Decimal("1.10"),
        Decimal("-0"),
        Decimal("1E-1000"),
        set(),
        frozenset({1, "a", None}),
        (),
        ((),),
        {},
        [],
        {(1, 2): {3: 4}},
        {None: 1, True: 2, b"k": 3},
    ],
)
def test_each_kind_beside_json_comes_back(obj: object) -> None:
    assert comes_back(obj)


def test_a_set_is_stored_alike_in_every_process() -> None:
    script = (
        "from refold_schemas.values import encode_value\n"
        "print(encode_value({'a', 'b', 'c', 'd', 1, None, (1, 2)}).body)"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, check=True, text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(printed) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"nul", b"NaN", b"[Infinity]", b"1e999", b"\xff", b'{"$unknown":1}', b'{"$int":5}',
     b'{"$int":"z"}', b'{"$bytes":"*"}', b'{"$decimal":"NaN"}', b'{"$decimal":"x"}', b'{"$uuid":1}',
     b'{"$datetime":"2026-01-02T03:04:05"}', b'{"$datetime":"x"}', b'{"$datetime":["a"]}',
     b'{"$datetime":"2026-01-02T03:04:05+00:00[No/Zone]"}', b'{"$timedelta":[1]}',
     b'{"$set":[[1]]}',
     b'{"$timedelta":[9999999999,0,0]}', b'{"$map":[1]}', b'{"$map":{"a":1}}', b'{"$tuple":1}',
     b'{"$":1}', b'{"$record":[]}', b'{"$record":["os:system",{}]}', b'{"$enum":["a:B"]}',
     b'{"$record":["no_such_module:X",{}]}', b'{"$enum":["support.shop:Colour","GREEN"]}',
     b'{"$enum":["support.shop:Order","id"]}', b'{"$record":["support.shop:Colour",{}]}',
     b'{"$record":["support.shop:Line",{}]}', b'{"$record":["support.shop:Order",[]]}',
     b'{"$record":["support.shop:Order",{"id":5}]}', b'{"$flag":["support.shop:Rights",64]}',
     b'{"$record":[5,{}]}', b'{"$record":["support.shop:Line",{"article":"a","pence":1,"x":2}]}',
     b"[" * 600 + b"]" * 600, b'{"a":' * 600 + b"1" + b"}" * 600,
     b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 5000 + b"1" + b"}" * 5000,
     b'{"$tuple":[' * 300 + b"]}" * 300, b"1" * 100_000],
    ids=lambda body: body[:40].decode(errors="replace"),
)  # fmt: skip
def test_a_body_that_nobody_wrote_is_an_error_never_a_crash(body: bytes) -> None:
    with pytest.raises(ValueUnreadable) as caught:
        decode_value(stored(body))
    assert caught.value.reason


@given(st.binary(max_size=60))
def test_random_bodies_are_read_or_refused(body: bytes) -> None:
    try:
        obj = decode_value(stored(body))
    except ValueUnreadable:
        return
    assert same(decode_value(encode_value(obj)), obj)


@pytest.mark.parametrize(
    "type_id",
    ["os:system", "subprocess:Popen", "builtins:eval", "support.shop:TEXT", "", "x", ":",
     "support.shop:SHAPES", "decimal:Decimal", "collections:OrderedDict", "support.shop:Order.id",
     "support.shop:Order.model_validate"],
)  # fmt: skip
def test_only_models_dataclasses_and_enums_are_looked_up(type_id: str) -> None:
    with pytest.raises(ValueUnreadable):
        decode_value(stored(b'{"$record":["%s",{"id":"echo"}]}' % type_id.encode()))


def test_reading_a_value_imports_no_module() -> None:
    assert "this" not in sys.modules
    with pytest.raises(ValueUnreadable, match="is imported here"):
        decode_value(stored(b"{}", "this:Zen"))
    assert "this" not in sys.modules


def test_a_digest_an_encrypted_and_an_unknown_encoding_say_what_they_are() -> None:
    digest = digest_value(encode_value([1, 2]))
    assert digest.ref is not None
    assert digest.ref.size == 5
    for value, reason in [
        (digest, "only its digest"),
        (Value("", 1, "j1", None, None, Ref(bytes(32), 3)), "only its digest"),
        (Value("", 1, "j1", "key-7", b"\x00", None), "encrypted"),
        (Value("", 1, "j9", None, b"1", None), "j9"),
    ]:
        with pytest.raises(ValueUnreadable, match=reason):
            decode_value(value)


def test_importing_values_does_not_import_pydantic() -> None:
    script = "import sys, refold_schemas.values; print('pydantic' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, check=True, text=True,
    )  # fmt: skip
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("run_id", ["a", "order-48211", "x" * 200, "Ωλ🙂", "a b/c#1", "\u200f"])
def test_a_run_id_is_the_callers_choice(run_id: str) -> None:
    check_run_id(run_id)


@pytest.mark.parametrize(
    "run_id", ["", "x" * 201, "a\n", "\0", "a\x7f", "a\x85b", "\ud800", 5, None, b"a", Text("a")]
)
def test_a_run_id_with_control_characters_or_of_wrong_length_is_refused(run_id: object) -> None:
    with pytest.raises(BadRunId) as caught:
        check_run_id(run_id)
    assert "\n" not in str(caught.value)


def test_derived_uuids_and_seeds_depend_on_nonce_scope_and_counter_alone() -> None:
    nonces, scopes, counters = (bytes(32), bytes([1] * 32)), ("", "gather#1[a]"), (0, 1)
    uuids = {derive_uuid(n, s, c) for n in nonces for s in scopes for c in counters}
    seeds = {derive_seed(n, s, c) for n in nonces for s in scopes for c in counters}
    assert len(uuids) == len(seeds) == 8
    assert all(uuid.version == 4 and uuid.variant == "specified in RFC 4122" for uuid in uuids)
    assert derive_uuid(bytes(32), "", 0) == derive_uuid(bytes(32), "", 0)


def test_the_examples_of_a_refusal_never_show_the_value() -> None:
    with pytest.raises(ValueRefused) as caught:
        encode_value({"card": [4111_1111_1111_1111, object()], "n": Path("/secret")})
    assert "4111" not in str(caught.value)
    assert "/secret" not in str(caught.value)


def test_a_forgotten_await_is_named() -> None:
    async def pay() -> int:
        return 1

    forgotten = pay()
    try:
        with pytest.raises(ValueRefused, match="an `await` is missing"):
            encode_value({"paid": forgotten})
    finally:
        forgotten.close()
