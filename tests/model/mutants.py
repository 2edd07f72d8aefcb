"""The rules broken one at a time; the model must find a broken property for each."""

from dataclasses import replace
from typing import Final, NamedTuple

from model.rules import Rules
from model.settings import ESCALATE, KEYED, Settings


class Mutant(NamedTuple):
    """One broken rule: its name, where the design states the rule, and a world small enough."""

    name: str
    rule: str
    rules: Rules
    settings: Settings


_ONE: Final = Settings(workers=1, claims=1)
_TWO: Final = Settings()
_CANCEL: Final = Settings(cancels=1)
_KEYED: Final = Settings(policy=KEYED)
_ASK: Final = Settings(policy=ESCALATE, deduplicates=False)
_SHORT: Final = Settings(cancels=1, settle_short=True)
_R: Final = Rules()

MUTANTS: Final = (
    # 3.1 rules 1 and 2: claims and the fold rule.
    Mutant(
        "a doubled claim counts again",
        "3.1 rule 1",
        replace(_R, epoch_compared=False),
        replace(_TWO, copies=1),
    ),
    Mutant(
        "a claim that arrives behind its successor counts",
        "3.1 rule 1",
        replace(_R, epoch_compared=False),
        replace(_TWO, unknowns=1, attempts=1),
    ),
    Mutant(
        "a worker owns whether or not its claim counts",
        "3.1 rule 1",
        replace(_R, claim_checked=False),
        _TWO,
    ),
    Mutant(
        "events count under any claim",
        "3.1 rule 2",
        replace(_R, event_needs_claim=False),
        _ASK,
    ),
    Mutant(
        "a stored duplicate counts again",
        "3.1 rule 2",
        replace(_R, duplicate="count"),
        replace(_ONE, copies=1, doubts=True),
    ),
    Mutant(
        "a stored duplicate breaks the claim",
        "3.1 rule 2",
        replace(_R, duplicate="break"),
        replace(_ONE, copies=1),
    ),
    Mutant(
        "a missing n is tolerated",
        "3.1 rule 2",
        replace(_R, missing_n_breaks=False),
        replace(_ONE, cancels=1, cuts=1),
    ),
    Mutant(
        "a batch is stored in part",
        "3.1 rule 3",
        replace(_R, batch_whole=False),
        replace(_TWO, start=True),
    ),
    # 3.1 rules 4 to 6: the acknowledgement.
    Mutant(
        "the gap before the acknowledged offset is not read",
        "3.1 rule 4",
        replace(_R, gap_read=False),
        _ASK,
    ),
    Mutant(
        "a lower offset is taken for ok",
        "3.1 rule 4",
        replace(_R, lower_offset_stops=False, last_record_compared=False),
        replace(_ONE, cuts=1),
    ),
    Mutant(
        "after a cut only the offset is compared",
        "3.1 rule 4",
        replace(_R, last_record_compared=False),
        replace(_KEYED, cuts=1),
    ),
    Mutant(
        "a report in the gap is not folded",
        "3.1 rule 4",
        replace(_R, gap_reports_folded=False),
        _TWO,
    ),
    Mutant(
        "unknown is taken for ok",
        "3.1 rule 5",
        replace(_R, unknown="is ok"),
        replace(_ONE, claims=2, unknowns=1),
    ),
    Mutant(
        "unknown and not found: decided again under the same n",
        "3.1 rules 2 and 5",
        replace(_R, unknown="decide again"),
        replace(_ONE, cancels=1, unknowns=1),
    ),
    Mutant(
        "an effect starts before its intent is acknowledged",
        "3.1 rule 6",
        replace(_R, acknowledged_first=False),
        _ASK,
    ),
    Mutant(
        "no last look at the deadline",
        "3.1 rule 6",
        replace(_R, last_look=False),
        _CANCEL,
    ),
    # 3.1 rule 7: reports and evidence.
    Mutant(
        "never started is sent and the call may still start",
        "3.1 rule 7",
        replace(_R, barred_first=False),
        _ASK,
    ),
    Mutant(
        "a late acknowledgement starts the call",
        "3.1 rule 7",
        replace(_R, late_acknowledgement_starts_nothing=False),
        replace(_ASK, unknowns=1),
    ),
    Mutant(
        "reports obey the claim rule",
        "3.1 rule 7",
        replace(_R, report_outside_claim=False),
        _TWO,
    ),
    Mutant(
        "a report names the attempt's number",
        "3.1 rule 7",
        replace(_R, report_names_intent=False),
        replace(_ASK, unknowns=1, doubts=True),
    ),
    Mutant(
        "a report that overtakes its intent is dropped",
        "3.1 rule 7",
        replace(_R, report_before_intent_kept=False),
        replace(_ASK, unknowns=1),
    ),
    Mutant(
        "evidence is dropped once the attempt is settled",
        "3.1 rule 7",
        replace(_R, evidence_after_settlement=False),
        _SHORT,
    ),
    Mutant(
        "a report whose intent the cut took is ignored",
        "3.1 rule 7",
        replace(_R, excess_reports_kept=False),
        replace(_ONE, cuts=1, doubts=True),
    ),
    Mutant(
        "a conflict is judged for each attempt",
        "3.1 rule 7",
        replace(_R, conflict_over_all_attempts=False),
        replace(_KEYED, cancels=1, doubts=True),
    ),
    Mutant(
        "a conflict is not written",
        "3.1 rule 7",
        replace(_R, conflict_written=False),
        replace(_TWO, deduplicates=False, settle_short=True),
    ),
    Mutant(
        "a conflict is not written in an ended run",
        "3.1 rule 7",
        replace(_R, conflict_in_ended_run=False),
        replace(_ASK, workers=1, claims=1, cancels=1, persons=1, person_wrong=True, doubts=True),
    ),
    # 3.1, Commands.
    Mutant(
        "a command is not deduplicated",
        "3.1 Commands",
        replace(_R, command_deduplicated=False),
        replace(_ONE, cancels=2),
    ),
    Mutant(
        "the command position is not in the log",
        "3.1 Commands",
        replace(_R, command_position_carried=False, command_deduplicated=False),
        replace(_TWO, start=True),
    ),
    # 3.3: readers.
    Mutant(
        "a stored position without n_next",
        "3.3",
        replace(_R, position_n_next=False),
        _TWO,
    ),
    Mutant(
        "a stored position without claim_epoch",
        "3.3",
        replace(_R, position_claim_epoch=False),
        replace(_TWO, unknowns=1),
    ),
    Mutant(
        "a stored position without claim_broken",
        "3.3",
        replace(_R, position_claim_broken=False),
        replace(_ONE, cuts=1, copies=1, cancels=1),
    ),
    Mutant(
        "a stored position without the intents' names",
        "3.3",
        replace(_R, position_intent_names=False),
        _TWO,
    ),
    Mutant(
        "a stored position without evidence",
        "3.3",
        replace(_R, position_evidence=False),
        _TWO,
    ),
    Mutant(
        "a stored position without settled attempts",
        "3.3",
        replace(_R, position_settled_attempts=False),
        _SHORT,
    ),
    Mutant(
        "a reader starts at a claim without run state",
        "3.3",
        replace(_R, claim_start_has_run_state=False),
        _TWO,
    ),
    Mutant(
        "a reader starts at a claim that does not count",
        "3.3",
        replace(_R, claim_start_counts=False),
        replace(_TWO, unknowns=1),
    ),
    # 6: policies and recovery.
    Mutant(
        "a timeout is taken for a failure",
        "6, an exception is not an observed failure",
        replace(_R, exception_is_doubt=False),
        replace(_ASK, workers=1, claims=1),
    ),
    Mutant(
        "absent is believed at once",
        "6, when absent may be believed",
        replace(_R, settle_awaited=False),
        _CANCEL,
    ),
    Mutant(
        "settle is awaited over the last attempt only",
        "6, when absent may be believed",
        replace(_R, settle_over_all_attempts=False),
        replace(_KEYED, workers=1, claims=1, cancels=1, doubts=True),
    ),
    Mutant(
        "the living owner counts settle from its claim",
        "6, when absent may be believed",
        replace(_R, settle_from_own_end=False),
        replace(_ONE, cancels=1, doubts=True),
    ),
    Mutant(
        "a worker with a hung thread stays",
        "6, when absent may be believed",
        replace(_R, hung_worker_exits=False),
        replace(_ONE, claims=2, doubts=True, hangs=True),
    ),
    Mutant(
        "a rejection settles the slot",
        "6, who speaks for what",
        replace(_R, rejection_own_attempt=False),
        replace(_KEYED, refusals=1),
    ),
    Mutant(
        "never started settles the slot",
        "6, who speaks for what",
        replace(_R, never_started_own_attempt=False),
        _KEYED,
    ),
    Mutant(
        "keyed repeats after the key's life",
        "6, keyed",
        replace(_R, key_life_watched=False),
        replace(_KEYED, forgets=True, doubts=True),
    ),
    Mutant(
        "keyed with no attempt left does nothing",
        "6, who speaks for what",
        replace(_R, keyed_without_attempts_settles=False),
        _KEYED,
    ),
    Mutant(
        "a fresh key while an attempt under the old one is in doubt",
        "2, effect key",
        replace(_R, fresh_key_after_all_excluded=False),
        replace(_KEYED, attempts=3, workers=1, claims=1, doubts=True, refusals=1, fresh_keys=True),
    ),
    Mutant(
        "keyed repeats in a cancelled run",
        "6, keyed",
        replace(_R, cancel_starts_nothing=False),
        replace(_KEYED, cancels=1),
    ),
    Mutant(
        "a cancelled run ends over an open attempt",
        "6, resolvable",
        replace(_R, cancel_waits=False),
        _CANCEL,
    ),
    Mutant(
        "the last word is not looked up again",
        "6, absent_until_proven",
        replace(_R, last_word_looked_up=False),
        replace(_SHORT, workers=1, doubts=True),
    ),
    Mutant(
        "no proof is owed if the cancel came after absent",
        "6, absent_until_proven",
        replace(_R, proof_owed_after_late_cancel=False),
        _SHORT,
    ),
    Mutant(
        "escalate repeats without a person",
        "6, escalate",
        replace(_R, escalate_waits=False),
        _ASK,
    ),
    Mutant(
        "did-not-happen is accepted before the wait is over",
        "6, when absent may be believed",
        replace(_R, person_held_back="never"),
        replace(_ASK, persons=1),
    ),
    Mutant(
        "did-not-happen is judged when it is decided, not when it was asked",
        "6, when absent may be believed",
        replace(_R, person_held_back="when decided"),
        replace(_ASK, persons=1),
    ),
    Mutant(
        "did-not-happen speaks for attempts that the person did not see",
        "6, who speaks for what",
        replace(_R, person_names_attempts=False),
        replace(_TWO, persons=1, doubts=True, claims=1),
    ),
)
