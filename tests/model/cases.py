"""The cases in which the rules as written must hold; the short ones make the quick set."""

from typing import Final, NamedTuple

from model.settings import ESCALATE, KEYED, Settings


class Case(NamedTuple):
    """One bounded world; `is_quick` puts it into the quick set."""

    name: str
    title: str
    settings: Settings
    is_quick: bool = False


CASES: Final = (
    Case(
        "claims",
        "three workers claim, appends unknown, a crash",
        Settings(workers=3, claims=3, unknowns=1, crashes=1, attempts=1),
    ),
    Case(
        "start",
        "StartRun and CancelRun twice as commands, append unknown",
        Settings(start=True, cancels=2, unknowns=1, attempts=1),
        is_quick=True,
    ),
    Case(
        "start-copies",
        "StartRun and CancelRun as commands, records doubled twice",
        Settings(start=True, cancels=1, copies=2, attempts=1),
    ),
    Case(
        "resolvable-doubt",
        "resolvable, cancelled, in doubt while alive",
        Settings(cancels=1, doubts=True),
        is_quick=True,
    ),
    Case(
        "resolvable-unknown",
        "resolvable, cancelled, append unknown",
        Settings(cancels=1, unknowns=1),
        is_quick=True,
    ),
    Case(
        "resolvable-crash",
        "resolvable, crash, append unknown, in doubt while alive",
        Settings(crashes=1, unknowns=1, doubts=True),
        is_quick=True,
    ),
    Case(
        "resolvable-copies",
        "resolvable, a record doubled, a refusal",
        Settings(copies=1, refusals=1),
        is_quick=True,
    ),
    Case(
        "resolvable-all",
        "resolvable, cancelled, crash, append unknown, refusal, in doubt while alive",
        Settings(cancels=1, crashes=1, unknowns=1, refusals=1, doubts=True),
    ),
    Case(
        "resolvable-all-copies",
        "resolvable, cancelled, crash, a record doubled, in doubt while alive",
        Settings(cancels=1, crashes=1, copies=1, doubts=True),
    ),
    Case(
        "resolvable-three",
        "resolvable, three claims by two workers, append unknown, crash",
        Settings(claims=3, unknowns=1, crashes=1),
    ),
    Case(
        "resolvable-hangs",
        "resolvable, a thread that never returns",
        Settings(claims=2, hangs=True, doubts=True, cancels=1),
        is_quick=True,
    ),
    Case(
        "resolvable-person",
        "resolvable, a person answers before the lookup, in doubt while alive",
        Settings(persons=1, doubts=True),
    ),
    Case(
        "keyed-doubt",
        "keyed, in doubt while alive",
        Settings(policy=KEYED, doubts=True),
        is_quick=True,
    ),
    Case(
        "keyed-refusal",
        "keyed, in doubt while alive, refusal",
        Settings(policy=KEYED, doubts=True, refusals=1),
    ),
    Case(
        "keyed-cancel",
        "keyed, cancelled, lookup, refusal",
        Settings(policy=KEYED, cancels=1, refusals=1),
    ),
    Case(
        "keyed-person",
        "keyed, cancelled, no lookup, a person",
        Settings(policy=KEYED, cancels=1, lookup=False, persons=1),
    ),
    Case(
        "keyed-unknown",
        "keyed, three claims, append unknown, refusal, three attempts",
        Settings(policy=KEYED, workers=1, claims=3, unknowns=1, refusals=1, attempts=3),
    ),
    Case(
        "keyed-forgets",
        "keyed, the key lives for a time only, crash, in doubt while alive",
        Settings(policy=KEYED, forgets=True, crashes=1, doubts=True),
    ),
    Case(
        "keyed-fresh",
        "keyed, a refusal asks for a fresh key, refusals are replayed",
        Settings(policy=KEYED, fresh_keys=True, keeps_refusals=True, refusals=1, doubts=True),
    ),
    Case(
        "keyed-fresh-passing",
        "keyed, a refusal asks for a fresh key, refusals on the way, three attempts",
        Settings(policy=KEYED, fresh_keys=True, refusals=1, doubts=True, attempts=3, workers=1),
    ),
    Case(
        "escalate-person",
        "escalate, not deduplicated, a person, append unknown",
        Settings(policy=ESCALATE, deduplicates=False, persons=1, unknowns=1),
        is_quick=True,
    ),
    Case(
        "escalate-cancel",
        "escalate, not deduplicated, cancelled, two answers of people",
        Settings(policy=ESCALATE, deduplicates=False, persons=2, cancels=1),
    ),
    Case(
        "escalate-three",
        "escalate, not deduplicated, a person, crash, three claims",
        Settings(policy=ESCALATE, deduplicates=False, persons=1, crashes=1, claims=3),
    ),
    Case(
        "escalate-copies",
        "escalate, not deduplicated, a person, crash, a record doubled",
        Settings(policy=ESCALATE, deduplicates=False, persons=1, crashes=1, copies=1),
    ),
    Case(
        "settle-short",
        "settle declared too short: resolvable, cancelled",
        Settings(cancels=1, settle_short=True),
        is_quick=True,
    ),
    Case(
        "settle-short-doubt",
        "settle declared too short: in doubt while alive, cancelled, crash",
        Settings(cancels=1, doubts=True, crashes=1, settle_short=True),
    ),
    Case(
        "settle-short-repeats",
        "settle declared too short: found by key but not deduplicated",
        Settings(deduplicates=False, settle_short=True),
    ),
    Case(
        "person-wrong",
        "a person is wrong: escalate, cancelled, in doubt while alive",
        Settings(
            policy=ESCALATE,
            deduplicates=False,
            cancels=1,
            persons=1,
            doubts=True,
            person_wrong=True,
        ),
    ),
    Case(
        "cut-keyed",
        "the log is cut: keyed, two workers",
        Settings(policy=KEYED, cuts=1),
    ),
    Case(
        "cut-keyed-cancel",
        "the log is cut: keyed, cancelled, one worker",
        Settings(policy=KEYED, cancels=1, cuts=1, workers=1),
    ),
    Case(
        "cut-resolvable",
        "the log is cut: resolvable, in doubt while alive",
        Settings(doubts=True, cuts=1, workers=1),
        is_quick=True,
    ),
)
