"""Sessions ended before their time: their cookies are refused until they end by themselves."""

from dataclasses import dataclass, field

OF_CALLER_MAX = 100
"""Ended sessions that are kept of one caller; with one more all of its sessions are over."""
CALLERS_MAX = 10_000
"""Callers of whom any are kept; with one more all sessions of everybody are over."""


@dataclass(slots=True)
class _OfCaller:
    """`ids` and until when; sessions that began up to `begun_to` are over, whatever their id."""

    ids: dict[str, float] = field(default_factory=dict)
    begun_to: float = float("-inf")
    until: float = float("-inf")
    """When nothing of this has to be known any more."""


class EndedSessions:
    """What one gateway process knows of them. Times are seconds since 1970.

    It has a limit that forgets nothing: beyond it more sessions end than had to.

    >>> ended = EndedSessions()
    >>> ended.add("token 1", "s1", now=10.0, until=20.0)
    >>> ended.has("token 1", "s1", begun=5.0), ended.has("token 1", "s2", begun=5.0)
    (True, False)
    """

    def __init__(self, of_caller_max: int = OF_CALLER_MAX, callers_max: int = CALLERS_MAX) -> None:
        self._of_caller_max, self._callers_max = of_caller_max, callers_max
        self._callers: dict[str, _OfCaller] = {}
        self._begun_to = float("-inf")

    def add(self, key: str, session_id: str, *, now: float, until: float) -> None:
        """End a session of the caller with this key; by `until` it is over anyhow."""
        mine = self._callers.pop(key, None) or _OfCaller()
        mine.ids = {one: ends for one, ends in mine.ids.items() if ends > now}
        mine.ids[session_id] = until
        mine.until = max(mine.until, until)
        if len(mine.ids) > self._of_caller_max:
            mine.ids, mine.begun_to = {}, now
        self._callers[key] = mine  # the last one now: the first is the first to be forgotten
        while self._callers:
            first = next(iter(self._callers))
            if self._callers[first].until > now:
                break
            del self._callers[first]
        if len(self._callers) > self._callers_max:
            self._callers, self._begun_to = {}, now

    def has(self, key: str, session_id: str, *, begun: float) -> bool:
        """Whether that session, which began at `begun`, was ended."""
        if begun <= self._begun_to:
            return True
        mine = self._callers.get(key)
        return mine is not None and (session_id in mine.ids or begun <= mine.begun_to)
