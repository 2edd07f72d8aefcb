"""Strict Avro encoding, framing, the record header."""

from refold_schemas.codec.codec import Codec, Message, decode_with
from refold_schemas.codec.header import (
    HEADER_NAME,
    HEADER_SIZE,
    KIND_CLAIM,
    KIND_EVENT,
    KIND_REPORT,
    ClaimHeaders,
    RecordHeader,
)

__all__ = [
    "HEADER_NAME",
    "HEADER_SIZE",
    "KIND_CLAIM",
    "KIND_EVENT",
    "KIND_REPORT",
    "ClaimHeaders",
    "Codec",
    "Message",
    "RecordHeader",
    "decode_with",
]
