"""The deliberate breaks of the engine: what each changes, the rule it breaks, and what must notice.

A break is text that is found exactly once and what stands there instead. `tests/mutants/run.py`
applies each to a copy of the tree; `docs/mutants.md` has the table.
"""

from typing import NamedTuple

TAIL = "services/refold/engine/tail.py"
ATTEMPTS = "services/refold/engine/attempts.py"
BOOKS = "services/refold/engine/books.py"
CALLS = "services/refold/engine/calls.py"
DECIDE = "services/refold/engine/decide.py"
BASES = "services/refold/engine/bases.py"
INTAKE = "services/refold/engine/intake.py"
PARKING = "services/refold/engine/parking.py"
SENDING = "services/refold/engine/sending.py"
FOREIGN = "tests/simulation/test_commands_from_anybody.py"
TRIMMING = "services/refold/engine/trimming.py"
OWED = "tests/simulation/test_archiving_owed.py"
KEEPING = "services/refold/engine/keeping.py"
OWNER = "services/refold/engine/owner.py"
RECOVERY = "services/refold/engine/recovery.py"
BIRTHS = "services/refold/engine/births.py"
REPORTER = "services/refold/engine/reporter.py"
FAR_SYSTEM = "services/refold/engine/far_system.py"
SETTLING = "services/refold/engine/settling.py"
JUDGING = "tools/refold_tools/reconcile/judging.py"
SELECTING = "tools/refold_tools/reconcile/selecting.py"
POSITION = "projections/refold_projections/fold/position.py"
EVOLVE = "projections/refold_projections/fold/evolve.py"


class Patch(NamedTuple):
    """One place: `old` stands exactly once in the file `path` and becomes `new`."""

    path: str
    old: str
    new: str


class Seeds(NamedTuple):
    """`python -m refold.testing.simulate --seeds FIRST-LAST [--profile PROFILE]` must fail."""

    first: int
    last: int
    profile: str | None = None

    @property
    def words(self) -> str:
        """As one would type it."""
        profile = f" --profile {self.profile}" if self.profile else ""
        return f"simulate --seeds {self.first}-{self.last}{profile}"


class NamedTests(NamedTuple):
    """These tests (pytest's names) must fail."""

    names: tuple[str, ...]

    @property
    def words(self) -> str:
        """As one would type it."""
        return " ".join(self.names)


class Mutant(NamedTuple):
    """`rule` is the sentence that does not hold any more (design, by section)."""

    name: str
    rule: str
    patches: tuple[Patch, ...]
    caught_by: Seeds | NamedTests


def _one(
    name: str, rule: str, path: str, old: str, new: str, caught_by: Seeds | NamedTests
) -> Mutant:
    return Mutant(name, rule, (Patch(path, old, new),), caught_by)


MUTANTS: tuple[Mutant, ...] = (
    # ---- ownership: claim, gap, n
    _one(
        "the_gap_is_not_read",
        "3.1 rule 4: a foreign claim between our last offset and the acknowledged one fences us",
        TAIL,
        "await self._read_gap(offset)",
        "pass",
        Seeds(1, 24),
    ),
    _one(
        "a_foreign_claim_does_not_fence",
        "3.1 rules 1 and 4: an owner that reads a newer claim has lost its own",
        TAIL,
        "if verdict is Verdict.CLAIM and header is not None:",
        "if verdict is Verdict.CLAIM and header is None:",
        Seeds(1, 16),
    ),
    Mutant(
        "an_n_is_used_again_after_unknown",
        "3.1 rules 2 and 5: unknown ends the claim; no n is used twice for different bytes",
        (
            Patch(
                TAIL,
                "        offset = await self._send(entries)\n",
                "        try:\n"
                "            offset = await self._send(entries)\n"
                "        except ClaimUnknown:\n"
                "            self._queue.clear()\n"
                "            self.on_lost(batch[0].n_last + 1 - len(batch[0].entries))\n"
                "            return\n",
            ),
            Patch(
                OWNER,
                "        self.books.tail = self.tail\n",
                "        self.books.tail = self.tail\n"
                "        self.tail.on_lost = lambda n: setattr(self.books, '_n_next', n)\n",
            ),
        ),
        Seeds(1, 24),
    ),
    Mutant(
        "unknown_is_taken_for_stored",
        "3.1 rule 5: no offset, a timeout, any error is unknown, and unknown ends the claim",
        (
            Patch(
                TAIL,
                'raise ClaimUnknown(self.partition, f"{type(error).__name__}: {error}") from error',
                "return self.position.offset_next",
            ),
            Patch(
                TAIL,
                'raise ClaimUnknown(self.partition, f"the log acknowledged with offset '
                '{ack.offset}")',
                "return self.position.offset_next",
            ),
        ),
        Seeds(1, 16),
    ),
    _one(
        "any_claim_counts",
        "3.1 rule 1: a claim counts only if its epoch is higher than that of the one that counts",
        POSITION,
        "if epoch <= claim_epoch:",
        "if epoch < 0:",
        Seeds(1, 24),
    ),
    _one(
        "a_duplicate_counts",
        "3.1 rule 2: an n below the next one is a stored copy and is skipped",
        POSITION,
        "verdict = Verdict.DUPLICATE",
        "verdict = Verdict.COUNTS",
        Seeds(1, 40),
    ),
    _one(
        "a_missing_n_breaks_nothing",
        "3.1 rule 2: behind a missing n nothing more of the claim counts",
        POSITION,
        "verdict, broken = Verdict.BROKEN, True",
        "verdict, n_next, commands = Verdict.COUNTS, n + 1, command_next",
        NamedTests(("tests/unit/test_model_fold.py",)),
    ),
    _one(
        "an_old_end_is_a_cut",
        "3.1 rule 4: a log is cut only if it ends below what had been read when it was asked",
        TAIL,
        "if self.position.offset_next != start:\n                return  # an append",
        "if False:\n                return  # an append",
        NamedTests(("tests/simulation/test_tail.py",)),
    ),
    _one(
        "a_forged_record_is_ours",
        "3.1 rule 2: an n is never used twice for different bytes, or the claim is over",
        TAIL,
        "return any(written == tuple(entry) for entry in self._sent)",
        "return True",
        NamedTests(("tests/simulation/test_tail.py",)),
    ),
    # ---- acting
    _one(
        "it_acts_before_the_acknowledgement",
        "3.1 rule 6: an effect starts only after its intent is acknowledged",
        ATTEMPTS,
        ", then=lambda: self._start(call))",
        ")\n            self._start(call)",
        Seeds(1, 4),
    ),
    Mutant(
        "there_is_no_last_look",
        "3.1 rule 6: a process that wakes late does not act, but records never started",
        (
            Patch(CALLS, "self.clock.boot_ms() >= self.deadline_boot_ms", "False"),
            Patch(CALLS, "or self.clock.wall_ms() >= self.deadline_wall_ms", "or False"),
        ),
        NamedTests(("tests/simulation/test_calls.py",)),
    ),
    _one(
        "a_finished_step_runs_again_on_replay",
        "5: what is recorded is never executed again",
        BIRTHS,
        "        branch.scope.take(definition.name)\n",
        "        if kept is not None and kept.outcome is not None:\n"
        "            stored = self._stored(definition, arguments)\n"
        "            self.asks.append(StepAsked(slot, definition, arguments, mark, stored))\n"
        "        branch.scope.take(definition.name)\n",
        NamedTests(("tests/unit/test_session_replay.py",)),
    ),
    # ---- evidence
    _one(
        "late_reports_are_not_read",
        "3.1 rule 7: every reader keeps reports as a set for each attempt",
        TAIL,
        "if verdict is Verdict.REPORT:",
        "if verdict is Verdict.FOREIGN:",
        Seeds(1, 40),
    ),
    _one(
        "late_answers_are_not_reported",
        "3.1 rule 7: what an old owner learns too late goes to the log as evidence",
        REPORTER,
        "create_task(self._send(call, outcome, entry, bare))",
        "create_task(asyncio.sleep(0))",
        NamedTests(("tests/simulation/test_late_reports.py",)),
    ),
    _one(
        "never_started_speaks_for_the_key",
        '6: "never started" speaks for its own attempt; a slot is absent only if every one is',
        EVOLVE,
        "slot = _settle(state, slot, event.attempt, status, error=event.error)",
        "slot = _settle(state, slot, event.attempt, status, error=event.error, whole_key=True)",
        NamedTests(("tests/unit/test_fold_keys.py",)),
    ),
    # ---- doubt
    _one(
        "an_exception_is_a_failure",
        "6: an exception is not an observed failure",
        ATTEMPTS,
        "if definition.policy is Policy.RE_EXECUTABLE:\n            return True",
        "if definition.policy:\n            return True",
        Seeds(1, 16),
    ),
    _one(
        "a_timeout_is_a_failure",
        "6: a step that does not answer in time is in doubt, in a live process as after a crash",
        ATTEMPTS,
        'self._doubt(call, f"no answer within',
        'self._failed(call, TimeoutError()) or (f"',
        Seeds(1, 16),
    ),
    _one(
        "an_early_absent_is_believed",
        '6: "absent" is believed only when no attempt under the key can act any more',
        RECOVERY,
        "believe = facts.believe_in_ms <= 0 and not facts.running",
        "believe = True",
        Seeds(1, 16),
    ),
    _one(
        "settle_counts_from_the_claim",
        "6: settle counts from the attempt's own end, never from the claim",
        RECOVERY,
        "ended_boot_ms.get(attempt.number, boot_ms)",
        "claimed_boot_ms",
        Seeds(1, 40),
    ),
    _one(
        "a_takeover_waits_for_settle_alone",
        "6: anyone else waits (timeout + settle) x 1.01 from its own claim",
        RECOVERY,
        "(attempt.timeout_ms + attempt.settle_ms) * 101 // 100 + 1",
        "attempt.settle_ms",
        Seeds(1, 40),
    ),
    _one(
        "a_lookup_that_raises_says_absent",
        "6: an exception of a lookup is no answer",
        FAR_SYSTEM,
        'return "none", f"no answer within {timeout_s:g} s"\n'
        '        return "none", describe(error)',
        'return "absent", None\n        return "absent", None',
        Seeds(1, 60, "vendor"),
    ),
    _one(
        "silence_is_a_finding",
        "6: no answer of a far system is unknown, at a reconciliation too",
        JUDGING,
        'answer.kind != "none":\n        difference, unknown',
        "True:\n        difference, unknown",
        NamedTests(("tests/unit/test_reconcile_judging.py",)),
    ),
    _one(
        "a_young_key_is_judged",
        "6: absence says nothing before timeout and settle have passed, at a reconciliation too",
        SELECTING,
        "elif now_ms < settled_ms(slot, entry):",
        "elif False:",
        NamedTests(("tests/simulation/test_reconcile.py",)),
    ),
    _one(
        "a_finding_is_written_again",
        "4: what a reconciliation finds again stands on record already",
        DECIDE,
        """        if same:
            detail = f"finding""",
        """        if False:
            detail = f"finding""",
        NamedTests(("tests/unit/test_ledger.py",)),
    ),
    _one(
        "amounts_are_declared_at_each_intent",
        "4: an event says what is not on record yet",
        ATTEMPTS,
        "if definition.amounts != state.amounts.get(definition.name, ()):",
        "if definition.amounts:",
        NamedTests(("tests/simulation/test_amounts.py",)),
    ),
    _one(
        "a_person_is_believed_too_early",
        '6: "it did not happen" is refused while a call could still act',
        DECIDE,
        "if believe_in_ms > 0:",
        "if False:",
        Seeds(1, 40),
    ),
    # ---- keys
    _one(
        "a_repeat_has_a_key_of_its_own",
        "2: an effect key never depends on the attempt; a repeat goes under the recorded one",
        ATTEMPTS,
        "            key = kept.effect_key\n            if fresh:",
        "            generation += 1\n            if True:",
        Seeds(1, 16),
    ),
    _one(
        "a_forgotten_key_is_used_again",
        "6: a keyed step is repeated only while its key surely lives",
        RECOVERY,
        "< slot.key_ttl_ms",
        "< slot.key_ttl_ms or True",
        NamedTests(("tests/simulation/test_engine_lives.py",)),
    ),
    # ---- commands and time
    _one(
        "commands_are_read_again_after_a_takeover",
        "3.1: the command position is part of the fold, so a command is applied once",
        BOOKS,
        "self.command_next = fold.position.command_next",
        "self.command_next = 0",
        Seeds(1, 8),
    ),
    _one(
        "a_decision_does_not_say_which_command_it_took",
        "3.1: the last event of a command's decision carries the command position",
        BOOKS,
        "if command_next is not None and n == n_last else",
        "if command_next is not None and n > n_last else",
        Seeds(1, 16),
    ),
    _one(
        "timers_fire_twice",
        "4: what is recorded once happens once",
        OWNER,
        "self.books.commit(run_id, (TimerFired(timer_id, generation),), then=then)",
        "[self.books.commit(run_id, (TimerFired(timer_id, generation),), then=t) "
        "for t in (then, None)]",
        Seeds(1, 8),
    ),
    _one(
        "a_cancelled_run_repeats_its_step",
        "6: in a run being cancelled no attempt starts, a keyed step is looked up",
        RECOVERY,
        "if slot.policy == Policy.KEYED.value and state.cancel is None:",
        "if slot.policy == Policy.KEYED.value:",
        Seeds(1, 40),
    ),
    # ---- snapshots
    _one(
        "snapshots_hold_what_is_not_durable",
        "3.3: snapshots are taken from durable state only",
        KEEPING,
        "state = None if packed is not None else books.durable(run_id)",
        "state = None if packed is not None else books.states.get(run_id)",
        Seeds(1, 40),
    ),
    _one(
        "a_position_does_not_wait_for_its_snapshots",
        "3.3: redo_offset is the smallest offset not yet covered by its run's snapshot",
        KEEPING,
        "start = min((base, *holds.values()), key=lambda b: b.position.offset_next)",
        "start = base",
        NamedTests(("tests/simulation/test_checkpoints.py",)),
    ),
    # ---- commands that wait, and commands that go on
    _one(
        "what_is_decided_stays_parked",
        "3.1: a parked command is taken out in the batch of its decision",
        INTAKE,
        "beside = () if parked is None else (decide.unparked(parked),)",
        "beside = ()",
        NamedTests((FOREIGN,)),
    ),
    _one(
        "later_commands_overtake_a_parked_one",
        "3.1: later commands with the key of a parked one wait behind it",
        INTAKE,
        "if owner.books.orders.holds(key_of(record)):",
        "if False:",
        NamedTests((FOREIGN,)),
    ),
    _one(
        "a_misplaced_command_is_decided_where_it_is",
        "3: a command on the wrong partition is never executed there",
        INTAKE,
        "misplaced = place != owner.partition",
        "misplaced = False",
        Seeds(1, 8, "storm"),
    ),
    _one(
        "a_missing_schema_is_believed_at_once",
        "3.1: that the registry has no such schema is believed after a while",
        PARKING,
        "since_ms is None or now_ms - since_ms < limit_ms",
        "since_ms is None or now_ms < since_ms",
        NamedTests((FOREIGN,)),
    ),
    _one(
        "a_checkpoint_forgets_what_is_parked",
        "3.3: a checkpoint has the parked commands",
        BASES,
        "parked=tuple(ParkedKept(*one) for one in orders.parked),",
        "parked=(),",
        Seeds(1, 24, "storm"),
    ),
    _one(
        "a_checkpoint_forgets_what_is_not_sent",
        "3.3: a checkpoint has the outbox's published mark",
        BASES,
        "outbox=tuple(offset for offset in orders.outbox if offset >= orders.published_to),",
        "outbox=(),",
        Seeds(1, 24, "storm"),
    ),
    _one(
        "a_message_without_an_answer_counts_as_sent",
        "3.2: what is in the outbox is sent until the log says that it has it",
        SENDING,
        "                failed = failed or error\n            else:\n",
        "                pass\n            finally:\n",
        NamedTests((FOREIGN,)),
    ),
    # ---- archives
    _one(
        "an_archive_passes_a_parked_command",
        "3.1: nothing from the smallest parked offset on may be trimmed",
        TRIMMING,
        "    if base.orders.parked:\n",
        "    if False:\n",
        NamedTests((OWED,)),
    ),
    _one(
        "an_archive_passes_what_is_not_sent",
        "3.3: what the outbox still reads is not trimmed",
        TRIMMING,
        "min((base.position.last_offset, *base.orders.outbox))",
        "base.position.last_offset",
        NamedTests((OWED,)),
    ),
    _one(
        "an_archive_forgets_what_is_parked",
        "3.3: the position behind an archive has the parked commands",
        "tools/refold_tools/archive/archiving.py",
        "base = Base(reader.position, reader.facts, kept)",
        "base = Base(reader.position, reader.facts)",
        NamedTests((OWED,)),
    ),
)
