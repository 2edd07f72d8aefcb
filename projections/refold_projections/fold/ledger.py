"""The effect ledger: what a run's state says of each effect key. Pure."""

import json
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from refold_projections.fold.boundary import is_under_way
from refold_projections.fold.evidence import conflicts
from refold_projections.fold.state import ABSENT, DENIED, DONE, UNSETTLED, Attempt, RunState, Slot
from refold_schemas.values import Argument, Policy, Value

UNDER_WAY: Final = "under_way"

Amount = int | Decimal | None
"""A declared amount; None where the argument is no number, or only its digest was kept."""


class LedgerEntry(NamedTuple):
    """One effect: everything that was done under one effect key. Times in milliseconds.

    `attempts` counts those under this key. `outcome`: done, failed, absent, denied, never_started,
    in_doubt or under_way: done if one attempt is, negative only if every one is, then the last
    one's word (design, section 6, "Who speaks for what"). `reported`: what reports say of its
    attempts (completed, failed, never_started), and `conflict` where that contradicts the
    settlement. `absent_until_proven`: its absence is believed, not proven. `last_ms`: its last
    attempt, or the outcome. `attempt` is the number of the one that did it, else of the last.
    """

    effect_key: str
    run_id: str
    slot: str
    step: str
    policy: str
    generation: int
    attempts: int
    outcome: str
    reported: tuple[str, ...]
    amounts: dict[str, Amount]
    absent_until_proven: bool
    first_ms: int
    last_ms: int
    attempt: int


def ledger(state: RunState, claim_id: bytes) -> Iterator[LedgerEntry]:
    """The effects of a run, in the order of their slots' birth, former keys of a slot first.

    `claim_id` is the partition's latest claim that counts, as for `boundary`; under none nothing is
    under way. What has no intent has no effect.
    """
    for slot in sorted(state.slots.values(), key=lambda s: s.born):
        yield from of_slot(state, slot, claim_id)


def of_slot(state: RunState, slot: Slot, claim_id: bytes) -> Iterator[LedgerEntry]:
    """The effects of one slot, oldest generation first; none of a re-executable step."""
    if not slot.effect_key or slot.policy == Policy.RE_EXECUTABLE.value:
        return
    amounts = declared_amounts(slot.arguments, state.amounts.get(slot.step, ()))
    keys = [*state.keys_former.get(slot.name, ()), (slot.generation, slot.effect_key)]
    red = frozenset(conflicts(slot))
    for generation, key in keys:
        attempts = [a for a in slot.attempts if a.generation == generation]
        if not attempts:
            continue
        is_latest = generation == slot.generation
        outcome, number = _outcome(attempts, claim_id)
        proven = not any(a.status in (ABSENT, DENIED) for a in attempts) or outcome == DONE
        last_ms = max(a.at_ms for a in attempts)
        if is_latest and slot.outcome is not None:
            last_ms = max(last_ms, slot.outcome.at_ms)
        reported = {fact for a in attempts for fact in a.evidence}
        if any(a.conflict_written or a.number in red for a in attempts):
            reported.add("conflict")
        yield LedgerEntry(
            key,
            state.run_id,
            slot.name,
            slot.step,
            slot.policy,
            generation,
            len(attempts),
            outcome,
            tuple(sorted(reported)),
            amounts,
            slot.absent_until_proven if is_latest else not proven,
            min(a.at_ms for a in attempts),
            last_ms,
            number,
        )


def _outcome(attempts: list[Attempt], claim_id: bytes) -> tuple[str, int]:
    for attempt in attempts:
        if attempt.status == DONE:
            return DONE, attempt.number
    last = attempts[-1]
    unsettled = [a for a in attempts if a.status in UNSETTLED]
    if not unsettled:
        return last.status, last.number
    doubtful = [a for a in unsettled if not is_under_way(a, claim_id)]
    return ("in_doubt" if doubtful else UNDER_WAY), last.number


def declared_amounts(arguments: tuple[Argument, ...], names: tuple[str, ...]) -> dict[str, Amount]:
    """The numbers of the arguments that are declared as amounts, exactly as they were recorded."""
    if not names:
        return {}
    values = {argument.name: argument.value for argument in arguments}
    return {name: amount_of(values.get(name)) for name in names}


def amount_of(value: Value | None) -> Amount:
    """A recorded number, exactly: a float is the decimal that it is written as.

    >>> amount_of(Value("", 1, "j1", None, b'{"$decimal":"41.60"}', None))
    Decimal('41.60')
    >>> amount_of(Value("", 1, "j1", None, b'"41.60"', None)) is None
    True
    """
    if value is None or value.type or value.encoding != "j1" or value.key_id or not value.body:
        return None
    try:
        tree: Any = json.loads(value.body, parse_float=Decimal)
        if type(tree) is dict and len(tree) == 1:
            tag, text = next(iter(tree.items()))
            if type(text) is str and tag == "$int":
                return int(text, 16)
            tree = Decimal(text) if type(text) is str and tag == "$decimal" else None
    except (ValueError, RecursionError, InvalidOperation):
        return None
    if type(tree) is int:
        return tree
    return tree if type(tree) is Decimal and tree.is_finite() else None


def amounts_json(amounts: dict[str, Amount]) -> str:
    """The amounts as JSON with exact numbers, which a database reads as numeric; null for none.

    >>> amounts_json({"pence": 4160, "fee": Decimal("1.250")})
    '{"pence":4160,"fee":1.250}'
    """
    parts = (
        f"{json.dumps(name)}:{'null' if amount is None else _written(amount)}"
        for name, amount in amounts.items()
    )
    return "{" + ",".join(parts) + "}"


def _written(amount: int | Decimal) -> str:
    if isinstance(amount, int):
        # Beyond 4,300 digits Python writes none; nobody's amount has as many.
        return str(amount) if amount.bit_length() < 10_000 else "null"
    exponent = amount.as_tuple().exponent
    plain = isinstance(exponent, int) and abs(exponent) < 1_000 and abs(amount.adjusted()) < 1_000
    return format(amount, "f") if plain else "null"


__all__ = [
    "Amount",
    "LedgerEntry",
    "amount_of",
    "amounts_json",
    "declared_amounts",
    "ledger",
    "of_slot",
]
