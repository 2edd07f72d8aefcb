"""JSON that somebody hands in: of what a reader would drop without a word, nothing is taken."""

from collections import Counter


def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of these members, for `json.loads(…, object_pairs_hook=once_each)`.

    Raises ValueError where a key stands twice: JSON leaves open which one is meant.

    >>> once_each([("id", "a"), ("pence", 4160)])
    {'id': 'a', 'pence': 4160}
    >>> once_each([("id", "a"), ("id", "b")])
    Traceback (most recent call last):
    ValueError: the key 'id' stands twice in one object
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        key, count = Counter(key for key, _ in pairs).most_common(1)[0]
        times = "twice" if count == 2 else f"{count} times"
        shown = key if len(key) <= 50 else f"{key[:50]}…"
        raise ValueError(f"the key {shown!r} stands {times} in one object")
    return found
