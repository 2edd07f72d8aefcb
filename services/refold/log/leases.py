"""How partitions are shared among live owners: one pure rule for the logs that keep leases."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Lease(NamedTuple):
    """Who holds a partition. `leaving`: the owner was told to hand it over and is doing so."""

    owner: str
    leaving: bool = False


class Share(NamedTuple):
    """What one call of `suggest` changes, and what it answers."""

    suggested: frozenset[int]
    """Partitions to answer with: kept ones and taken ones."""
    taken: frozenset[int]
    """Free partitions that become the owner's."""
    leaving: frozenset[int]
    """Partitions above the owner's share: no longer suggested, but not free yet."""
    freed: frozenset[int]
    """Partitions it was told to leave at an earlier call: free from now on."""


def share_of(
    owner: str, members: Sequence[str], leases: Mapping[int, Lease], partition_count: int
) -> Share:
    """What `owner` holds after this call of `suggest`.

    `members` are the live owners in the order in which they joined, `owner` among them; `leases`
    are those of live owners only, so a partition without one is free. Shares differ by one at
    most. Those who hold most keep the larger share, so that nothing moves without need. A
    partition above the share stays with its owner until its next call, which gives it time to
    hand over (`PartitionReleased`) before another one claims.

    >>> share_of("b", ["a", "b"], {0: Lease("a"), 1: Lease("a")}, 2).suggested
    frozenset()
    >>> sorted(share_of("a", ["a", "b"], {0: Lease("a"), 1: Lease("a")}, 2).leaving)
    [1]
    """
    held: dict[str, list[int]] = {member: [] for member in members}
    freed: list[int] = []
    for partition in sorted(leases):
        lease = leases[partition]
        if lease.leaving and lease.owner == owner:
            freed.append(partition)
        elif not lease.leaving:
            held.setdefault(lease.owner, []).append(partition)
    quota = _quotas({member: len(held[member]) for member in members}, partition_count)[owner]
    mine = held[owner]
    kept, leaving = mine[:quota], mine[quota:]
    # What was freed just now is left to the others, unless nobody else is there.
    free = [p for p in range(partition_count) if p not in leases]
    if len(members) == 1:
        free = sorted([*free, *freed])
        freed = []
    taken = free[: quota - len(kept)] if quota > len(kept) else []
    return Share(
        suggested=frozenset([*kept, *taken]),
        taken=frozenset(taken),
        leaving=frozenset(leaving),
        freed=frozenset(freed) - frozenset(taken),
    )


def shares_of(
    held: Mapping[str, Collection[int]], partition_count: int
) -> dict[str, frozenset[int]]:
    """What each member of a group is to hold; `held` says what it holds now.

    Shares differ by one at most, those who hold most keep the larger ones, and nothing moves
    without need. What two claim to hold stays with the first by name.

    >>> {name: sorted(share) for name, share in shares_of({"a": [0, 1, 2], "b": []}, 3).items()}
    {'a': [0, 1], 'b': [2]}
    """
    free = set(range(partition_count))
    kept: dict[str, list[int]] = {}
    for member in sorted(held):
        kept[member] = sorted(free.intersection(held[member]))
        free.difference_update(kept[member])
    quotas = _quotas({member: len(kept[member]) for member in kept}, partition_count)
    for member, quota in quotas.items():
        free.update(kept[member][quota:])
        del kept[member][quota:]
    left = sorted(free)
    for member, quota in quotas.items():
        need = quota - len(kept[member])
        kept[member] += left[:need]
        del left[:need]
    return {member: frozenset(partitions) for member, partitions in kept.items()}


def _quotas(held: Mapping[str, int], partition_count: int) -> dict[str, int]:
    """How many partitions each may have, those first who hold most; among equals as they come."""
    base, extra = divmod(partition_count, len(held))
    order = sorted(held, key=lambda member: -held[member])
    return {member: base + (at < extra) for at, member in enumerate(order)}
