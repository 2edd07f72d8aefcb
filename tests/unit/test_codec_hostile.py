"""Whatever bytes arrive, decoding ends soon in a message or in an error that says why."""

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold_schemas.codec import Codec, decode_with
from refold_schemas.codec.bounds import DEPTH_MAX, Broken, check
from refold_schemas.codec.classes import CLASSES
from refold_schemas.codec.quick import quick_reader
from refold_schemas.codec.resolving import read
from refold_schemas.errors import SchemaUnavailable, UndecodableRecord, UnknownSchemaId
from refold_schemas.events import StepCompleted, TimerFired
from refold_schemas.registry import BadSchema, FileRegistry
from refold_schemas.registry.avro import parse
from support.messages import MESSAGE_CLASSES, example, messages

REGISTRY = FileRegistry()
CODEC = Codec(REGISTRY)
EVERY_CLASS = pytest.mark.parametrize("cls", MESSAGE_CLASSES, ids=lambda cls: cls.__name__)
OUTSIDE = Path(os.environ.get("REFOLD_OUTSIDE_DATA", "../shared/data"))
NODE = {
    "type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}],
}  # fmt: skip


def decoded(data: bytes) -> Any:
    """The message, or None where it is refused; anything else that is raised fails the test."""
    try:
        return CODEC.decode(data)
    except (UndecodableRecord, SchemaUnavailable):  # another id: of a registry that is not set
        return None


def test_the_published_payloads_that_must_be_rejected_are_rejected() -> None:
    path = OUTSIDE / "avro-must-reject.json"
    if not path.exists():
        pytest.skip(f"{path} is absent: set REFOLD_OUTSIDE_DATA")
    vectors = json.loads(path.read_text(encoding="utf-8"))["vectors"]
    assert len(vectors) >= 9
    for vector in vectors:
        with pytest.raises(UndecodableRecord):
            decode_with(json.loads(vector["schema"]), bytes.fromhex(vector["hex"]))


@pytest.mark.parametrize(
    ("schema", "data", "reason"),
    [
        ("long", b"\x80" * 10, "does not end"),
        ("long", b"\x80" * 9, "bytes end"),
        ("long", b"\x80" * 11, "does not end"),
        ("long", b"\xff" * 9 + b"\x7f", "64 bits"),
        ("int", b"\x80\x80\x80\x80\x10", "32 bits"),
        ("boolean", b"\2", "neither true nor false"),
        ("boolean", b"", "end"),
        ("double", b"\0" * 7, "end"),
        ("float", b"\0" * 3, "end"),
        ("null", b"\0", "follow"),
        ("string", b"\1", "negative"),
        ("bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "are left"),
        ("string", b"\x04\xc3\x28", "UTF-8"),
        ("string", b"\x06\xed\xa0\x80", "UTF-8"),
        ({"type": "fixed", "name": "F", "size": 9}, b"12345678", "end"),
        (["null", "int"], b"\4", "no branch 2"),
        (["null", "int"], b"\1", "no branch -1"),
        (["int", "null"], b"\4", "no branch 2"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\x0f", "are left"),
        ({"type": "array", "items": "int"}, b"\1\xfe\xff\xff\xff\x0f", "are left"),
        ({"type": "array", "items": "int"}, b"\1\1", "negative"),
        ({"type": "array", "items": "int"}, b"\2\0", "end"),
        ({"type": "map", "values": "int"}, b"\xfe\xff\xff\xff\x0f", "are left"),
        (NODE, b"\2" * 100_000 + b"\0", "nested too deep"),
    ],
    ids=lambda item: repr(item)[:40],
)
def test_a_malformed_encoding_is_refused_with_a_reason(
    schema: Any, data: bytes, reason: str
) -> None:
    with pytest.raises(UndecodableRecord, match=reason):
        decode_with(schema, data)


@EVERY_CLASS
@pytest.mark.untraced
def test_every_truncation_is_refused_and_so_is_a_byte_too_many(cls: type) -> None:
    data = CODEC.encode(example(cls))
    for size in range(len(data)):
        with pytest.raises(UndecodableRecord):
            CODEC.decode(data[:size])
    with pytest.raises(UndecodableRecord, match="follow its end"):
        CODEC.decode(data + b"\0")


@EVERY_CLASS
@pytest.mark.untraced
def test_a_changed_byte_gives_a_message_or_a_refusal_never_anything_else(cls: type) -> None:
    data = CODEC.encode(example(cls))
    for index in range(0, len(data), max(1, len(data) // 200)):
        for byte in (0, 1, 0x7F, 0x80, 0xFF):
            decoded(data[:index] + bytes([byte]) + data[index + 1 :])


@given(st.binary(max_size=200), st.sampled_from(FileRegistry().all_ids()))
def test_random_bodies_give_a_message_or_a_refusal(body: bytes, schema_id: int) -> None:
    data = b"\0" + schema_id.to_bytes(4, "big") + body
    message = decoded(data)
    if message is not None:
        assert CODEC.decode(CODEC.encode(message)) == message


@given(st.sampled_from(MESSAGE_CLASSES).flatmap(messages), st.data())
def test_a_spliced_message_gives_a_message_or_a_refusal(message: Any, data: st.DataObject) -> None:
    encoded = CODEC.encode(message)
    start = data.draw(st.integers(5, len(encoded)))
    end = data.draw(st.integers(start, len(encoded)))
    decoded(encoded[:start] + data.draw(st.binary(max_size=12)) + encoded[end:])


@given(st.sampled_from(MESSAGE_CLASSES).flatmap(messages), st.data())
def test_the_quick_reader_takes_nothing_that_the_checked_one_refuses(
    message: Any, data: st.DataObject
) -> None:
    encoded = CODEC.encode(message)
    schema = parse(REGISTRY.schema(int.from_bytes(encoded[1:5], "big")))
    quick = quick_reader(schema, CLASSES)
    check(schema, encoded[5:])
    assert quick(encoded, 5) == (message, len(encoded))
    start = data.draw(st.integers(5, len(encoded)))
    end = data.draw(st.integers(start, len(encoded)))
    spliced = encoded[:start] + data.draw(st.binary(max_size=6)) + encoded[end:]
    try:
        taken = quick(spliced, 5)
    except Exception:  # the checked reader has the last word
        return
    if taken[1] == len(spliced):
        check(schema, spliced[5:])
        assert CODEC.decode(CODEC.encode(taken[0])) == taken[0]


@given(st.binary(max_size=60), st.sampled_from(FileRegistry().all_ids()))
def test_fastavro_reads_whatever_passes_the_check(body: bytes, schema_id: int) -> None:
    schema = parse(REGISTRY.schema(schema_id))
    try:
        check(schema, body)
    except Broken:
        return
    read(body, schema, schema)


def test_a_giant_length_allocates_next_to_nothing() -> None:
    good = CODEC.encode(StepCompleted("a#1", 1, None, None, None, None, None, None))
    giant = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    payloads = [good[:5] + giant, good[:-1] + b"\2" + giant, good[:5] + giant * 20]
    decoded(payloads[0])
    tracemalloc.start()
    try:
        for payload in payloads:
            assert decoded(payload) is None
        with pytest.raises(UndecodableRecord):
            decode_with({"type": "array", "items": "boolean"}, giant)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("items", ["null", {"type": "record", "name": "E", "fields": []}])
def test_a_schema_whose_items_take_no_bytes_is_refused_since_no_reader_could_bound_it(
    items: Any,
) -> None:
    with pytest.raises(BadSchema, match="no bytes"):
        decode_with({"type": "array", "items": items}, b"\0")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (b"\0\0\0\4", "4 bytes"),
        (b"\1\0\0\3\xe9", "first byte is 1"),
        (b'{"run_id":1}', "first byte is 123"),
    ],
)
def test_a_wrong_frame_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(UndecodableRecord, match=reason):
        CODEC.decode(data)
    assert CODEC.name_of(data) is None


def test_a_union_index_of_more_bytes_than_it_needs_is_read() -> None:
    assert decode_with(["null", "long"], b"\x82\x00\x02") == 1
    assert decode_with(["null", "long"], b"\x80\x00") is None
    with pytest.raises(UndecodableRecord, match="no branch 64"):
        decode_with(["null", "long"], b"\x80\x01")


def test_the_path_leads_into_maps_and_arrays() -> None:
    schema = {"type": "map", "values": {"type": "array", "items": "boolean"}}
    with pytest.raises(UndecodableRecord, match=r"value\.a\[1\]: 7 is neither"):
        decode_with(schema, b"\x02\x02a\x04\x01\x07\x00\x00")


@pytest.mark.parametrize(
    "schema",
    [
        [],
        {},
        5,
        "nothing",
        {"type": "array", "items": "Later"},
        {"type": "array"},
        {"type": "enum", "name": "E", "symbols": [1]},
        {"type": "record", "name": "E", "fields": [{"name": "a"}]},
    ],
)
def test_what_is_no_schema_is_said(schema: Any) -> None:
    with pytest.raises(BadSchema):
        decode_with(schema, b"")


def test_values_inside_values_have_a_limit() -> None:
    depth = DEPTH_MAX // 3 - 1  # a record is three levels: its name, the union, its field
    assert decode_with(NODE, b"\2" * depth + b"\0")
    with pytest.raises(UndecodableRecord, match="nested too deep"):
        decode_with(NODE, b"\2" * DEPTH_MAX + b"\0")


def test_names_are_found_in_the_namespace_they_were_defined_in() -> None:
    fixed = {"type": "fixed", "name": "other.F", "size": 1}
    fields = [{"name": "a", "type": fixed}, {"name": "b", "type": "other.F"}]
    record = {"type": "record", "name": "x.R", "fields": fields}
    schema = [record, "x.R", {"type": "error", "name": "E", "namespace": "x", "fields": fields[1:]}]
    assert decode_with(schema, b"\x00ab") == {"a": b"a", "b": b"b"}
    assert decode_with(schema, b"\x04b") == {"b": b"b"}


def test_an_unknown_schema_id_is_an_error_of_its_own_that_names_it() -> None:
    data = b"\0" + (2_000_987_654).to_bytes(4, "big") + b"\0" * 20
    with pytest.raises(UnknownSchemaId) as caught:
        CODEC.decode(data)
    assert caught.value.schema_id == 2_000_987_654
    assert "2000987654" in str(caught.value)
    assert CODEC.name_of(data) is None


def test_an_id_of_a_schema_registry_is_unknown_and_no_verdict_on_the_record() -> None:
    data = b"\0" + (987_654).to_bytes(4, "big") + b"\0" * 20
    told = r"set REFOLD_REGISTRY_URL.*if none was ever used"
    with pytest.raises(SchemaUnavailable, match=told) as caught:
        CODEC.decode(data)
    assert caught.value.schema_id == 987_654
    assert not caught.value.mends
    assert not isinstance(caught.value, UndecodableRecord)
    assert CODEC.name_of(data) is None


def test_a_refusal_names_record_and_field() -> None:
    data = CODEC.encode(TimerFired("sleep#1", 1))
    with pytest.raises(UndecodableRecord, match=r"TimerFired\.timer_id: text is not UTF-8"):
        CODEC.decode(data[:7] + b"\xff" + data[8:])
    with pytest.raises(UndecodableRecord, match=r"TimerFired\.generation: the bytes end"):
        CODEC.decode(data[:-1])
