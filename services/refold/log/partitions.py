"""Where a run lives: the partition of a run id, as Kafka's Java client computes it."""


def murmur2(data: bytes) -> int:
    """The 32-bit murmur2 hash of Kafka's Java client, as an unsigned number.

    Source: Kafka, `org.apache.kafka.common.utils.Utils.murmur2`; Java shows it as signed.

    >>> murmur2(b"21") - (1 << 32)
    -973932308
    """
    length = len(data)
    h = (0x9747B28C ^ length) & 0xFFFFFFFF
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little")
        k = (k * 0x5BD1E995) & 0xFFFFFFFF
        k ^= k >> 24
        k = (k * 0x5BD1E995) & 0xFFFFFFFF
        h = ((h * 0x5BD1E995) & 0xFFFFFFFF) ^ k
    if whole < length:
        h ^= int.from_bytes(data[whole:], "little")
        h = (h * 0x5BD1E995) & 0xFFFFFFFF
    h ^= h >> 13
    h = (h * 0x5BD1E995) & 0xFFFFFFFF
    h ^= h >> 15
    return h


def partition_for(run_id: str, count: int) -> int:
    """The partition, of `count`, to which records of `run_id` belong.

    Murmur2 over the UTF-8 bytes, as Kafka's Java client does for a record with this key;
    librdkafka's default partitioner is another one.

    >>> partition_for("order-48211", 1)
    0
    """
    if count == 1:
        return 0
    return (murmur2(run_id.encode()) & 0x7FFFFFFF) % count
