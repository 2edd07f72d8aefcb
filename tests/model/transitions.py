"""What may happen next: at the broker, the far system, the clocks, people and workers."""

from collections.abc import Iterator
from typing import Final, TypeAlias

from model.decide import Decision, decisions
from model.fold import DOUBT, OPEN, UNSETTLED, State, is_under_way
from model.interned import Interned
from model.records import INTENDED_FRESH, INTENTS, SAYS_NEVER, Claim, Event, Report
from model.rules import Rules
from model.settings import Settings
from model.world import (
    CANCEL,
    CLAIMING,
    DEAF,
    IN_TIME,
    KEY_FORGOTTEN,
    KEY_LIVES,
    KEY_UNSURE,
    OWNS,
    PAST_DEADLINE,
    PAST_SETTLE,
    READY,
    REFUSED,
    RETURNED,
    SENT,
    STOPPED,
    TOO_LATE,
    UP,
    Call,
    Resolve,
    Worker,
    World,
    idle,
    initial,
    normal,
)

# What happens: its name, the claim of the worker concerned (or -1), particulars for the trace.
Action: TypeAlias = tuple[str, int, object]
Step: TypeAlias = tuple[Action, World]

STORED_LATE: Final = "stored late"
COPIED: Final = "stored, a copy stays on the wire"
ANSWER_LOST: Final = "stored, the answer is lost and the client library sends again"
CUT: Final = "the log is cut"
CRASH: Final = "crashes"
UNKNOWN: Final = "unknown"
REFUSES: Final = "the far system refuses"
NO_ANSWER: Final = "acts, the answer is lost"
SENDS: Final = "sends"
DECIDES: Final = "decides"
ACKNOWLEDGED: Final = "is acknowledged"

# What need not happen for a run to get on: progress must not hang on it.
FAULTS: Final = frozenset(
    {STORED_LATE, COPIED, ANSWER_LOST, CUT, CRASH, UNKNOWN, REFUSES, NO_ANSWER}
)


class Protocol:
    """The protocol under some rules in a world with some settings."""

    def __init__(self, settings: Settings, rules: Rules) -> None:
        self.settings = settings
        self.rules = rules
        self.interned = Interned(rules, attempts=settings.attempts, started=not settings.start)

    def initial(self) -> World:
        """The world before anything has happened."""
        return initial(self.settings, self.interned)

    def steps(self, world: World) -> list[Step]:
        """Everything that may happen next, each with the world after it in normal form."""
        found: list[Step] = []
        for part in (self._broker, self._far_system, self._time, self._people, self._workers):
            for action, after in part(world):
                found.append((action, normal(after, self.settings, self.interned)))
        return found

    def state(self, number: int) -> State:
        """The state with this number."""
        return self.interned.states[number]

    # The log and the wire.

    def _append(self, world: World, records: tuple[int, ...]) -> World:
        """`world` with `records` at the end of its log."""
        end, readers, reported = world.end, world.readers, world.reported
        for record in records:
            if isinstance(self.interned.records[record], Report) and record not in reported:
                reported = tuple(sorted((*reported, record)))
            readers = self._readers(readers, end, record)
            end = self.interned.step(end, record)
        readers = readers - {end}
        return world._replace(
            tail=world.tail + records, end=end, readers=readers, reported=reported
        )

    def _readers(self, readers: frozenset[int], end: int, record: int) -> frozenset[int]:
        """Readers that start right before `record` join those that differ; all of them read it."""
        rules, states, step = self.rules, self.interned.states, self.interned.step
        after = step(end, record)
        starts = set(readers)
        stored = _stored(rules, states[end])
        if stored != states[end]:
            starts.add(self.interned.state_id(stored))
        found = self.interned.records[record]
        if isinstance(found, Claim) and (after != end or not rules.claim_start_counts):
            # A reader that starts at a claim knows nothing of the claims before it.
            blank = states[end]._replace(claim=-7, epoch=found.epoch - 1, n_next=7, broken=True)
            if not rules.claim_start_has_run_state:
                blank = states[self.interned.first]._replace(epoch=found.epoch - 1)
            starts.add(self.interned.state_id(blank))
        return frozenset(step(start, record) for start in starts) - {after}

    def _broker(self, world: World) -> Iterator[Step]:
        budget = world.budget
        for j, batch in enumerate(world.wire):
            if j and world.wire[j - 1] == batch:
                continue
            rest = (*world.wire[:j], *world.wire[j + 1 :])
            after = self._append(world, batch)
            yield (STORED_LATE, -1, batch), after._replace(wire=rest)
            if budget.copies:
                yield (
                    (COPIED, -1, batch),
                    after._replace(budget=budget._replace(copies=budget.copies - 1)),
                )
        if budget.cuts and len(world.tail) > 1:
            end = self.interned.run(world.base, world.tail[:-1])
            yield (
                (CUT, -1, world.tail[-1:]),
                world._replace(
                    tail=world.tail[:-1],
                    end=end,
                    readers=frozenset(),
                    budget=budget._replace(cuts=budget.cuts - 1),
                ),
            )

    # The far system.

    def _far_system(self, world: World) -> Iterator[Step]:
        for j, request in enumerate(world.requests):
            if j and world.requests[j - 1] == request:
                continue
            attempt, generation = request
            rest = (*world.requests[:j], *world.requests[j + 1 :])
            after = self._act(world, generation)
            yield (NO_ANSWER, -1, attempt), after._replace(requests=rest)
        for i, worker in enumerate(world.workers):
            for call in worker.calls:
                if call.where == SENT:
                    yield from self._answer(world, i, worker, call)

    def _act(self, world: World, generation: int) -> World:
        """The far system handles a request: once for a key, if it deduplicates and knows it."""
        count = world.effects[generation]
        known = self.settings.deduplicates and world.key != KEY_FORGOTTEN
        if count < 0 or (count and known):
            return world
        effects = world.effects
        effects = (*effects[:generation], count + 1, *effects[generation + 1 :])
        return world._replace(effects=effects)

    def _answer(self, world: World, i: int, worker: Worker, call: Call) -> Iterator[Step]:
        def moved(world: World, where: int) -> World:
            calls = tuple(c._replace(where=where) if c is call else c for c in worker.calls)
            return self._with(world, i, worker._replace(calls=tuple(sorted(calls))))

        generation, a = call.generation, call.attempt
        after = self._act(world, generation)
        answer = REFUSED if after.effects[generation] < 0 else RETURNED
        yield ("acts and answers", call.claim, a), moved(after, answer)
        yield (NO_ANSWER, call.claim, a), moved(after, DEAF)
        budget = world.budget
        if budget.refusals and world.effects[generation] == 0:
            paid = world._replace(budget=budget._replace(refusals=budget.refusals - 1))
            if self.settings.keeps_refusals:
                effects = world.effects
                paid = paid._replace(
                    effects=(*effects[:generation], -1, *effects[generation + 1 :])
                )
            yield (REFUSES, call.claim, a), moved(paid, REFUSED)

    # Time.

    def _time(self, world: World) -> Iterator[Step]:
        for a, attempt in enumerate(self.state(world.end).attempts):
            if not attempt.status:
                continue
            clock = world.clocks[a]
            if clock == IN_TIME:
                yield ("deadline passes", -1, a), self._clock(world, a, PAST_DEADLINE)
                calling = any(c.attempt == a for w in world.workers for c in w.calls)
                if attempt.status == DOUBT and not calling:
                    yield ("settle passes after its own end", -1, a), self._settle(world, a)
            if clock == PAST_DEADLINE:
                yield ("settle passes", -1, a), self._settle(world, a)
        if self.settings.forgets and any(world.effects):
            if world.key == KEY_LIVES:
                yield ("the key's sure life ends", -1, None), world._replace(key=KEY_UNSURE)
            if world.key == KEY_UNSURE and self._is_quiet(world):
                yield (
                    ("the far system forgets the key", -1, None),
                    world._replace(key=KEY_FORGOTTEN),
                )

    def _clock(self, world: World, a: int, clock: int) -> World:
        return world._replace(clocks=(*world.clocks[:a], clock, *world.clocks[a + 1 :]))

    def _settle(self, world: World, a: int) -> World:
        """After `settle` nothing of attempt `a` is on its way: what did not arrive never will."""
        world = self._clock(world, a, PAST_SETTLE)
        if self.settings.settle_short:
            return world
        requests = tuple(r for r in world.requests if r[0] != a)
        workers = tuple(
            worker._replace(
                calls=tuple(
                    sorted(
                        c._replace(where=DEAF) if c.attempt == a and c.where == SENT else c
                        for c in worker.calls
                    )
                )
            )
            for worker in world.workers
        )
        return world._replace(requests=requests, workers=workers)

    def _is_quiet(self, world: World) -> bool:
        """Whether no attempt can still act that was decided while the key surely lived."""
        known = [a for a, x in enumerate(self.state(world.end).attempts) if x.status]
        settled = all(world.clocks[a] == PAST_SETTLE for a in known)
        idle_calls = not any(
            c.where in (READY, SENT) for worker in world.workers for c in worker.calls
        )
        queued = any(self._is_intent(r) for worker in world.workers for r in worker.pending)
        return settled and idle_calls and not world.requests and not queued

    def _is_intent(self, record: int) -> bool:
        found = self.interned.records[record]
        return isinstance(found, Event) and found.kind in INTENTS

    # People.

    def _people(self, world: World) -> Iterator[Step]:
        budget = world.budget
        if budget.cancels:
            yield (
                ("CancelRun is published", -1, None),
                world._replace(
                    commands=(*world.commands, CANCEL),
                    budget=budget._replace(cancels=budget.cancels - 1),
                ),
            )
        if not budget.persons:
            return
        state = self.state(world.end)
        unsettled = [a for a, x in enumerate(state.attempts) if x.status in UNSETTLED]
        if not unsettled or any(is_under_way(state, a) for a in unsettled):
            return
        seen = sum(1 for x in state.attempts if x.status)
        waited = all(world.clocks[a] == PAST_SETTLE for a in unsettled)
        truth = world.effects[state.attempts[unsettled[-1]].generation] > 0
        for happened in (True, False):
            if happened == truth or self.settings.person_wrong:
                command = Resolve(happened, seen, waited)
                yield (
                    ("a person answers", -1, command),
                    world._replace(
                        commands=(*world.commands, command),
                        budget=budget._replace(persons=budget.persons - 1),
                    ),
                )

    # Workers.

    def _with(self, world: World, i: int, worker: Worker) -> World:
        return world._replace(workers=(*world.workers[:i], worker, *world.workers[i + 1 :]))

    def _workers(self, world: World) -> Iterator[Step]:
        for i, worker in enumerate(world.workers):
            if i and worker == world.workers[i - 1]:
                continue
            if worker.phase not in (UP, STOPPED) or worker.calls:
                if world.budget.crashes:
                    budget = world.budget._replace(crashes=world.budget.crashes - 1)
                    after = self._crash(world, i, worker)._replace(budget=budget)
                    yield (CRASH, worker.claim, None), after
                yield from self._exit(world, i, worker)
            yield from self._calls(world, i, worker)
            if worker.phase == UP and world.budget.claims:
                yield self._claim(world, i, worker)
            if worker.phase == CLAIMING:
                yield from self._claim_answer(world, i, worker)
            if worker.phase == OWNS:
                if worker.pending:
                    yield from self._append_answer(world, i, worker)
                else:
                    yield from self._own(world, i, worker)

    def _crash(self, world: World, i: int, worker: Worker) -> World:
        """The process is gone; what it sent goes on without it."""
        requests = [(c.attempt, c.generation) for c in worker.calls if c.where == SENT]
        world = self._with(world, i, idle(self.interned.first))
        return world._replace(wire=self._sent(world, worker), requests=(*world.requests, *requests))

    def _exit(self, world: World, i: int, worker: Worker) -> Iterator[Step]:
        """A thread that outlives deadline and `lookup_for`: hand over and exit (section 6)."""
        hung = any(c.where == DEAF and world.clocks[c.attempt] == PAST_SETTLE for c in worker.calls)
        if self.settings.hangs and self.rules.hung_worker_exits and hung:
            yield ("exits: its thread hangs", worker.claim, None), self._crash(world, i, worker)

    def _calls(self, world: World, i: int, worker: Worker) -> Iterator[Step]:
        for call in worker.calls:
            if call.where != READY:
                continue
            late = world.clocks[call.attempt] != IN_TIME
            where = TOO_LATE if late and self.rules.last_look else SENT
            calls = tuple(c._replace(where=where) if c is call else c for c in worker.calls)
            after = self._with(world, i, worker._replace(calls=tuple(sorted(calls))))
            name = SENDS if where == SENT else "looks at its deadline: too late"
            yield (name, call.claim, call), after

    def _claim(self, world: World, i: int, worker: Worker) -> Step:
        claim = self.settings.claims - world.budget.claims
        record = self.interned.record_id(Claim(claim, self.state(world.end).epoch + 1))
        after = self._with(
            world, i, worker._replace(phase=CLAIMING, claim=claim, pending=(record,))
        )
        budget = world.budget._replace(claims=world.budget.claims - 1)
        return ("claims", claim, (record,)), after._replace(budget=budget)

    def _claim_answer(self, world: World, i: int, worker: Worker) -> Iterator[Step]:
        after = self._append(world, worker.pending)
        counts = self.state(after.end).claim == worker.claim or not self.rules.claim_checked
        if counts:
            owner = worker._replace(
                phase=OWNS,
                position=len(after.tail),
                state=after.end,
                pending=(),
                last=worker.pending[-1] if self.settings.cuts else -1,
            )
            if not self.rules.claim_checked:
                state = self.state(after.end)._replace(claim=worker.claim, n_next=0)
                owner = owner._replace(state=self.interned.state_id(state))
            owned = self._with(after, i, owner)
            yield ("owns", worker.claim, None), owned
            yield from self._copy_later("owns", worker, owned)
        else:
            yield (
                ("finds that its claim does not count", worker.claim, None),
                self._with(after, i, self._ended(worker)[0]),
            )
        yield from self._copies(world, i, worker, after)
        yield from self._unknown(world, i, worker)

    def _copies(self, world: World, i: int, worker: Worker, stored: World) -> Iterator[Step]:
        """The client library sends again: a first copy is stored, the answer is for the second."""
        if world.budget.copies:
            budget = world.budget._replace(copies=world.budget.copies - 1)
            yield (ANSWER_LOST, worker.claim, worker.pending), stored._replace(budget=budget)

    def _sent(self, world: World, worker: Worker) -> tuple[tuple[int, ...], ...]:
        """The wire, with what `worker` has sent and waits for no more."""
        return (*world.wire, worker.pending) if worker.pending else world.wire

    def _copy_later(self, name: str, worker: Worker, stored: World) -> Iterator[Step]:
        """A copy of what was acknowledged stays on the wire."""
        if stored.budget.copies:
            budget = stored.budget._replace(copies=stored.budget.copies - 1)
            yield (
                (f"{name}, a copy stays on the wire", worker.claim, worker.pending),
                stored._replace(budget=budget, wire=self._sent(stored, worker)),
            )

    def _unknown(self, world: World, i: int, worker: Worker) -> Iterator[Step]:
        """Timeout, offset -1, any error: the claim ends, the batch may still come (3.1 rule 5)."""
        if not world.budget.unknowns:
            return
        paid = world._replace(budget=world.budget._replace(unknowns=world.budget.unknowns - 1))
        late = paid._replace(wire=self._sent(paid, worker))
        detail = worker.pending
        if worker.phase == OWNS and self.rules.unknown == "is ok":
            accepted = self._accepted(late, worker, late.tail[worker.position :], len(late.tail))
            yield ("takes unknown for ok", worker.claim, detail), self._with(late, i, accepted)
        elif worker.phase == OWNS and self.rules.unknown == "decide again":
            anew = worker._replace(pending=())
            yield (
                ("finds nothing and decides again under the same n", worker.claim, detail),
                self._with(late, i, anew),
            )
        else:
            after, reports = self._ended(worker)
            ended = self._with(late, i, after)._replace(wire=(*late.wire, *reports))
            yield (UNKNOWN, worker.claim, detail), ended

    def _ended(
        self, worker: Worker, *, phase: int = UP
    ) -> tuple[Worker, tuple[tuple[int, ...], ...]]:
        """The claim is over: state dropped, calls that have not looked are barred and say so.

        Returns the worker without its claim and the reports for the wire (3.1 rule 7).
        """
        calls: list[Call] = []
        reports: list[tuple[int, ...]] = []

        def never(claim: int, n: int, attempt: int) -> None:
            report = Report(SAYS_NEVER, claim, n, attempt)
            reports.append((self.interned.record_id(report),))

        for call in worker.calls:
            if call.where == READY:
                never(call.claim, call.n, call.attempt)
                if not self.rules.barred_first:
                    calls.append(call)
            else:
                calls.append(call)
        for record in worker.pending:
            event = self.interned.records[record]
            if isinstance(event, Event) and event.kind in INTENTS:
                never(event.claim, event.n, event.attempt)
                if not self.rules.late_acknowledgement_starts_nothing:
                    calls.append(self._call(worker, event))
        return (
            idle(self.interned.first)._replace(phase=phase, calls=tuple(sorted(calls))),
            tuple(reports),
        )

    def _call(self, worker: Worker, event: Event) -> Call:
        state = self.state(worker.state)
        generation = max((x.generation for x in state.attempts if x.status), default=0)
        if event.kind == INTENDED_FRESH:
            generation += 1
        return Call(READY, event.attempt, event.claim, event.n, generation)

    def _is_foreign(self, worker: Worker, gap: tuple[int, ...]) -> bool:
        """Whether a claim in `gap` fences this owner (3.1 rule 4)."""
        state = self.state(worker.state)
        for record in gap:
            found = self.interned.records[record]
            if not isinstance(found, Claim) or found.claim == worker.claim:
                continue
            if found.epoch > state.epoch or not self.rules.epoch_compared:
                return True
        return False

    def _append_answer(self, world: World, i: int, worker: Worker) -> Iterator[Step]:
        offset = len(world.tail)
        gap = world.tail[worker.position :]
        stored = self._append(world, worker.pending)
        lower = offset < worker.position and self.rules.lower_offset_stops
        if lower or self._is_other_log(world, worker):
            after, reports = self._ended(worker, phase=STOPPED)
            stopped = self._with(stored, i, after)
            yield (
                ("stops: the log was cut", worker.claim, None),
                stopped._replace(wire=(*stopped.wire, *reports)),
            )
        elif self.rules.gap_read and self._is_foreign(worker, gap):
            after, reports = self._ended(worker)
            fenced = self._with(stored, i, after)
            yield (
                ("is fenced: a foreign claim lies in the gap", worker.claim, None),
                fenced._replace(wire=(*fenced.wire, *reports)),
            )
        else:
            accepted = self._accepted(stored, worker, gap, len(stored.tail))
            owned = self._with(stored, i, accepted)
            yield (ACKNOWLEDGED, worker.claim, worker.pending), owned
            yield from self._copy_later(ACKNOWLEDGED, worker, owned)
        if not self.rules.batch_whole and len(worker.pending) > 1:
            part = self._append(world, worker.pending[:1])
            accepted = self._accepted(part, worker, gap, len(part.tail))
            yield (
                ("is acknowledged, the batch's tail is lost", worker.claim, worker.pending),
                self._with(part, i, accepted),
            )
        yield from self._copies(world, i, worker, stored)
        yield from self._unknown(world, i, worker)

    def _is_other_log(self, world: World, worker: Worker) -> bool:
        """Whether the record before the owner's position is another one than it read."""
        if not self.settings.cuts or not self.rules.last_record_compared:
            return False
        return world.tail[worker.position - 1 : worker.position] != (worker.last,)

    def _accepted(
        self, world: World, worker: Worker, gap: tuple[int, ...], position: int
    ) -> Worker:
        """The owner after an acknowledgement: its batch was folded when queued, the gap now."""
        before = self.state(worker.state)
        state = self.interned.run(worker.state, worker.pending)
        calls = list(worker.calls)
        for record in worker.pending:
            event = self.interned.records[record]
            assert isinstance(event, Event)
            if event.kind in INTENTS:
                if self.rules.acknowledged_first:
                    calls.append(self._call(worker, event))
            elif event.attempt >= 0 and before.attempts[event.attempt].status == OPEN:
                intent = before.attempts[event.attempt].intent
                over = (READY, RETURNED, REFUSED, TOO_LATE)
                calls = [c for c in calls if (c.claim, c.n) != intent or c.where not in over]
        for record in gap:
            is_report = isinstance(self.interned.records[record], Report)
            if is_report and not self.rules.gap_reports_folded:
                continue
            state = self.interned.step(state, record)
        last = worker.pending[-1] if self.settings.cuts else -1
        return worker._replace(
            state=state,
            position=max(position, worker.position),
            pending=(),
            calls=tuple(sorted(calls)),
            last=last,
        )

    def _own(self, world: World, i: int, worker: Worker) -> Iterator[Step]:
        """An owner with nothing in flight: it reads on, is fenced, or decides."""
        if len(world.tail) < worker.position and self.rules.lower_offset_stops:
            after, reports = self._ended(worker, phase=STOPPED)
            stopped = self._with(world, i, after)
            yield (
                ("stops: the log ends before its position", worker.claim, None),
                stopped._replace(wire=(*stopped.wire, *reports)),
            )
        rest = world.tail[worker.position :]
        if self._is_foreign(worker, rest):
            after, reports = self._ended(worker)
            fenced = self._with(world, i, after)
            yield (
                ("is fenced: it reads a foreign claim", worker.claim, None),
                fenced._replace(wire=(*fenced.wire, *reports)),
            )
        tried: set[int] = set()
        state = worker.state
        for k in range(len(rest) + 1):
            if k:
                if self._is_foreign(worker, rest[:k]):
                    break
                state = self.interned.step(state, rest[k - 1])
            if state in tried:
                continue
            tried.add(state)
            reads = worker._replace(position=worker.position + k, state=state)
            if k and self.settings.cuts:
                if self._is_other_log(world, worker):
                    break
                reads = reads._replace(last=rest[k - 1])
            for decision in decisions(world, reads, self.state(state), self.settings, self.rules):
                yield self._decided(world, i, reads, decision)

    def _decided(self, world: World, i: int, worker: Worker, decision: Decision) -> Step:
        state = self.state(worker.state)
        records: list[int] = []
        calls = worker.calls
        requests = world.requests
        moves = decision.is_command and self.rules.command_position_carried
        for k, (kind, attempt) in enumerate(decision.events):
            is_last = k == len(decision.events) - 1
            command_next = state.command_next + (1 if moves and is_last else 0)
            event = Event(kind, worker.claim, state.n_next + k, attempt, command_next)
            records.append(self.interned.record_id(event))
            if kind in INTENTS and not self.rules.acknowledged_first:
                calls = tuple(sorted((*calls, self._call(worker, event))))
        if decision.ends is not None:
            ended = decision.ends
            calls = tuple(c for c in calls if c is not ended)
            if ended.where == SENT:
                requests = (*requests, (ended.attempt, ended.generation))
        after = self._with(world, i, worker._replace(pending=tuple(records), calls=calls))
        action = (DECIDES, worker.claim, (tuple(records), decision.why))
        return action, after._replace(requests=requests)


def _stored(rules: Rules, state: State) -> State:
    """What a stored position and the state beside it keep of `state` (3.3): all, by the rules."""
    if not rules.position_n_next:
        state = state._replace(n_next=0)
    if not rules.position_claim_epoch:
        state = state._replace(epoch=0)
    if not rules.position_claim_broken:
        state = state._replace(broken=False)
    if not rules.position_intent_names:
        state = state._replace(attempts=tuple(x._replace(intent=(-1, -1)) for x in state.attempts))
    if not rules.position_evidence:
        state = state._replace(
            unplaced=(), attempts=tuple(x._replace(evidence="") for x in state.attempts)
        )
    if not rules.position_settled_attempts:
        state = state._replace(
            attempts=tuple(
                x if x.status in UNSETTLED else x._replace(intent=(-1, -1), evidence="")
                for x in state.attempts
            )
        )
    return state
