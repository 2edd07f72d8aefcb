"""What a case varies: the policy, how often things may go wrong, what the world is like."""

from dataclasses import dataclass

KEYED = "keyed"
RESOLVABLE = "resolvable"
ESCALATE = "escalate"


@dataclass(frozen=True, slots=True)
class Settings:
    """The bounds of one case; counts are the most that may happen on one path."""

    policy: str = RESOLVABLE
    workers: int = 2
    claims: int = 2
    attempts: int = 2
    # Faults.
    crashes: int = 0
    unknowns: int = 0
    copies: int = 0  # records that the wire delivers once more
    cuts: int = 0  # times that the log loses its last record
    refusals: int = 0  # times that the far system says that it did not act
    doubts: bool = False  # a call may raise or time out in a living owner
    hangs: bool = False  # a call that gets no answer never returns: its thread cannot be stopped
    # People and commands.
    start: bool = False  # StartRun is a command of its own, else the run exists
    cancels: int = 0  # CancelRun published; a second one is the same command again
    persons: int = 0  # ResolveStep published
    # The far system and what was declared about it.
    deduplicates: bool = True  # a repeat under a living key is answered from the first
    lookup: bool = True  # `keyed` with a lookup by key
    forgets: bool = False  # keys live for a time only
    keeps_refusals: bool = False  # a refusal is stored under its key and replayed
    fresh_keys: bool = False  # the retry of an observed refusal asks for a fresh key
    # Declarations that are wrong; then a contradiction must become visible.
    settle_short: bool = False
    person_wrong: bool = False
    # How the case is explored.
    reduced: bool = True  # drop what cannot matter any more (world.py says why that is sound)
    states_max: int = 400_000

    @property
    def faultless_declarations(self) -> bool:
        """Whether what was declared about the far system, and what people say, is true."""
        return not (self.settle_short or self.person_wrong)
