"""What is derived from canonical bytes: fingerprint, effect key, `ctx.uuid`, `ctx.random`."""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from refold_schemas.values.canon import canon_at

REFOLD: Final = UUID("cca6099e-8da4-5002-bebb-6ddb3caabf9a")
"""The namespace of every effect key: `uuid5(NAMESPACE_DNS, "refold")`. Fixed for ever."""

CANON_VERSION: Final = 1
"""The first item of what an effect key is made of."""


def fingerprint(nonce: bytes, name: str, arguments: Mapping[str, object]) -> bytes:
    """Return 32 bytes: HMAC-SHA-256 of `canon([name, arguments])` under the run's nonce.

    The caller leaves out volatile arguments and writes defaults out. Raises ValueRefused with the
    argument's path.

    >>> fingerprint(bytes(32), "charge", {"pence": 4160}).hex()[:16]
    '3fbdb86bfbddd511'
    """
    return hmac.digest(nonce, canon_at([name, _plain(arguments)], "call"), "sha256")


class Fingerprints:
    """Makes the fingerprints of one run: what HMAC does with the nonce is done once.

    >>> Fingerprints(bytes(32)).of("charge", {"pence": 4160}).hex()[:16]
    '3fbdb86bfbddd511'
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, nonce: bytes) -> None:
        """`nonce` is the run's."""
        # HMAC written out (RFC 2104): its two hashes are begun once, and a step only copies them.
        # The objects of `hmac` take twice as long for that.
        key = nonce if len(nonce) <= _BLOCK_SIZE else hashlib.sha256(nonce).digest()
        key = key.ljust(_BLOCK_SIZE, b"\0")
        self._inner = hashlib.sha256(key.translate(_INNER_PAD))
        self._outer = hashlib.sha256(key.translate(_OUTER_PAD))

    def of(
        self,
        name: str,
        arguments: Mapping[str, object],
        scalars: Sequence[bytes] | None = None,
    ) -> bytes:
        """Return `fingerprint(nonce, name, arguments)`.

        `scalars` are the stored bodies of all of them, in their order, where each `is_scalar`.
        """
        if scalars:
            text = _canon_of_scalars(name, tuple(arguments), scalars)
        else:
            text = canon_at([name, _plain(arguments)], "call")
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(text)
        outer.update(inner.digest())
        return outer.digest()


_BLOCK_SIZE: Final = 64
_INNER_PAD: Final = bytes([byte ^ 0x36 for byte in range(256)])
_OUTER_PAD: Final = bytes([byte ^ 0x5C for byte in range(256)])


def is_scalar(body: bytes, type_id: str) -> bool:
    """Whether a stored body of a type is a text, a number, null, true or false.

    Of those it is the canonical text.
    """
    return body[0] not in _CONTAINERS and not type_id


def _canon_of_scalars(name: str, parameters: tuple[str, ...], scalars: Sequence[bytes]) -> bytes:
    """`canon([name, arguments])` from the bodies of its arguments, each of which is a scalar."""
    arranged, pieces = _frame(name, parameters)
    text: bytes = pieces % arranged(scalars)
    return text


_CONTAINERS: Final = b"{["
"""How lists, objects and everything with a tag begin."""


@lru_cache(maxsize=1_024)
def _frame(name: str, parameters: tuple[str, ...]) -> tuple[Callable[[Any], Any], bytes]:
    """What brings the arguments of a call into the order they are written in, and a format for
    their bodies.

    The names are those of a function's parameters, so that none begins like a tag.
    """
    order = tuple(sorted(range(len(parameters)), key=lambda at: parameters[at]))
    texts = [canon_at(text, "call").replace(b"%", b"%%") for text in (name, *sorted(parameters))]
    arranged: Callable[[Any], Any] = itemgetter(*order) if len(order) > 1 else tuple
    named = b",".join([key + b":%b" for key in texts[1:]])
    return arranged, b"[" + texts[0] + b",{" + named + b"}]"


def effect_key(
    namespace: str,
    run_id: str,
    era: int,
    slot: str,
    generation: int,
    step: str,
    arguments: Mapping[str, object],
) -> str:
    """Return the UUID, as text, under which the far system knows this effect.

    `uuid5(REFOLD, canon([1, namespace, run_id, era, slot, generation, step, arguments]))`: an
    array, so that no two inputs share an encoding. Computed once, at a slot's first intent, and
    read from the record ever after. Raises ValueRefused with the argument's path.
    Source: RFC 9562, section 5.5.
    """
    named = [CANON_VERSION, namespace, run_id, era, slot, generation, step, _plain(arguments)]
    digest = bytearray(hashlib.sha1(_NAMESPACE + canon_at(named, "call")).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    return _dashed(digest.hex())


def derive_uuid(nonce: bytes, scope: str, counter: int) -> UUID:
    """Return the `counter`-th UUID of a scope: the same on every replay, unguessable without nonce.

    Version 4: to everybody without the nonce it is random.
    """
    digest = bytearray(_derive(nonce, "uuid", scope, counter)[:16])
    digest[6] = digest[6] & 0x0F | 0x40
    digest[8] = digest[8] & 0x3F | 0x80
    return UUID(bytes=bytes(digest))


def derive_seed(nonce: bytes, scope: str, counter: int) -> int:
    """Return a seed of 256 bits for the `counter`-th `ctx.random` of a scope."""
    return int.from_bytes(_derive(nonce, "random", scope, counter), "big")


def _derive(nonce: bytes, purpose: str, scope: str, counter: int) -> bytes:
    return hmac.digest(nonce, canon_at([purpose, scope, counter], "scope"), "sha256")


def _plain(arguments: Mapping[str, object]) -> dict[str, object]:
    return arguments if type(arguments) is dict else dict(arguments)


def _dashed(text: str) -> str:
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_NAMESPACE: Final = REFOLD.bytes
