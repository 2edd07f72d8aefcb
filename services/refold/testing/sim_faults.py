"""Which faults a simulated world has, how often, and what happens to an append or a read."""

from dataclasses import dataclass
from random import Random

from refold.log.memory import Answer, AppendCall, AppendFault, Faults, ReadCall, ReadFault
from refold.log.port import Topic
from refold.testing.sim_report import Journal

LOG_FAULTS = (
    "append delayed",
    "acknowledgement lost",
    "acknowledgement without offset",
    "acknowledgement after the owner gave up",
    "stored late",
    "stored twice",
    "never stored",
    "offset hole",
    "read delayed",
    "read refused",
    "two owners suggested",
)
PROCESS_FAULTS = (
    "crash",
    "crash before append",
    "crash after append",
    "crash before send",
    "crash after answer",
    "freeze",
    "freeze beyond the lease",
    "freeze before append",
    "freeze after append",
    "freeze before send",
    "machine asleep",
    "restart",
    "clean hand-over",
    "wall clock jump",
)
VENDOR_FAULTS = (
    "acts, answer lost",
    "acts, then error",
    "slow",
    "fails before acting",
    "error before acting",
    "never answers",
    "declined under the key",
    "lookup raises",
    "lookup pending",
    "lookup lags",
)
COMMAND_FAULTS = (
    "command repeated",
    "run started twice",
    "command of no run",
    "cancel",
    "command unreadable",
    "command on another partition",
    "command of an unread schema",
    "command of no schema",
    "registry away",
)
FAULT_KINDS = (*LOG_FAULTS, *PROCESS_FAULTS, *VENDOR_FAULTS, *COMMAND_FAULTS)


@dataclass(frozen=True)
class Profile:
    """How rough a world is. Means are seconds of virtual time, 0 for never; `*_p` probabilities.

    `hook_p` is the chance to crash or freeze at one of the points around an append or a call.
    """

    name: str
    workers: int = 2
    partitions: int = 1
    runs: int = 4
    faults_s: float = 30.0
    append_p: float = 0.0
    read_p: float = 0.0
    suggest_mean_s: float = 0.0
    crash_mean_s: float = 0.0
    freeze_mean_s: float = 0.0
    handover_mean_s: float = 0.0
    jump_mean_s: float = 0.0
    hook_p: float = 0.0
    vendor_p: float = 0.0
    lookup_p: float = 0.0
    skew_ms: int = 0
    rate_ppm: int = 0
    commands_p: float = 0.2
    strangers_p: float = 0.0
    """The chance that a command is published as strangers do; with it there is a registry."""


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("calm", workers=1, faults_s=2.0, commands_p=0.0),
        Profile("log", append_p=0.12, read_p=0.05, suggest_mean_s=6.0),
        Profile(
            "owners",
            workers=3,
            crash_mean_s=5.0,
            freeze_mean_s=5.0,
            handover_mean_s=10.0,
            suggest_mean_s=10.0,
            hook_p=0.02,
        ),
        Profile("vendor", vendor_p=0.35, lookup_p=0.4, crash_mean_s=12.0),
        Profile(
            "clocks",
            workers=3,
            jump_mean_s=4.0,
            freeze_mean_s=6.0,
            crash_mean_s=8.0,
            skew_ms=2_000,
            rate_ppm=5_000,
            vendor_p=0.15,
            lookup_p=0.2,
        ),
        Profile(
            "storm",
            workers=3,
            partitions=2,
            runs=5,
            append_p=0.06,
            read_p=0.03,
            suggest_mean_s=8.0,
            crash_mean_s=7.0,
            freeze_mean_s=8.0,
            handover_mean_s=20.0,
            jump_mean_s=12.0,
            hook_p=0.012,
            vendor_p=0.2,
            lookup_p=0.25,
            skew_ms=1_500,
            rate_ppm=5_000,
            strangers_p=0.3,
        ),
    )
}
_TURNS = ("storm", "log", "owners", "vendor", "clocks", "storm", "owners", "vendor")


def profile_of(seed: int) -> Profile:
    """The profile of a seed without `--profile`: the rough ones in turn, now and then calm."""
    return PROFILES["calm" if seed % 40 == 0 else _TURNS[seed % len(_TURNS)]]


class SeededFaults(Faults):
    """The log's faults. `stop()` ends them: what comes after must make progress."""

    def __init__(
        self, rng: Random, profile: Profile, journal: Journal, *, append_timeout_ms: int
    ) -> None:
        self.rng, self.profile, self.journal = rng, profile, journal
        self.append_timeout_ms = append_timeout_ms
        self.active = True
        self.both: set[int] = set()

    def stop(self) -> None:
        """No more faults."""
        self.active = False
        self.both = set()

    def on_append(self, call: AppendCall) -> AppendFault:
        """An ordinary delay, or one of the faults."""
        rng = self.rng
        ordinary = AppendFault(answer_at_ms=rng.randint(1, 4))
        if not self.active or rng.random() >= self.profile.append_p:
            return ordinary
        kind, fault = self._append_fault(rng)
        self.journal.fault(kind, call.handle, f"{call.topic.value}, {len(call.entries)} records")
        return fault

    def _append_fault(self, rng: Random) -> tuple[str, AppendFault]:
        late = rng.randint(50, 3_000)
        beyond = self.append_timeout_ms + rng.randint(50, 2_000)
        match rng.randrange(10):
            case 0 | 1:
                stored = rng.randint(0, late)
                return "append delayed", AppendFault((stored,), answer_at_ms=late)
            case 2:
                answer = rng.choice((Answer.ERROR, Answer.SILENCE))
                return "acknowledgement lost", AppendFault((0,), answer, rng.randint(1, 500))
            case 3:
                answer = rng.choice((Answer.NONE, Answer.MINUS_ONE))
                return "acknowledgement without offset", AppendFault((0,), answer, 5)
            case 4:
                stored = rng.choice((0, late, beyond))
                kind = "acknowledgement after the owner gave up"
                return kind, AppendFault((stored,), Answer.ACK, beyond)
            case 5:
                answer_at_ms = rng.randint(1, 40)
                return "stored late", AppendFault((late,), Answer.ERROR, answer_at_ms)
            case 6:
                return "stored twice", AppendFault((0, late), Answer.ACK, rng.randint(1, 20))
            case 7:
                answer = rng.choice((Answer.ERROR, Answer.SILENCE, Answer.NONE))
                return "never stored", AppendFault((), answer, rng.randint(1, 500))
            case 8:
                return "offset hole", AppendFault((0,), answer_at_ms=3, hole=rng.randint(1, 3))
            case _:
                kind = "stored late"
                return kind, AppendFault((late, late + 500), Answer.NONE, rng.randint(1, 40))

    def on_read(self, call: ReadCall) -> ReadFault | None:
        """A read that is late, short or refused."""
        rng = self.rng
        if not self.active or rng.random() >= self.profile.read_p:
            return None
        if call.topic is Topic.EVENTS and rng.random() < 0.2:
            self.journal.fault("read refused", call.handle)
            return ReadFault(refused=True)
        self.journal.fault("read delayed", call.handle)
        count = rng.choice((None, 1, 3))
        return ReadFault(delay_ms=rng.randint(1, 800), record_count_max=count)

    def on_suggest(self, handle: str, owner: str, partitions: frozenset[int]) -> frozenset[int]:
        """While `both` holds a partition, it is suggested to everybody."""
        if self.both - partitions:
            self.journal.fault("two owners suggested", handle)
            return partitions | self.both
        return partitions
