"""Starts a run with a bare Kafka client and an Avro library, and waits for what became of it.

    python start_run.py 127.0.0.1:9092 shop order 4160 --run-id order-48211

Nothing of refold is imported: what it needs to know is in docs/commands.md. The producer has its
default settings, so a command may reach another partition than its run's: refold sends it on. With
`"partitioner": "murmur2_random"` it reaches the right one at once.
"""

import argparse
import json
import struct
import sys
import time
import uuid
from io import BytesIO
from typing import Any

import fastavro
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

START_RUN_ID = 2_000_002_001
VALUE = {
    "type": "record",
    "name": "Value",
    "namespace": "refold.values",
    "fields": [
        {"name": "type", "type": "string"},
        {"name": "type_version", "type": "long"},
        {"name": "encoding", "type": "string"},
        {"name": "key_id", "type": ["null", "string"], "default": None},
        {"name": "body", "type": ["null", "bytes"], "default": None},
        {
            "name": "ref",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Ref",
                    "fields": [
                        {"name": "digest", "type": "bytes"},
                        {"name": "size", "type": "long"},
                    ],
                },
            ],
            "default": None,
        },
    ],
}
START_RUN = fastavro.parse_schema(
    {
        "type": "record",
        "name": "StartRun",
        "namespace": "refold.commands",
        "fields": [
            {"name": "command_id", "type": "string"},
            {"name": "run_id", "type": "string"},
            {"name": "run", "type": "string"},
            {"name": "input", "type": VALUE},
            {"name": "version", "type": ["null", "string"], "default": None},
            {"name": "by", "type": "string"},
        ],
    }
)
RUN_STARTED_ID, COMMAND_REJECTED_ID = 2_000_001_003, 2_000_001_023
RUN_STARTED = fastavro.parse_schema(
    {
        "type": "record",
        "name": "RunStarted",
        "namespace": "refold.events",
        "fields": [
            {"name": "run", "type": "string"},
            {"name": "version", "type": "string"},
            {"name": "input", "type": VALUE},
            {"name": "nonce", "type": "bytes"},
            {"name": "command_id", "type": "string"},
            {"name": "started_by", "type": "string"},
        ],
    }
)
COMMAND_REJECTED = fastavro.parse_schema(
    {
        "type": "record",
        "name": "CommandRejected",
        "namespace": "refold.events",
        "fields": [
            {"name": "command_id", "type": "string"},
            {"name": "command_type", "type": "string"},
            {"name": "command_offset", "type": "long"},
            {"name": "reason", "type": "string"},
            {"name": "detail", "type": "string"},
            {"name": "raw", "type": ["null", "bytes"], "default": None},
        ],
    }
)
HEADER = struct.Struct(">BB16sqqqq")
KIND_EVENT, KIND_CLAIM = 0, 1


def framed(schema_id: int, schema: Any, record: dict[str, Any]) -> bytes:
    """0x00, the schema's id in four bytes big-endian, the Avro body."""
    out = BytesIO()
    fastavro.schemaless_writer(out, schema, record, strict=True)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


def publish(bootstrap: str, topic: str, run_id: str, value: bytes) -> None:
    """Returns once the broker has it; raises what the broker says."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(
        topic, key=run_id.encode(), value=value, on_delivery=lambda error, _: failed.append(error)
    )
    if producer.flush(60):
        raise TimeoutError("no answer: it may be stored. Send the same bytes again.")
    if failed[0] is not None:
        raise RuntimeError(failed[0].str())


class Claims:
    """Which events of one partition count: those of the latest claim, in the order of their n."""

    def __init__(self) -> None:
        self.epoch, self.claim_id, self.n_next = 0, b"", 0

    def counts(self, header: bytes | None) -> bool:
        """Fed with the `refold` header of each record, in order, from the partition's start.

        Where the beginning was archived, the first events name a claim that is not there any more.
        """
        if header is None or len(header) != HEADER.size:
            return False
        _, kind, claim_id, epoch, n, _, _ = HEADER.unpack(header)
        if kind == KIND_CLAIM and epoch > self.epoch:
            self.epoch, self.claim_id, self.n_next = epoch, claim_id, 0
        elif kind == KIND_EVENT and epoch > self.epoch:  # its claim was archived
            self.epoch, self.claim_id, self.n_next = epoch, claim_id, n + 1
            return True
        elif kind == KIND_EVENT and claim_id == self.claim_id and n == self.n_next:
            self.n_next += 1
            return True
        elif kind == KIND_EVENT and claim_id == self.claim_id and n > self.n_next:
            self.n_next = -1  # a missing n: nothing more of this claim counts
        return False


def outcome(bootstrap: str, topic: str, command_id: str, wait_s: float) -> dict[str, Any]:
    """Reads the events until one that counts carries the command's id."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    try:
        count = len(consumer.list_topics(topic, 30).topics[topic].partitions)
        # Not offset 0, which is gone once the log was archived.
        consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(count)]
        )
        claims = [Claims() for _ in range(count)]
        end = time.monotonic() + wait_s
        while time.monotonic() < end:
            for message in consumer.consume(500, timeout=0.5):
                place: dict[str, Any] = {
                    "partition": message.partition(),
                    "offset": message.offset(),
                }
                headers: dict[str, Any] = dict(message.headers() or ())
                if message.error() or not claims[place["partition"]].counts(headers.get("refold")):
                    continue
                value = message.value() or b""
                schema_id = int.from_bytes(value[1:5], "big")
                if schema_id not in (RUN_STARTED_ID, COMMAND_REJECTED_ID):
                    continue
                schema = RUN_STARTED if schema_id == RUN_STARTED_ID else COMMAND_REJECTED
                event: Any = fastavro.schemaless_reader(BytesIO(value[5:]), schema, None)
                if event["command_id"] != command_id:
                    continue
                if schema_id == RUN_STARTED_ID:
                    return {"started": True, "version": event["version"], **place}
                return {
                    "started": False,
                    "reason": event["reason"],
                    "detail": event["detail"],
                    **place,
                }
    finally:
        consumer.close()
    raise TimeoutError(f"no decision within {wait_s:g} s: is a worker alive?")


def main() -> int:
    """Exit 0 if the run has started, 1 if the command was rejected."""
    parser = argparse.ArgumentParser(description="Start a run of refold without refold.")
    parser.add_argument("bootstrap", help="host:port of a broker")
    parser.add_argument("namespace")
    parser.add_argument("run", help="name of the run function")
    parser.add_argument("input", help="its input, as JSON")
    parser.add_argument("--run-id", default=str(uuid.uuid4()))
    parser.add_argument("--command-id", default=str(uuid.uuid4()), help="the same: applied once")
    parser.add_argument("--wait", type=float, default=60, help="seconds to wait for the decision")
    given = parser.parse_args()
    body = json.dumps(json.loads(given.input)).encode()
    command = {
        "command_id": given.command_id,
        "run_id": given.run_id,
        "run": given.run,
        "input": {
            "type": "",
            "type_version": 1,
            "encoding": "j1",
            "key_id": None,
            "body": body,
            "ref": None,
        },
        "version": None,
        "by": "start_run.py",
    }
    value = framed(START_RUN_ID, START_RUN, command)
    publish(given.bootstrap, f"{given.namespace}.commands", given.run_id, value)
    told = outcome(given.bootstrap, f"{given.namespace}.events", given.command_id, given.wait)
    said = {"run_id": given.run_id, "command_id": given.command_id, **told}
    sys.stdout.write(json.dumps(said) + "\n")
    return 0 if told["started"] else 1


if __name__ == "__main__":
    sys.exit(main())
