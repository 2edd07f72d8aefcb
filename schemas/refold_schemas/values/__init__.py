"""Value, canon, fingerprint, effect key, Policy, Retry, lookup answers."""

from refold_schemas.errors.texts import line_of, text_of
from refold_schemas.values.answers import Absent, Found, LookupAnswer, NotDone, Pending, Rejected
from refold_schemas.values.canon import canon, canon_of
from refold_schemas.values.compare import DIGEST_ENCODING, digest_value, values_differ
from refold_schemas.values.faults import decode_error, encode_error
from refold_schemas.values.keys import (
    REFOLD,
    Fingerprints,
    derive_seed,
    derive_uuid,
    effect_key,
    fingerprint,
    is_scalar,
)
from refold_schemas.values.policy import Policy, Retry
from refold_schemas.values.reading import decode_value, decode_value_as
from refold_schemas.values.records import (
    DIGEST_OVER_BYTES,
    Argument,
    ErrorInfo,
    ModelUse,
    Ref,
    Unrecordable,
    Value,
)
from refold_schemas.values.run_ids import RUN_ID_LENGTH_MAX, check_run_id
from refold_schemas.values.secrets import secret_in
from refold_schemas.values.storing import DEPTH_MAX, NODES_MAX, encode_value

__all__ = [
    "DEPTH_MAX",
    "DIGEST_ENCODING",
    "DIGEST_OVER_BYTES",
    "NODES_MAX",
    "REFOLD",
    "RUN_ID_LENGTH_MAX",
    "Absent",
    "Argument",
    "ErrorInfo",
    "Fingerprints",
    "Found",
    "LookupAnswer",
    "ModelUse",
    "NotDone",
    "Pending",
    "Policy",
    "Ref",
    "Rejected",
    "Retry",
    "Unrecordable",
    "Value",
    "canon",
    "canon_of",
    "check_run_id",
    "decode_error",
    "decode_value",
    "decode_value_as",
    "derive_seed",
    "derive_uuid",
    "digest_value",
    "effect_key",
    "encode_error",
    "encode_value",
    "fingerprint",
    "is_scalar",
    "line_of",
    "secret_in",
    "text_of",
    "values_differ",
]
