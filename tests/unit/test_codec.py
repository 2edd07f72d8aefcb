"""Strict encoding: what is written is what was said, or it is refused with the field's name."""

import dataclasses
import io
import json
import typing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold_schemas.codec import (
    HEADER_SIZE,
    KIND_CLAIM,
    KIND_EVENT,
    KIND_REPORT,
    Codec,
    RecordHeader,
    decode_with,
)
from refold_schemas.codec.classes import CLASSES
from refold_schemas.codec.quick import quick_reader
from refold_schemas.codec.resolving import Unresolved, write
from refold_schemas.codec.writing import strict_writer
from refold_schemas.errors import (
    HeaderUnreadable,
    SchemaMismatch,
    UndecodableRecord,
    UnknownSchemaId,
    UnknownSchemaName,
)
from refold_schemas.events import RunCompleted, StepCompleted, StepIntended, TimerFired
from refold_schemas.registry import BadSchema, FileRegistry, Schema
from refold_schemas.registry.avro import parse
from refold_schemas.values import Policy, Value, encode_value
from support.messages import CLAIM_FIELDS, MESSAGE_CLASSES, example, hints, messages, optional

REGISTRY = FileRegistry()
CODEC = Codec(REGISTRY)
EVERY_CLASS = pytest.mark.parametrize("cls", MESSAGE_CLASSES, ids=lambda cls: cls.__name__)


def schema_of(cls: type) -> Schema:
    data = CODEC.encode(example(cls))
    return REGISTRY.schema(int.from_bytes(data[1:5], "big"))


def as_dicts(message: Any) -> Any:
    if dataclasses.is_dataclass(message):
        return {f.name: as_dicts(getattr(message, f.name)) for f in dataclasses.fields(message)}
    return [as_dicts(item) for item in message] if isinstance(message, tuple) else message


@given(st.sampled_from(MESSAGE_CLASSES).flatmap(messages))
def test_every_message_comes_back_equal_through_the_bytes_that_fastavro_writes(
    message: Any,
) -> None:
    data = CODEC.encode(message)
    assert CODEC.decode(data) == message
    assert CODEC.name_of(data) == type(message).__name__
    schema = fastavro.parse_schema(schema_of(type(message)))
    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema, as_dicts(message))
    assert written.getvalue() == data[5:]
    assert fastavro.schemaless_reader(io.BytesIO(data[5:]), schema, None) == as_dicts(message)


@EVERY_CLASS
def test_class_and_schema_have_the_same_fields_in_the_same_order(cls: type) -> None:
    _check_shape(cls, schema_of(cls), {})


def _check_shape(cls: type, schema: Any, seen: dict[str, Any]) -> None:
    full = f"{schema['namespace']}.{schema['name']}"
    assert CLASSES[full] is cls
    seen[full] = schema
    assert schema["doc"]
    assert [field["name"] for field in schema["fields"]] == list(hints(cls))
    for field, annotation in zip(schema["fields"], hints(cls).values(), strict=True):
        assert field["doc"].endswith("."), f"{cls.__name__}.{field['name']} has no doc"
        # What may be absent has a default; so has what an older version did not have yet.
        assert "default" in field or optional(annotation) is None
        _check_type(annotation, field["type"], field["name"], seen)


def _check_type(annotation: Any, schema: Any, name: str, seen: dict[str, Any]) -> None:
    inner = optional(annotation)
    if inner is not None:
        assert schema[0] == "null"
        assert len(schema) == 2
        _check_type(inner, schema[1], name, seen)
    elif typing.get_origin(annotation) is tuple:
        assert schema["type"] == "array"
        _check_type(typing.get_args(annotation)[0], schema["items"], name, seen)
    elif dataclasses.is_dataclass(annotation):
        if isinstance(schema, str):
            assert CLASSES[schema] is annotation
        else:
            _check_shape(cast(type, annotation), schema, seen)
    elif name in CLAIM_FIELDS:
        assert schema == "refold.values.ClaimId" or schema["size"] == 16
    else:
        names = {str: "string", int: "long", bool: "boolean", bytes: "bytes"}
        assert schema == names[annotation]


def test_every_schema_is_valid_avro_of_one_record_under_its_own_name() -> None:
    for schema_id in REGISTRY.all_ids():
        name, version = REGISTRY.name_version(schema_id)
        parsed = fastavro.parse_schema(json.loads(json.dumps(REGISTRY.schema(schema_id))))
        assert isinstance(parsed, dict)
        assert parsed["name"] == name
        assert version >= 1


INTENDED: StepIntended = example(StepIntended)
COMPLETED: StepCompleted = example(StepCompleted)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (replace(INTENDED, slot=cast(Any, None)), "slot"),
        (replace(INTENDED, slot=cast(Any, b"charge#1")), "slot"),
        (replace(INTENDED, slot="\ud800"), "slot"),
        (replace(INTENDED, attempt=cast(Any, 3.7)), "attempt"),
        (replace(INTENDED, attempt=cast(Any, 1.0)), "attempt"),
        (replace(INTENDED, attempt=True), "attempt"),
        (replace(INTENDED, attempt=cast(Any, None)), "attempt"),
        (replace(INTENDED, attempt=cast(Any, "1")), "attempt"),
        (replace(INTENDED, timeout_ms=2**63), "timeout_ms"),
        (replace(INTENDED, timeout_ms=-(2**63) - 1), "timeout_ms"),
        (replace(INTENDED, policy=Policy.KEYED), "policy"),
        (replace(INTENDED, fingerprint=cast(Any, bytearray(32))), "fingerprint"),
        (replace(INTENDED, fingerprint=cast(Any, "00")), "fingerprint"),
        (replace(INTENDED, arguments=cast(Any, [])), "arguments"),
        (replace(INTENDED, arguments=cast(Any, (1,))), "arguments[0]"),
        (replace(INTENDED, key_ttl_ms=cast(Any, 0.5)), "key_ttl_ms"),
        (replace(COMPLETED, result=cast(Any, 5)), "result"),
        (replace(COMPLETED, result=cast(Any, {"type": ""})), "result"),
        (replace(COMPLETED, result=replace(encode_value(1), body="1")), "result.body"),  # type: ignore[arg-type]
        (RunCompleted(None), "result"),  # type: ignore[arg-type]
        (RunCompleted(replace(encode_value(1), type_version=2.0)), "result.type_version"),  # type: ignore[arg-type]
    ],
)
def test_a_field_of_another_type_or_out_of_range_is_refused_by_name(
    message: Any, field: str
) -> None:
    """F33: no 3.7 stored as 3, no True as 1, no integer outside its type."""
    with pytest.raises(SchemaMismatch) as caught:
        CODEC.encode(message)
    assert (caught.value.record, caught.value.field) == (type(message).__name__, field)
    assert f"{type(message).__name__}.{field}" in str(caught.value)


def _misspelled(record: dict[str, Any]) -> None:
    record["efect_key"] = record.pop("effect_key")


def _one_too_many(record: dict[str, Any]) -> None:
    record["colour"] = None


def _one_missing(record: dict[str, Any]) -> None:
    del record["key_ttl_ms"]


def _one_missing_inside(record: dict[str, Any]) -> None:
    del record["arguments"][0]["value"]["key_id"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (_misspelled, "effect_key"),
        (_one_too_many, "colour"),
        (_one_missing, "key_ttl_ms"),
        (_one_missing_inside, "key_id"),
    ],
)
def test_a_misspelled_an_additional_and_a_missing_field_are_refused_by_name(
    change: Any, field: str
) -> None:
    """F32: nullable ones too; fastavro alone would write null for one and drop the other."""
    record = as_dicts(INTENDED)
    schema = parse(schema_of(StepIntended))
    assert write(record, schema) == CODEC.encode(INTENDED)[5:]
    change(record)
    with pytest.raises(Unresolved, match=field):
        write(record, schema)
    if change is not _one_missing_inside:
        with pytest.raises(TypeError, match="argument"):
            StepIntended(**record)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("int", 2**31),
        ("int", True),
        ("int", 1.0),
        ("long", 3.7),
        ("long", 2**63),
        ("long", True),
        ("boolean", 1),
        ("string", b""),
        ("string", "\ud800"),
        ("bytes", ""),
        ("null", 0),
        (["double", "long"], True),
        (["null", "int", "string"], b""),
        ({"type": "fixed", "name": "F", "size": 2}, b"1"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "map", "values": "int"}, {"a": "b"}),
        ({"type": "map", "values": "int"}, {1: 1}),
    ],
    ids=repr,
)
def test_what_an_upcast_returns_is_not_coerced_either(schema: Any, value: Any) -> None:
    with pytest.raises(Unresolved):
        write(value, parse(schema))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (["null", "string", "long"], 9007199254740993),
        (["double", "string"], 0.1),
        ("int", 2**31 - 1),
        ("long", -(2**63)),
        ({"type": "map", "values": ["null", "double"]}, {"a": None, "b": -0.0}),
        ("float", 0.5),
        ("boolean", False),
        ({"type": "fixed", "name": "F", "size": 2}, b"12"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ({"type": "array", "items": {"type": "array", "items": "int"}}, [[0, -1], []]),
        ({"type": "array", "items": {"type": "string"}}, ["\0é🙂"]),
    ],
    ids=repr,
)
def test_every_shape_of_avro_comes_back_exactly(schema: Any, value: Any) -> None:
    back = decode_with(schema, write(value, parse(schema)))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "shape",
    ["int", "double", ["string", "null"], {"type": "map", "values": "long"}],
    ids=repr,
)
def test_a_class_with_a_field_of_a_shape_that_no_message_has_is_refused_when_compiled(
    shape: Any,
) -> None:
    schema = parse({"type": "record", "name": "A", "fields": [{"name": "a", "type": shape}]})
    for compiled in (quick_reader, strict_writer):
        with pytest.raises(BadSchema, match="no class has a field"):
            compiled(schema, {"A": Node})


LIST: Schema = {
    "type": "record", "name": "Node", "namespace": "test",
    "fields": [{"name": "value", "type": "long"}, {"name": "next", "type": ["null", "Node"]}],
}  # fmt: skip


def test_a_recursive_schema_is_read_and_written() -> None:
    record = {"value": 1, "next": {"value": 2, "next": None}}
    assert decode_with(LIST, write(record, parse(LIST))) == record


def test_what_is_no_message_is_refused() -> None:
    for thing in (encode_value(1), {"slot": "a"}, None, 5):
        with pytest.raises(SchemaMismatch) as caught:
            CODEC.encode(thing)  # type: ignore[arg-type]
        assert caught.value.record in ("Value", "dict", "NoneType", "int")


# ---- older versions


@dataclass(frozen=True, slots=True)
class Priced:
    slot: str
    cost_usd_micros: int | None
    tags: tuple[str, ...]


NAME = "refold.events.Priced"
V1: Schema = {
    "type": "record", "name": "Priced", "namespace": "refold.events",
    "fields": [{"name": "slot", "type": "string"}, {"name": "cost", "type": "double"}],
}  # fmt: skip
V2: Schema = {
    "type": "record",
    "name": "Priced",
    "namespace": "refold.events",
    "fields": [
        {"name": "slot", "type": "string"},
        {"name": "cost_usd_micros", "type": ["null", "long"]},
    ],
}
V3: Schema = {
    "type": "record", "name": "Priced", "namespace": "refold.events",
    "fields": [*V2["fields"], {"name": "tags", "type": {"type": "array", "items": "string"}}],
}  # fmt: skip


class VersionedRegistry:
    """Three versions of one record, ids 1 to 3."""

    schemas: typing.ClassVar = {1: V1, 2: V2, 3: V3}
    asks = False

    def id_of(self, name: str, version: int | None = None) -> int:
        if name != NAME:
            raise UnknownSchemaName(name, version)
        return version or 3

    def schema(self, schema_id: int) -> Schema:
        self.name_version(schema_id)
        return self.schemas[schema_id]

    def name_version(self, schema_id: int) -> tuple[str, int]:
        if schema_id not in self.schemas:
            raise UnknownSchemaId("unknown", schema_id=schema_id)
        return NAME, schema_id

    async def learn(self, schema_id: int) -> None:
        self.name_version(schema_id)

    async def ready(self, names: typing.Iterable[str]) -> None: ...

    async def recheck(self) -> None: ...


def v1_to_v2(record: dict[str, Any]) -> dict[str, Any]:
    return {"slot": record["slot"], "cost_usd_micros": round(record["cost"] * 1_000_000)}


def v2_to_v3(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "tags": []}


def framed(schema_id: int, record: dict[str, Any]) -> bytes:
    body = write(record, parse(VersionedRegistry.schemas[schema_id]))
    return b"\0" + schema_id.to_bytes(4, "big") + body


def test_an_older_version_is_read_into_todays_class_through_every_upcast() -> None:
    upcasts = {(NAME, 1): v1_to_v2, (NAME, 2): v2_to_v3}
    codec = Codec(VersionedRegistry(), upcasts=upcasts, classes={NAME: Priced})
    assert codec.decode(framed(1, {"slot": "a#1", "cost": 0.25})) == Priced("a#1", 250_000, ())
    assert codec.decode(framed(2, {"slot": "a#1", "cost_usd_micros": None})) == Priced(
        "a#1", None, ()
    )
    newest = Priced("a#1", 7, ("x",))
    data = codec.encode(newest)  # type: ignore[arg-type]
    assert int.from_bytes(data[1:5], "big") == 3
    assert codec.decode(data) == newest


DEFAULTED: Schema = {
    **V2,
    "fields": [
        *V2["fields"],
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["old"]},
    ],
}


class DefaultedRegistry(VersionedRegistry):
    """As before, but version 3 says what the new field is for older records."""

    schemas: typing.ClassVar = {1: V1, 2: V2, 3: DEFAULTED}


def test_where_there_is_no_upcast_a_new_field_has_the_default_of_its_schema() -> None:
    codec = Codec(DefaultedRegistry(), upcasts={(NAME, 1): v1_to_v2}, classes={NAME: Priced})
    old = codec.decode(framed(2, {"slot": "a#1", "cost_usd_micros": 5}))
    assert old == Priced("a#1", 5, ("old",))
    oldest = codec.decode(framed(1, {"slot": "a#1", "cost": 0.25}))
    assert oldest == Priced("a#1", 250_000, ("old",))


def test_an_upcast_that_is_missing_fails_or_does_not_fit_is_named_with_the_field() -> None:
    codec = Codec(VersionedRegistry(), upcasts={(NAME, 1): v1_to_v2}, classes={NAME: Priced})
    with pytest.raises(UndecodableRecord, match="No default value for field tags"):
        codec.decode(framed(1, {"slot": "a#1", "cost": 0.25}))
    two = framed(2, {"slot": "a#1", "cost_usd_micros": None})
    for upcast, said in [
        (lambda record: record, r"from version 2 to 3 does not fit: .*Priced\.tags is missing"),
        (lambda record: {**record, "tags": [], "x": 1}, "more fields than the schema specifies: x"),
        (lambda record: {**record, "tags": [3.7]}, r"does not fit: refold\.events\.Priced\.tags"),
        (lambda record: {"slot": record["cost"]}, "from version 2 to 3 fails: KeyError: 'cost'"),
        (lambda record: {**record, "cost_usd_micros": ("long", 5)}, "Priced.cost_usd_micros"),
        (lambda record: None, "does not fit"),
    ]:
        codec = Codec(VersionedRegistry(), upcasts={(NAME, 2): upcast}, classes={NAME: Priced})
        with pytest.raises(UndecodableRecord, match=said) as caught:
            codec.decode(two)
        assert caught.value.schema_id == 2


def test_an_older_record_is_checked_before_it_is_read() -> None:
    upcasts = {(NAME, 1): v1_to_v2, (NAME, 2): v2_to_v3}
    codec = Codec(VersionedRegistry(), upcasts=upcasts, classes={NAME: Priced})
    good = framed(1, {"slot": "a#1", "cost": 0.25})
    giant = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    for data in (good[:5] + giant, good[:5] + b"\x80" * 11, good + b"x", good[:5]):
        with pytest.raises(UndecodableRecord):
            codec.decode(data)
    for size in range(5, len(good)):
        with pytest.raises(UndecodableRecord):
            codec.decode(good[:size])


def test_what_another_writer_encodes_in_its_own_way_is_read_all_the_same() -> None:
    """Blocks with their size in bytes, as Avro's Java writer makes them for long arrays."""
    codec = Codec(VersionedRegistry(), classes={NAME: Priced})
    data = codec.encode(Priced("a#1", 7, ("x", "y")))  # type: ignore[arg-type]
    assert data.endswith(b"\x04\x02x\x02y\x00")
    blocks = data[:-6] + b"\x01\x04\x02x" + b"\x01\x04\x02y" + b"\x00"
    assert codec.decode(blocks) == Priced("a#1", 7, ("x", "y"))
    wide = data[:5] + b"\x86\x00" + data[6:]
    assert codec.decode(wide) == Priced("a#1", 7, ("x", "y"))


def test_a_class_that_is_not_what_its_schema_says_is_refused_before_anything_is_written() -> None:
    @dataclass(frozen=True)
    class Other:
        slot: str
        cost: int

    codec = Codec(VersionedRegistry(), classes={NAME: Other})
    with pytest.raises(SchemaMismatch, match="cost, cost_usd_micros, tags"):
        codec.encode(Other("a", 1))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Node:
    value: int
    next: "Node | None"

    def __post_init__(self) -> None:
        if self.value < 0:
            raise ValueError("a class may refuse what its schema takes")


class NodeRegistry:
    """One record that contains itself, id 1."""

    asks = False

    def id_of(self, name: str, version: int | None = None) -> int:
        return 1

    def schema(self, schema_id: int) -> Schema:
        return LIST

    def name_version(self, schema_id: int) -> tuple[str, int]:
        return "test.Node", 1

    async def learn(self, schema_id: int) -> None:
        self.name_version(schema_id)

    async def ready(self, names: typing.Iterable[str]) -> None: ...

    async def recheck(self) -> None: ...


def test_a_class_that_contains_itself_is_read_and_written() -> None:
    codec = Codec(NodeRegistry(), classes={"test.Node": Node})
    chain = Node(1, Node(2, Node(3, None)))
    data = codec.encode(chain)  # type: ignore[arg-type]
    assert codec.decode(data) == chain
    for size in range(len(data)):
        with pytest.raises(UndecodableRecord):
            codec.decode(data[:size])


def test_a_class_that_refuses_a_record_makes_it_undecodable() -> None:
    codec = Codec(NodeRegistry(), classes={"test.Node": Node})
    data = b"\0\0\0\0\1" + write({"value": -1, "next": None}, parse(LIST))
    with pytest.raises(UndecodableRecord, match="a class may refuse"):
        codec.decode(data)


# ---- the record header


@given(
    st.builds(
        RecordHeader,
        st.sampled_from([KIND_EVENT, KIND_CLAIM, KIND_REPORT]),
        st.binary(min_size=16, max_size=16),
        *[st.integers(-(2**63), 2**63 - 1)] * 4,
    )
)
def test_a_header_comes_back_equal(header: RecordHeader) -> None:
    data = header.pack()
    assert len(data) == HEADER_SIZE == 50
    assert RecordHeader.unpack(data) == RecordHeader.read(data) == header


def test_the_layout_of_the_header_is_fixed() -> None:
    header = RecordHeader(KIND_REPORT, bytes(range(16)), 1, 2, 3, -1)
    expected = (
        "0102000102030405060708090a0b0c0d0e0f"
        "000000000000000100000000000000020000000000000003ffffffffffffffff"
    )
    assert header.pack().hex() == expected
    document = Path(__file__).resolve().parents[2] / "docs" / "log-format.md"
    assert f"\n{expected}\n" in document.read_text(encoding="utf-8")


GOOD = RecordHeader(KIND_EVENT, bytes(16), 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("header", "field"),
    [
        (GOOD._replace(claim_id=b"short"), "claim_id"),
        (GOOD._replace(claim_id=bytes(17)), "claim_id"),
        (GOOD._replace(claim_id=cast(Any, "0" * 16)), "claim_id"),
        (GOOD._replace(kind=3), "kind"),
        (GOOD._replace(kind=True), "kind"),
        (GOOD._replace(epoch=2**63), "epoch"),
        (GOOD._replace(n=cast(Any, 1.0)), "n"),
        (GOOD._replace(at_ms=cast(Any, None)), "at_ms"),
        (GOOD._replace(command_next=True), "command_next"),
    ],
)
def test_a_header_that_would_be_cut_or_padded_is_refused_by_field(
    header: RecordHeader, field: str
) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        header.pack()
    assert (caught.value.record, caught.value.field) == ("RecordHeader", field)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (GOOD.pack()[:-1], "49 bytes"),
        (GOOD.pack() + b"x", "51 bytes"),
        (b"\2" + GOOD.pack()[1:], "layout version is 2"),
        (b"\2" + bytes(60), "layout version is 2"),
        (b"\1\3" + GOOD.pack()[2:], "kind is 3"),
        (bytes(50), "layout version is 0"),
    ],
)
def test_a_header_that_is_not_ours_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(HeaderUnreadable, match=reason):
        RecordHeader.unpack(data)
    assert RecordHeader.read(data) is None


def test_the_place_of_a_record_is_added_to_its_error() -> None:
    with pytest.raises(UndecodableRecord) as caught:
        CODEC.decode(CODEC.encode(TimerFired("sleep#1", 1)) + b"x")
    error = caught.value.at("refunds.events", 3, 4711)
    assert type(error) is type(caught.value)
    assert (error.topic, error.partition, error.offset) == ("refunds.events", 3, 4711)
    assert "refunds.events partition 3 offset 4711" in str(error)
    assert error.schema_id == caught.value.schema_id
    unknown = UnknownSchemaId("unknown", schema_id=7).at("t", 0, 1)
    assert isinstance(unknown, UnknownSchemaId)


def test_a_value_in_a_message_is_the_value() -> None:
    value = encode_value({"pence": 4160})
    back = CODEC.decode(CODEC.encode(RunCompleted(value)))
    assert isinstance(back.result, Value)
    assert back == RunCompleted(value)
