"""The recorded agent's stories: one a conversation, which dies in its first changing call."""

from collections.abc import Mapping, Sequence
from typing import Any

from refold_projections.fold import Slot
from refold_tools.demo.counting import MODEL
from refold_tools.demo.stories import Moment, Story, Verdict

DESK = "POST /desk/{action}"
LOOK = "POST /desk/{action}/look"


class RecordedStory(Story):
    """One conversation of a file. `module` is the application; `dies` whether its worker does."""

    name = "recorded-agent"
    target = "recorded_agent.app:app"
    run = "recorded-agent"

    def __init__(self, module: Any, conversation: Any, run_id: str, *, dies: bool) -> None:
        self.run_id = run_id
        self.given = {"id": conversation.id, "messages": conversation.messages}
        count = len(conversation.messages)
        self.title = f"Conversation {conversation.id}: {count} messages, played once more"
        self._messages: list[dict[str, Any]] = conversation.messages
        self._module = module
        self._reads = frozenset(module.READS)
        self._dies = dies

    def _calls(self) -> list[str]:
        """The names of all calls, in order."""
        return [
            str(call["function"]["name"])
            for message in self._messages
            for call in message.get("tool_calls") or []
        ]

    @property
    def moments(self) -> Sequence[Moment]:
        """In the first call that changes something, if there is one."""
        changing = [name for name in self._calls() if name not in self._reads]
        if not self._dies or not changing:
            return ()
        acted = f"the desk has done {changing[0]}; its answer is on the way"
        effect = f"desk:{changing[0]}"
        return (Moment(None, "", changing[0], DESK, lambda done: 0, effect, acted),)

    def line(self, slot: str, step: str) -> str | None:
        """Every call."""
        return None if step == "say" else f"calls {step}, in slot {slot}"

    def vendor(self, step: str) -> str:
        """Everything but talking is done by the desk."""
        return "the model" if step == "say" else "the desk"

    def expected(self) -> Mapping[str, int]:
        """Each changing call of the recording once."""
        due: dict[str, int] = {}
        for name in self._calls():
            if name not in self._reads:
                due[f"desk:{name}"] = due.get(f"desk:{name}", 0) + 1
        return due

    def expected_calls(self, slots: Mapping[str, Slot]) -> Mapping[str, Sequence[str]]:
        """One call a slot."""
        due: dict[str, list[str]] = {}
        for slot in slots.values():
            route = MODEL if slot.step == "say" else LOOK if slot.step in self._reads else DESK
            due.setdefault(route, []).append(slot.name)
        return due

    def judge(self, step: str, ledger: Sequence[dict[str, Any]], settled: int) -> Verdict | None:
        """The desk's ledger has what was done without a key."""
        done = [e for e in ledger if e["key"] is None and self._step_of(e["kind"]) == step]
        if len(done) > settled:
            action = done[settled]["kind"].removeprefix("desk:")
            return Verdict(True, done[settled]["body"]["result"], f"the desk has done {action}")
        return Verdict(False, None, "the desk has nothing of it")

    def _step_of(self, kind: str) -> str:
        action = kind.removeprefix("desk:")
        return action if action in self._module.TOOLS else "other_tool"

    def holds(self, result: object, ledger: Sequence[dict[str, Any]]) -> str | None:
        """The conversation came out as it went in."""
        played = result.get("messages") if isinstance(result, dict) else None
        return None if played == self._messages else "the messages are not those of the recording"
