"""Roles: who may do what. Each route names those that may; every role may at least read.

They are a set, not a ladder: who decides about money (`approver`) need not be able to end runs, and
who keeps runs going (`operator`) need not be able to approve. `admin` may everything.
"""

from enum import StrEnum


class Role(StrEnum):
    """What a token or an identity carries; several go together."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    APPROVER = "approver"
    ADMIN = "admin"


KNOWN = frozenset[Role]()
"""What takes no role: to leave. An identity provider lets people in whom its map gives none."""
READ = frozenset(Role)
"""Boundaries, histories, lists: everybody who is known."""
OPERATE = frozenset({Role.OPERATOR, Role.ADMIN})
"""Start, retry, cancel, publish again."""
SETTLE = frozenset({Role.OPERATOR, Role.APPROVER, Role.ADMIN})
"""A person's word on an effect in doubt."""
APPROVE = frozenset({Role.APPROVER, Role.ADMIN})
"""A person's decision on a proposal."""
ADMINISTER = frozenset({Role.ADMIN})


def words(roles: frozenset[Role]) -> str:
    """Roles as people read them, the weakest first.

    >>> words(SETTLE)
    'operator, approver or admin'
    >>> words(ADMINISTER)
    'admin'
    """
    *others, last = [role.value for role in Role if role in roles] or ["none"]
    return f"{', '.join(others)} or {last}" if others else last
