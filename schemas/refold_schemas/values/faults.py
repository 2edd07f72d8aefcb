"""Exceptions as the log keeps them, and back again where that is faithful."""

from collections.abc import Iterable

from refold_schemas.errors import ValueUnreadable
from refold_schemas.errors.texts import text_of
from refold_schemas.values.compare import difference
from refold_schemas.values.kinds import class_id
from refold_schemas.values.reading import decode_value
from refold_schemas.values.records import ErrorInfo, Value
from refold_schemas.values.storing import encode_value

ARGUMENTS_BYTES_MAX = 32_768
"""Stored arguments over it are left out: a failure must always find room in a batch."""


def encode_error(exc: BaseException) -> ErrorInfo:
    """Keep an exception: its class, its message and, where that makes it again, its arguments.

    `args` is set only if they can be stored in 32 KiB and `type(exc)(*args)` has the same arguments
    and attributes. Of a validation error of pydantic's only places and messages are kept, not the
    input. Never raises.

    >>> encode_error(ValueError("no such order"))
    ErrorInfo(type='ValueError', path='builtins:ValueError', message='no such order', \
args=Value(type='', type_version=1, encoding='j1', key_id=None, \
body=b'{"$tuple":["no such order"]}', ref=None))
    """
    return ErrorInfo(
        type(exc).__name__, class_id(type(exc)), text_of(exc), _faithful_arguments(exc)
    )


def decode_error(info: ErrorInfo, types: Iterable[type[BaseException]]) -> BaseException | None:
    """Make the exception again if its class is one of `types` (by its path), else return None.

    >>> decode_error(encode_error(KeyError("a")), (KeyError,))
    KeyError('a')
    """
    for cls in types:
        if class_id(cls) == info.path and info.args is not None:
            try:
                args = decode_value(info.args)
                return cls(*args) if isinstance(args, tuple) else None
            except (ValueUnreadable, TypeError):
                return None  # the class has changed since: its caller still has type and message
    return None


def _faithful_arguments(exc: BaseException) -> Value | None:
    try:
        value = encode_value(exc.args, path="args")
        again = type(exc)(*exc.args)
        kept, made = dict(vars(exc)), dict(vars(again))
        kept.pop("__notes__", None)  # where it was raised says nothing of what it is
        same = (
            type(again) is type(exc)
            and difference(exc.args, again.args, strict=True) is None
            and difference(kept, made, strict=True) is None
            and str(again) == str(exc)
        )
        return value if same and len(value.body or b"") <= ARGUMENTS_BYTES_MAX else None
    except KeyboardInterrupt:
        raise  # not of its making: somebody wants the process to end
    except BaseException:  # not storable, or a constructor that takes other arguments than it keeps
        return None
