"""RefoldError and the codes: every public error has a code and a page in docs/errors."""

from refold_schemas.errors.base import RefoldError

__all__ = ["RefoldError"]
