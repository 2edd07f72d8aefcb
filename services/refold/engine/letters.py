"""Dead letters: a rejected command for people to read, as JSON in `ns.dead-letters`. Pure.

It is a copy; the truth is `CommandRejected`.
"""

import base64
import json
from typing import Final

from refold.engine.decide import RAW_MAX
from refold.log.port import Entry, Record
from refold_schemas.events import CommandRejected

RAW_BYTES_MAX: Final = 512 * 1024
"""Of a larger command the letter has the beginning alone. So it has of one that takes more than
half of the largest batch: as base64 it takes a third more."""


def letter_of(
    namespace: str,
    partition: int,
    rejection: Record,
    event: CommandRejected,
    command: Record | None,
    batch_size_max: int,
) -> Entry:
    """The letter of a rejection that stands in `ns.events`.

    `command` is what was rejected, None where `ns.commands` does not have it any more: then `raw`
    is what the event kept, whole or not (`raw_whole`). Times are milliseconds since 1970 UTC.
    """
    if command is None:
        raw, whole = event.raw, is_whole(event.raw)
    else:
        value = command.value or b""
        whole = len(value) <= min(RAW_BYTES_MAX, batch_size_max // 2)
        raw = value if whole else value[:RAW_MAX]
    key = None if command is None else command.key
    run_id = None if rejection.key is None else rejection.key.decode("utf-8", "replace")
    said = {
        "namespace": namespace,
        "partition": partition,
        "offset": event.command_offset,
        "reason": event.reason,
        "detail": event.detail,
        "command_type": event.command_type or None,
        "command_id": event.command_id or None,
        "run_id": run_id,
        "sent_ms": None if command is None else command.append_ms,
        "rejected_ms": rejection.append_ms,
        "event_offset": rejection.offset,
        "key": None if key is None else base64.b64encode(key[:RAW_MAX]).decode(),
        "raw": None if raw is None else base64.b64encode(raw).decode(),
        "raw_whole": whole,
    }
    return Entry(rejection.key, json.dumps(said, ensure_ascii=False).encode("utf-8", "replace"))


def is_whole(raw: bytes | None) -> bool:
    """Whether what a rejection kept is surely all there was."""
    return raw is not None and len(raw) < RAW_MAX
