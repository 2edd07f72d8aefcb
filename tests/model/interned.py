"""States and records as small integers, so that a world is cheap to hash, keep and compare."""

from model.fold import State, empty, evolve
from model.records import Record
from model.rules import Rules


class Interned:
    """Numbers for states and records, and the fold between them, each step computed once."""

    def __init__(self, rules: Rules, *, attempts: int, started: bool) -> None:
        self.rules = rules
        self.states: list[State] = []
        self.records: list[Record] = []
        self._state_ids: dict[State, int] = {}
        self._record_ids: dict[Record, int] = {}
        self._steps: dict[tuple[int, int], int] = {}
        self.first = self.state_id(empty(attempts=attempts, started=started))

    def state_id(self, state: State) -> int:
        """The number of `state`."""
        found = self._state_ids.get(state)
        if found is None:
            found = self._state_ids[state] = len(self.states)
            self.states.append(state)
        return found

    def record_id(self, record: Record) -> int:
        """The number of `record`."""
        found = self._record_ids.get(record)
        if found is None:
            found = self._record_ids[record] = len(self.records)
            self.records.append(record)
        return found

    def step(self, state: int, record: int) -> int:
        """Fold one record into a state."""
        key = (state, record)
        found = self._steps.get(key)
        if found is None:
            folded = evolve(self.rules, self.states[state], self.records[record])
            found = self._steps[key] = self.state_id(folded)
        return found

    def run(self, state: int, records: tuple[int, ...]) -> int:
        """Fold records in order into a state."""
        for record in records:
            state = self.step(state, record)
        return state
