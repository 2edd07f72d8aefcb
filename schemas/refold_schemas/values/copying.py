"""Copies of plain data: what reading its stored form would give, without reading it."""

from typing import Final

from refold_schemas.values.storing import DEPTH_MAX, NODES_MAX

NOT_PLAIN: Final = object()
"""What `copied` says of everything but plain data."""


def copied(obj: object) -> object:
    """Return plain data anew: equal, of the same kinds, no list or dict of it shared with anything.

    NOT_PLAIN for whatever holds anything but dicts with text keys, lists, texts, numbers, booleans
    and None, or more or deeper ones than a stored value may.

    >>> copied({"pence": [4160]}), copied((1, 2)) is NOT_PLAIN
    ({'pence': [4160]}, True)
    """
    kind = type(obj)
    if kind is str or kind is int or obj is None or kind is bool or kind is float:
        return obj
    if kind is not dict and kind is not list:
        return NOT_PLAIN
    try:
        return _Copying().container(obj, DEPTH_MAX)
    except RecursionError:
        return NOT_PLAIN


class _Copying:
    """One copy under way. `left`: how many more items it may have."""

    left = NODES_MAX

    def container(self, obj: object, depth: int) -> object:
        if type(obj) is dict:
            return self._dict(obj, depth)
        if type(obj) is list:
            return self._list(obj, depth)
        return NOT_PLAIN

    def _dict(self, obj: dict[object, object], depth: int) -> object:
        self.left -= len(obj)
        if depth <= 0 or self.left < 0:
            return NOT_PLAIN
        copy: dict[object, object] = {}
        for key, item in obj.items():
            if type(key) is not str:
                return NOT_PLAIN
            kind = type(item)
            if kind is str or kind is int or item is None or kind is bool or kind is float:
                copy[key] = item
                continue
            made = self.container(item, depth - 1)
            if made is NOT_PLAIN:
                return NOT_PLAIN
            copy[key] = made
        return copy

    def _list(self, obj: list[object], depth: int) -> object:
        self.left -= len(obj)
        if depth <= 0 or self.left < 0:
            return NOT_PLAIN
        copy: list[object] = []
        for item in obj:
            kind = type(item)
            if kind is str or kind is int or item is None or kind is bool or kind is float:
                copy.append(item)
                continue
            made = self.container(item, depth - 1)
            if made is NOT_PLAIN:
                return NOT_PLAIN
            copy.append(made)
        return copy
