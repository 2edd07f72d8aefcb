"""The small records that events and commands are made of: stored values, errors, model usage."""

from refold_schemas.values.frozen import frozen

DIGEST_OVER_BYTES = 16 * 1024
"""Arguments of a step without an intent are kept whole up to this size, above it as a digest."""


@frozen
class Ref:
    """Where a value is that the log does not hold: its SHA-256 and its size in bytes."""

    digest: bytes
    size: int


@frozen
class Value:
    """One stored user value. Exactly one of `body` and `ref` is set.

    `type` is `""` for plain JSON-able data, else `module:qualname` of the model, dataclass or enum.
    `encoding` is `j1`: UTF-8 JSON with tags for what JSON lacks (docs/values.md), or `c1`: only the
    digest of its canonical form was kept, in `ref`.
    `key_id` names the key that an encrypted body needs; None is plain text.
    """

    type: str
    type_version: int
    encoding: str
    key_id: str | None
    body: bytes | None
    ref: Ref | None


@frozen
class Argument:
    """One argument of a step, by parameter name, defaults written out."""

    name: str
    value: Value


@frozen
class ErrorInfo:
    """An exception as the log keeps it.

    `type` is its class name, `path` is `module:qualname`, `args` its arguments where they can be
    stored faithfully (then a declared type comes back as itself on replay).
    """

    type: str
    path: str
    message: str
    args: Value | None


@frozen
class Unrecordable:
    """What is known of a result that could not be stored: the effect happened, the value is gone.

    `path` points into the value (`result.lines[3].price`), `size` is in bytes (0: not measured),
    `repr` is cut to 1,000 characters.
    """

    type: str
    path: str
    reason: str
    size: int
    repr: str


@frozen
class ModelUse:
    """What a model's answer says of itself; None where it does not say."""

    snapshot: str | None
    stop_reason: str | None
    input_tokens: int | None
    output_tokens: int | None
    price_usd_micros: int | None
