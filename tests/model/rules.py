"""The rules of the protocol, one field each; a mutant is these rules with one field changed.

The section of the design that a field stands for is named in its comment. Nothing here is a setting
of refold: the real engine has no such switches.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules as written; every field is the rule kept."""

    # 3.1 rule 1: a claim counts only if its epoch is above that of the latest one that counts.
    epoch_compared: bool = True
    # 3.1 rule 1: a worker owns only if its claim counts.
    claim_checked: bool = True
    # 3.1 rule 2: an event counts only under the latest claim that counts.
    event_needs_claim: bool = True
    # 3.1 rule 2: an `n` below the next one is a stored duplicate: "skip". Broken: "count", "break".
    duplicate: str = "skip"
    # 3.1 rule 2: a missing `n` breaks the claim.
    missing_n_breaks: bool = True
    # 3.1 rule 3: the events of one decision are stored whole or not at all.
    batch_whole: bool = True
    # 3.1 rule 4: a gap before the acknowledged offset is read, a foreign claim in it fences.
    gap_read: bool = True
    # 3.1 rule 4: an offset lower than predicted means that the log was cut.
    lower_offset_stops: bool = True
    # 3.1 rule 4: after a change of leader the last record before the position is compared.
    last_record_compared: bool = True
    # 3.1 rule 4: a report in the gap is folded, since it commutes with the batch.
    gap_reports_folded: bool = True
    # 3.1 rule 5: unknown ends the claim: "end". Broken: "is ok", "decide again".
    unknown: str = "end"
    # 3.1 rule 6: an effect starts only after its intent is acknowledged.
    acknowledged_first: bool = True
    # 3.1 rule 6: a last look at the deadline before the effect.
    last_look: bool = True
    # 3.1 rule 7: `never started` is sent only once the call is barred from starting.
    barred_first: bool = True
    # 3.1 rule 7: a late acknowledgement of an unknown append starts nothing.
    late_acknowledgement_starts_nothing: bool = True
    # 3.1 rule 7: reports stand outside the claim rule.
    report_outside_claim: bool = True
    # 3.1 rule 7: a report names its intent by (claim, n), not by the attempt's number.
    report_names_intent: bool = True
    # 3.1 rule 7: evidence is a set, in any order: also when the report is stored before its intent.
    report_before_intent_kept: bool = True
    # 3.1 rule 7: evidence of a settled attempt is kept.
    evidence_after_settlement: bool = True
    # 3.1 rule 7: `completed` or `failed` of an intent that does not count is a conflict.
    excess_reports_kept: bool = True
    # 3.1 rule 7: a done slot is contradicted only if every attempt under the key is excluded.
    conflict_over_all_attempts: bool = True
    # 3.1 rule 7: a conflict is written as `EvidenceConflict`.
    conflict_written: bool = True
    # 3.1 rule 7: ... in an ended run too.
    conflict_in_ended_run: bool = True
    # 3.1 Commands: dedupe by `command_id`.
    command_deduplicated: bool = True
    # 3.1 Commands: the last event of a decision carries `command_next`.
    command_position_carried: bool = True
    # 3.3: what a stored position and the state beside it keep.
    position_n_next: bool = True
    position_claim_epoch: bool = True
    position_claim_broken: bool = True
    position_intent_names: bool = True
    position_evidence: bool = True
    position_settled_attempts: bool = True
    # 3.3: a reader without a position starts at a claim, with run state from elsewhere.
    claim_start_has_run_state: bool = True
    # 3.3: ... and only at a claim that counts.
    claim_start_counts: bool = True
    # 6: an exception or a timeout leaves the attempt in doubt.
    exception_is_doubt: bool = True
    # 6: "absent" is believed only after timeout and settle.
    settle_awaited: bool = True
    # 6: ... over all attempts of the slot.
    settle_over_all_attempts: bool = True
    # 6: ... by the living owner from the attempt's own end, not from its claim.
    settle_from_own_end: bool = True
    # 6: a worker whose thread outlives deadline and `lookup_for` hands over and exits.
    hung_worker_exits: bool = True
    # 6: `keyed` with no attempt left acts as in a cancelled run.
    keyed_without_attempts_settles: bool = True
    # 6: a rejection speaks for its own attempt, not for the slot.
    rejection_own_attempt: bool = True
    # 6: `never started` speaks for its own attempt.
    never_started_own_attempt: bool = True
    # 6: `keyed` repeats only while the key surely lives.
    key_life_watched: bool = True
    # 2, effect key: a fresh generation only after every attempt under the old key is excluded.
    fresh_key_after_all_excluded: bool = True
    # 6: a cancelled run starts no attempt.
    cancel_starts_nothing: bool = True
    # 6: a cancelled run ends only when no attempt is open.
    cancel_waits: bool = True
    # 6: an "absent" that is the slot's last word is looked up once more.
    last_word_looked_up: bool = True
    # 6: ... and owed also if the cancel came after it.
    proof_owed_after_late_cancel: bool = True
    # 6: `escalate` is never repeated without a person.
    escalate_waits: bool = True
    # 6: `resolve --did-not-happen` is refused until the wait is over, judged by the time of asking:
    # "when asked". Broken: "when decided" (the command may have lain there), "never".
    person_held_back: str = "when asked"
    # 6: ... and is about the attempts that the person saw.
    person_names_attempts: bool = True

    @property
    def folds_as_written(self) -> bool:
        """Whether the fold is the design's; the normal form of a world relies on it."""
        return (
            self.epoch_compared
            and self.event_needs_claim
            and self.duplicate == "skip"
            and self.missing_n_breaks
            and self.report_outside_claim
            and self.report_names_intent
            and self.report_before_intent_kept
            and self.evidence_after_settlement
            and self.excess_reports_kept
        )
