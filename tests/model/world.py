"""One state of the whole world: log, wire, workers, far system, clocks; and its normal form.

Two worlds with the same normal form have the same future, so only one of them is explored:

- workers have no names, so their order means nothing; what tells them apart is their claim;
- the log keeps only what somebody may still read: the fold of the rest stands for it;
- a batch on the wire that would change nothing if it were stored is dropped. That is for good:
  epochs, `n` and evidence only grow. (Not where logs are cut, since there a fold can go back, and
  not where a rule of the fold is broken.)
- an owner passes over records that change nothing for it, at once: it would whenever it read them;
- the clock of an attempt that is settled and can act no more means nothing;
- a call that ends outside its claim hands its report to the wire at once: the wire may keep it as
  long as it likes, or for ever, which is a crash before the report;
- an acknowledgement is judged in the step that stores the batch: what lies before it is fixed then,
  and a worker that is told later does nothing in between that it could not have done before.
"""

from typing import Final, NamedTuple, TypeAlias

from model.fold import NONE, OPEN, UNSETTLED
from model.interned import Interned
from model.records import SAYS_COMPLETED, SAYS_FAILED, SAYS_NEVER, Report
from model.settings import Settings

# Phases of a worker.
UP: Final = 0
CLAIMING: Final = 1
OWNS: Final = 2
STOPPED: Final = 3

# Where a call is. READY has not looked at its deadline; SENT waits for an answer; DEAF waits for
# one that will never come; the others have ended.
READY: Final = 0
SENT: Final = 1
DEAF: Final = 2
RETURNED: Final = 3
REFUSED: Final = 4
TOO_LATE: Final = 5

SAYS: Final = {RETURNED: SAYS_COMPLETED, REFUSED: SAYS_FAILED, TOO_LATE: SAYS_NEVER}

# Clock of an attempt: 0, 1 its deadline has passed, 2 the far system cannot act on it any more.
IN_TIME: Final = 0
PAST_DEADLINE: Final = 1
PAST_SETTLE: Final = 2

# Life of the effect key at the far system.
KEY_LIVES: Final = 0
KEY_UNSURE: Final = 1
KEY_FORGOTTEN: Final = 2

# Commands, in the order in which they were published.
START: Final = "StartRun"
CANCEL: Final = "CancelRun"


class Resolve(NamedTuple):
    """`ResolveStep`: what a person said, the attempts they saw, if the wait was over then."""

    happened: bool
    attempts_seen: int
    waited: bool


Command: TypeAlias = str | Resolve


class Call(NamedTuple):
    """One call in a worker process; it goes on whatever becomes of the claim that made it."""

    where: int
    attempt: int
    claim: int
    n: int
    generation: int


class Worker(NamedTuple):
    """One worker process; `position` is its place in `World.tail`, `last` the record before it."""

    phase: int
    claim: int
    position: int
    state: int
    pending: tuple[int, ...]
    calls: tuple[Call, ...]
    last: int


class Budget(NamedTuple):
    """How often each thing may still happen."""

    claims: int
    crashes: int
    unknowns: int
    copies: int
    cuts: int
    refusals: int
    cancels: int
    persons: int


class World(NamedTuple):
    """Everything there is. States and records are numbers of `Interned`."""

    base: int  # fold of the log before `tail`
    tail: tuple[int, ...]
    end: int  # fold of the whole log
    wire: tuple[tuple[int, ...], ...]  # batches for whose acknowledgement nobody waits
    workers: tuple[Worker, ...]
    requests: tuple[tuple[int, int], ...]  # on their way, caller gone: (attempt, generation)
    effects: tuple[int, ...]  # per generation of the key: how often it acted; -1 a stored refusal
    clocks: tuple[int, ...]
    key: int
    commands: tuple[Command, ...]
    budget: Budget
    reported: tuple[int, ...]  # reports that were stored; for the checks only
    readers: frozenset[int]  # states of readers that differ from `end`; for the checks only


def idle(first: int) -> Worker:
    """A worker process that has just started and owns nothing."""
    return Worker(UP, -1, 0, first, (), (), -1)


def initial(settings: Settings, interned: Interned) -> World:
    """The world before anything has happened."""
    budget = Budget(
        settings.claims,
        settings.crashes,
        settings.unknowns,
        settings.copies,
        settings.cuts,
        settings.refusals,
        settings.cancels,
        settings.persons,
    )
    first = interned.first
    return World(
        base=first,
        tail=(),
        end=first,
        wire=(),
        workers=(idle(first),) * settings.workers,
        requests=(),
        effects=(0,) * settings.attempts,
        clocks=(IN_TIME,) * settings.attempts,
        key=KEY_LIVES,
        commands=(START,) if settings.start else (),
        budget=budget,
        reported=(),
        readers=frozenset(),
    )


def is_inside(worker: Worker, call: Call, interned: Interned) -> bool:
    """Whether the outcome of `call` may still become an event of the claim that made it."""
    if worker.phase != OWNS or worker.claim != call.claim:
        return False
    attempt = interned.states[worker.state].attempts[call.attempt]
    # An intent that is not folded yet: only with the rule "acknowledged first" broken.
    unfolded = attempt.intent != (call.claim, call.n) and attempt.status == ""
    return unfolded or attempt.status == OPEN


def normal(world: World, settings: Settings, interned: Interned) -> World:
    """The normal form of `world`."""
    wire = list(world.wire)
    workers: list[Worker] = []
    step = interned.step
    tail = world.tail
    reduced = settings.reduced and not settings.cuts and interned.rules.folds_as_written
    read_by_all = len(tail)
    for worker in world.workers:
        if worker.calls:
            calls = _calls(worker, wire, settings, interned)
            if calls != worker.calls:
                worker = worker._replace(calls=calls)
        if worker.phase == OWNS:
            position = worker.position
            if reduced:
                while position < len(tail) and step(worker.state, tail[position]) == worker.state:
                    position += 1
                if position != worker.position:
                    worker = worker._replace(position=position)
            read_by_all = min(read_by_all, position)
        workers.append(worker)
    workers.sort()
    if reduced:
        wire = [batch for batch in wire if interned.run(world.end, batch) != world.end]
    wire.sort()
    clocks = world.clocks
    if reduced:
        clocks = tuple(
            clock if clock == PAST_SETTLE or _clock_matters(world, a, interned) else PAST_SETTLE
            for a, clock in enumerate(clocks)
        )
    base = world.base
    if read_by_all and reduced:
        base = interned.run(base, tail[:read_by_all])
        tail = tail[read_by_all:]
        workers = [
            w._replace(position=w.position - read_by_all) if w.phase == OWNS else w for w in workers
        ]
    return World(
        base,
        tail,
        world.end,
        tuple(wire),
        tuple(workers),
        tuple(sorted(world.requests)),
        world.effects,
        clocks,
        *world[8:],
    )


def _clock_matters(world: World, a: int, interned: Interned) -> bool:
    """Whether attempt `a` may still act or be waited for."""
    status = interned.states[world.end].attempts[a].status
    if status in (NONE, *UNSETTLED):
        return True
    if any(request[0] == a for request in world.requests):
        return True
    return any(call.attempt == a for worker in world.workers for call in worker.calls)


def _calls(
    worker: Worker, wire: list[tuple[int, ...]], settings: Settings, interned: Interned
) -> tuple[Call, ...]:
    """The calls that go on; the reports of those that ended outside their claim go to `wire`."""
    kept = []
    for call in worker.calls:
        if is_inside(worker, call, interned):
            kept.append(call)
        elif call.where in SAYS:
            report = Report(SAYS[call.where], call.claim, call.n, call.attempt)
            wire.append((interned.record_id(report),))
        elif call.where != DEAF or settings.hangs:
            kept.append(call)
    return tuple(sorted(kept))
