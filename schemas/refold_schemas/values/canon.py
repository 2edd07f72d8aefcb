"""Canonical form v1 of values: equal values have equal bytes, different kinds never do.

The grammar is in `docs/values.md`, with test vectors that are fixed for ever: fingerprints and
effect keys are made of these bytes.
"""

from refold_schemas.errors import ValueRefused, ValueUnreadable
from refold_schemas.values.reading import Unreadable, has_tags, parse_body
from refold_schemas.values.records import Value
from refold_schemas.values.storing import (
    DEPTH_MAX,
    Refused,
    Tree,
    Walk,
    escape,
    is_plain,
    join_type,
    write_sorted,
)


def canon(obj: object) -> bytes:
    """Return the canonical bytes of a Python value. Raises ValueRefused as `encode_value` does.

    >>> canon({"b": 1.0, "a": [1, (2, None)]})
    b'{"a":[1,{"$tuple":[2,null]}],"b":1.0}'
    """
    return canon_at(obj, "value")


def canon_at(obj: object, path: str) -> bytes:
    """Return `canon(obj)`; the path in a ValueRefused begins with `path`."""
    try:
        if is_plain(obj):
            return write_sorted(obj).encode()
    except ValueError:  # NaN or a lone surrogate: the long way finds where
        pass
    except RecursionError:
        raise ValueRefused(path, type(obj).__qualname__, "it is nested too deep") from None
    try:
        return write_sorted(Walk(canonical=True).tree(obj)).encode()
    except Refused as refused:
        raise ValueRefused(path + refused.path, refused.kind, refused.reason) from None
    except RecursionError:
        raise ValueRefused(path, type(obj).__qualname__, "it is nested too deep") from None


def canon_of(value: Value) -> bytes:
    """Return the canonical bytes of a stored value, without its classes being imported.

    `canon_of(encode_value(x)) == canon(x)` for all that can be stored. Raises ValueUnreadable.

    >>> canon_of(Value("shop:Order", 1, "j1", None, b'{"id":7,"at":{"$date":"2026-01-02"}}', None))
    b'{"$record":["Order",{"at":{"$date":"2026-01-02"},"id":7}]}'
    """
    try:
        tree = parse_body(value)
        if value.type or has_tags(value.body):
            tree = _canonical(join_type(value.type, tree), DEPTH_MAX * 4)
        return write_sorted(tree).encode()
    except Unreadable as error:
        raise ValueUnreadable(value.type, str(error)) from error
    except (RecursionError, UnicodeEncodeError) as fault:
        raise ValueUnreadable(value.type, f"it has no canonical form: {fault}") from fault


def _canonical(tree: Tree, depth: int) -> Tree:
    if depth <= 0:
        raise Unreadable(f"it is nested deeper than {DEPTH_MAX}")
    if type(tree) is list:
        return [_canonical(item, depth - 1) for item in tree]
    if type(tree) is not dict:
        return tree
    if len(tree) == 1:
        tag, parts = next(iter(tree.items()))
        if tag == "$" and type(parts) is dict:
            return escape({key: _canonical(item, depth - 1) for key, item in parts.items()})
        if tag[:1] == "$":
            return {tag: _canonical_tag(tag, parts, depth - 1)}
    return {key: _canonical(item, depth - 1) for key, item in tree.items()}


def _canonical_tag(tag: str, parts: Tree, depth: int) -> Tree:
    if type(parts) is not list:
        return _canonical(parts, depth)
    if tag == "$record" and 2 <= len(parts) <= 3:
        return _canonical_record(parts, depth)
    if tag in ("$enum", "$flag") and parts:
        return [_qualname(parts[0]), *(_canonical(item, depth) for item in parts[1:])]
    items = [_canonical(item, depth) for item in parts]
    if tag in ("$set", "$frozenset"):
        items.sort(key=write_sorted)
    elif tag == "$map":
        items.sort(
            key=lambda entry: write_sorted(entry[0] if type(entry) is list and entry else entry)
        )
    return items


def _canonical_record(parts: list[Tree], depth: int) -> Tree:
    out: list[Tree] = [_qualname(parts[0]), _canonical(parts[1], depth)]
    meta = parts[2] if len(parts) == 3 else None
    private = meta.get("private") if type(meta) is dict else None
    if type(private) is dict:
        out.append({"private": {key: _canonical(item, depth) for key, item in private.items()}})
    return out


def _qualname(type_id: Tree) -> Tree:
    # a class that moves to another module is still the same class to its author
    return type_id.partition(":")[2] if type(type_id) is str else type_id
