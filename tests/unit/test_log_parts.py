"""The pure parts of the log room: partitions, sizes, shares of leases, the blob of a batch."""

import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.log import Entry, Topic, batch_size, murmur2, open_log, partition_for
from refold.log.leases import Lease, share_of, shares_of
from refold.log.rows import FORMAT_ZLIB, RowDamaged, frame, seal, squeeze, unseal
from refold.log.sizes import check_batch
from refold_schemas.errors import BatchTooLarge, LogAdapterMissing, LogUrlInvalid


@pytest.mark.parametrize(
    ("key", "signed"),
    [
        # Kafka, clients/src/test/java/org/apache/kafka/common/utils/UtilsTest.java, testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_kafka(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed % (1 << 32)
    assert partition_for(key.decode(), 32) == (signed & 0x7FFFFFFF) % 32


@given(st.text(max_size=200).filter(lambda text: text.isprintable()), st.integers(1, 1_000))
def test_a_run_id_has_one_partition(run_id: str, count: int) -> None:
    assert 0 <= partition_for(run_id, count) < count
    assert partition_for(run_id, 1) == 0


parts = st.none() | st.binary(max_size=80)
entries = st.builds(Entry, parts, st.none() | st.binary(max_size=400), parts)
steps = st.builds(
    Entry,
    st.sampled_from([b"run-1", b"run-2"]),
    st.binary(max_size=60),
    st.binary(min_size=50, max_size=50),
)
batches = st.lists(entries, min_size=1, max_size=20) | st.lists(steps, min_size=1, max_size=70)


def blob_of(batch: list[Entry], position: int = 77, append_ms: int = 5) -> bytes:
    stored = squeeze(frame(batch))
    return seal(*stored, position=position, record_count=len(batch), append_ms=append_ms)


@given(batches, st.integers(0, 1 << 44))
def test_a_blob_gives_back_its_batch(batch: list[Entry], base_offset: int) -> None:
    records = unseal(
        blob_of(batch), position=77, base_offset=base_offset, record_count=len(batch), append_ms=5
    )
    assert [Entry(r.key, r.value, r.header) for r in records] == batch
    assert [r.offset for r in records] == [base_offset + at for at in range(len(batch))]
    assert {r.append_ms for r in records} == {5}


@given(batches, st.data())
def test_a_blob_that_was_changed_is_refused(batch: list[Entry], data: st.DataObject) -> None:
    blob = bytearray(blob_of(batch))
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(RowDamaged):
        unseal(bytes(blob), position=77, base_offset=0, record_count=len(batch), append_ms=5)
    cut = blob_of(batch)[: data.draw(st.integers(0, len(blob) - 1))]
    with pytest.raises(RowDamaged):
        unseal(cut, position=77, base_offset=0, record_count=len(batch), append_ms=5)


@given(st.binary(max_size=300), st.integers(0, 5), st.booleans())
def test_a_hostile_payload_with_a_valid_checksum_is_refused(
    payload: bytes, count: int, compressed: bool
) -> None:
    """Whatever it says of lengths: an error or records, never a crash or a large allocation."""
    format_ = 1
    if compressed:
        format_, payload = FORMAT_ZLIB, zlib.compress(payload)
    blob = seal(format_, payload, position=1, record_count=count, append_ms=1)
    try:
        records = unseal(blob, position=1, base_offset=0, record_count=count, append_ms=1)
    except RowDamaged:
        return
    assert len(records) == count


def test_numbers_without_end_and_huge_lengths_are_refused() -> None:
    for payload in (b"\xff" * 40, b"\x01\xff\xff\xff\xff\x7f", b"\x01\x00\x00\xff\xff\xff\xff\x7f"):
        blob = seal(1, payload, position=1, record_count=1, append_ms=1)
        with pytest.raises(RowDamaged):
            unseal(blob, position=1, base_offset=0, record_count=1, append_ms=1)
    with pytest.raises(RowDamaged, match="format 9"):
        unseal(
            seal(9, b"x" * 20, position=1, record_count=1, append_ms=1),
            position=1,
            base_offset=0,
            record_count=1,
            append_ms=1,
        )


@given(batches)
def test_a_batch_counts_for_no_less_than_kafka_needs(batch: list[Entry]) -> None:
    """Record batch v2, uncompressed, with the header `refold` (KIP-98's layout, by hand)."""

    def varint(number: int) -> int:
        zigzag = (number << 1) ^ (number >> 63)
        return max(1, (zigzag.bit_length() + 6) // 7)

    total = 61
    for at, (key, value, header) in enumerate(batch):
        body = 1 + varint(1 << 40) + varint(at)
        for part in (key, value):
            body += varint(-1) if part is None else varint(len(part)) + len(part)
        body += (
            1 if header is None else varint(1) + varint(6) + 6 + varint(len(header)) + len(header)
        )
        total += varint(body) + body
    assert total <= batch_size(batch)


def test_a_batch_too_large_says_both_sizes() -> None:
    batch = [Entry(None, b"x" * 100)]
    size = batch_size(batch)
    assert check_batch(Topic.EVENTS, 0, batch, size) == size
    with pytest.raises(BatchTooLarge) as refused:
        check_batch(Topic.EVENTS, 0, batch, size - 1)
    assert (refused.value.size, refused.value.size_max) == (size, size - 1)
    assert str(size) in str(refused.value)
    assert str(size - 1) in str(refused.value)


@given(st.integers(1, 12), st.lists(st.integers(0, 5), min_size=1, max_size=60), st.data())
def test_leases_have_one_owner_and_come_to_rest_even(
    partition_count: int, calls: list[int], data: st.DataObject
) -> None:
    """Any order of calls, joins and deaths; then the living call in turn until nothing moves."""
    leases: dict[int, Lease] = {}
    members: list[str] = []
    told: dict[str, frozenset[int]] = {}

    def call(owner: str) -> None:
        if owner not in members:
            members.append(owner)
        share = share_of(owner, members, leases, partition_count)
        for partition in share.freed:
            del leases[partition]
        for partition in share.taken:
            # Its own that it was leaving: it stays where nobody else is left.
            assert leases.get(partition, Lease(owner, leaving=True)) == Lease(owner, leaving=True)
            leases[partition] = Lease(owner)
        for partition in share.leaving:
            leases[partition] = Lease(owner, leaving=True)
        told[owner] = share.suggested
        every = [partition for partitions in told.values() for partition in partitions]
        assert len(every) == len(set(every)), "one partition, two owners"

    for number in calls:
        owner = f"owner-{number}"
        if owner in members and data.draw(st.integers(0, 9)) == 0:
            members.remove(owner)
            told.pop(owner, None)
            for partition in [p for p, lease in leases.items() if lease.owner == owner]:
                del leases[partition]
        else:
            call(owner)
    if not members:
        call("owner-0")
    for _ in range(2 * len(members) + 2):
        for owner in members:
            call(owner)
    at_rest = dict(told)
    for owner in members:
        call(owner)
    assert told == at_rest, "nothing moves without need"
    sizes = [len(told[owner]) for owner in members]
    assert sum(sizes) == partition_count, "nothing lies idle"
    assert max(sizes) - min(sizes) <= 1


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.frozensets(st.integers(0, 11)), min_size=1),
    st.integers(1, 12),
)
def test_shares_are_even_disjoint_and_move_nothing_without_need(
    held: dict[str, frozenset[int]], count: int
) -> None:
    shares = shares_of(held, count)
    assert sorted(p for share in shares.values() for p in share) == list(range(count))
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    again = shares_of(shares, count)
    assert again == shares


def test_a_kafka_log_without_its_packages_says_which_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("refold.log.kafka")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    with pytest.raises(LogAdapterMissing, match=r"aiokafka is not installed.*refold\[kafka\]"):
        open_log("kafka://127.0.0.1:9092/ns")


@pytest.mark.parametrize(
    "url", ["postgres://ada:hunter2@db/shop", "kafka://ada:hun/ter2@b:9092/x", "ada:hunter2@b/x"]
)
def test_a_log_url_with_a_password_is_refused_without_it(url: str) -> None:
    with pytest.raises(LogUrlInvalid) as refused:
        open_log(url)
    assert "ter2" not in f"{refused.value} {refused.value.url}"
