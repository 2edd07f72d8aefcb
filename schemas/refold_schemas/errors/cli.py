"""Errors of the client and the command line (R501-R599): what was asked, and why it failed."""

from typing import ClassVar

from refold_schemas.errors.base import RefoldError, told
from refold_schemas.errors.shell import shell_arguments, shell_line
from refold_schemas.errors.texts import text_of


class RunFailedError(RefoldError):
    """The run function raised. `type_name` and `detail` are those of its exception.

    An error of refold's own is said once: its message here, its advice as the first of ours.
    """

    code: ClassVar[str] = "R501"

    def __init__(self, run_id: str, type_name: str, detail: str) -> None:
        self.run_id, self.type_name, self.detail = run_id, type_name, detail
        inner = told(detail)
        first = inner.next or (
            f"read `{shell_line('refold history', run_id)}` and repair the cause (a refusal of the "
            "far system, a defect in run code)"
        )
        super().__init__(
            f"run {run_id} failed: {type_name}: {inner.brief}",
            kept="every recorded step of it",
            next=f"{first}; then `{shell_line('refold retry', run_id)}`",
        )


class RunCancelledError(RefoldError):
    """The run was cancelled, so it has no result."""

    code: ClassVar[str] = "R502"

    def __init__(self, run_id: str, by: str, why: str) -> None:
        self.run_id, self.by, self.why = run_id, by, why
        said = f" by {by}" if by else ""
        said += f": {why}" if why else ""
        super().__init__(
            f"run {run_id} was cancelled{said}",
            kept="every recorded step of it",
            next="start a new run under another run id if the work is still wanted",
        )


class RunUnknown(RefoldError):
    """There is no run of this id in the namespace."""

    code: ClassVar[str] = "R503"
    exit_code: ClassVar[int] = 2
    compare: ClassVar[str] = "compare with `refold runs`, and check that --log names the right log"
    """What is left to do where no command for it is known."""

    def __init__(
        self, run_id: str, namespace: str, *, waiting: str = "", refused: str = "", next: str = ""
    ) -> None:
        """`waiting` names a command for it that is not decided; `refused` its refused start."""
        self.run_id, self.namespace = run_id, namespace
        said = f"there is no run {run_id!r} in namespace {namespace}"
        said += f" yet: {waiting}" if waiting else ""
        said += f"{'; ' if waiting else ': '}{refused}" if refused else ""
        super().__init__(
            said,
            kept="the log as it was",
            next=next
            or f"`{shell_line('refold why', run_id)}` says whether its start waits or was refused; "
            f"else {self.compare}",
        )


class CommandRefused(RefoldError):
    """The run's owner decided that the command has nothing to say. `reason` is its own word."""

    code: ClassVar[str] = "R504"
    advice: ClassVar[str] = "read `refold why RUN_ID` for what is known of the run"
    advice_other: ClassVar[dict[str, str]] = {
        "too_large": "send a reference (a key, a URL) instead of the content"
    }
    """By reason or command, where the advice is another one."""

    def __init__(
        self, run_id: str, command: str, reason: str, detail: str, *, sent: bool = True
    ) -> None:
        """Not `sent`: the refusal is certain, so the command was not even stored."""
        self.run_id, self.command, self.reason, self.detail = run_id, command, reason, detail
        because = told(detail).brief or reason.replace("_", " ")
        advice = self.advice_other.get(reason) or self.advice_other.get(command) or self.advice
        unborn = command == "StartRun" and reason != "run_exists_other_input"
        kept = "nothing was started" if unborn else "the run as it was"
        super().__init__(
            f"{command} for run {run_id} was refused ({reason}): {because}",
            kept=f"{kept}; " + ("the refusal is recorded" if sent else "nothing was sent"),
            next=advice.replace("RUN_ID", shell_arguments(run_id)),
        )


class RunExists(CommandRefused):
    """The run id is taken by a run with another name or another input."""

    code: ClassVar[str] = "R505"
    exit_code: ClassVar[int] = 2
    advice: ClassVar[str] = (
        "choose another run id, or repeat the call with the input that the run was started with"
    )


class FunctionUnknown(CommandRefused):
    """The worker's app has no run function of this name (or version)."""

    code: ClassVar[str] = "R506"
    exit_code: ClassVar[int] = 2
    advice: ClassVar[str] = "compare the name with `refold check MODULE:APP`"


class InputInvalid(CommandRefused):
    """The input does not fit the run function's parameter, or a result what its step returns."""

    code: ClassVar[str] = "R507"
    exit_code: ClassVar[int] = 2
    advice: ClassVar[str] = "correct the input and start again; the run id is still free"
    advice_other: ClassVar[dict[str, str]] = {
        "ResolveStep": "say it again with a result of that type; nothing was resolved"
    }


class StepNotInDoubt(CommandRefused):
    """A slot was to be resolved that is not in doubt."""

    code: ClassVar[str] = "R508"
    exit_code: ClassVar[int] = 2
    advice: ClassVar[str] = "`refold boundary RUN_ID` lists what is in doubt, with its slots"


class TooEarly(CommandRefused):
    """Absence cannot be believed yet: a call may still act, or the far system still hide it."""

    code: ClassVar[str] = "R509"
    advice: ClassVar[str] = "repeat the command after the time that the sentence names"


class RunOver(CommandRefused):
    """The run has ended, so nothing can be done to it."""

    code: ClassVar[str] = "R525"
    advice: ClassVar[str] = "read its outcome with `refold boundary RUN_ID`"


class NothingToRetry(CommandRefused):
    """There is nothing to retry: the run is neither parked nor failed."""

    code: ClassVar[str] = "R526"
    exit_code: ClassVar[int] = 2


class NothingToSettle(CommandRefused):
    """A finding was to be settled that is not on record, or was settled before."""

    code: ClassVar[str] = "R820"
    exit_code: ClassVar[int] = 2
    advice: ClassVar[str] = "`refold history RUN_ID` shows the findings of the run and their ids"


class FindingUnknown(RefoldError):
    """No run of the namespace has a finding of this id."""

    code: ClassVar[str] = "R821"
    exit_code: ClassVar[int] = 2

    def __init__(self, finding_id: str, namespace: str) -> None:
        self.finding_id, self.namespace = finding_id, namespace
        super().__init__(
            f"no run in namespace {namespace} has a finding {finding_id!r}",
            kept="the log as it was",
            next="`refold doctor` lists open findings; one that no worker has recorded yet is not "
            "among them",
        )


class SignatureRefused(CommandRefused):
    """Workers believe signed commands alone, and this one has no signature that holds."""

    code: ClassVar[str] = "R547"
    advice: ClassVar[str] = (
        "set REFOLD_SIGNING_KEY to a key that workers have in REFOLD_COMMAND_KEYS, or send it "
        "through the gateway"
    )


class KeysUnusable(RefoldError):
    """A file of keys cannot be read, or be trusted. Nothing of what stands in it is shown."""

    code: ClassVar[str] = "R548"
    exit_code: ClassVar[int] = 2

    def __init__(self, variable: str, path: str, reason: str) -> None:
        self.variable, self.path, self.reason = variable, path, reason
        super().__init__(
            f"the keys in {path} ({variable}) cannot be used: {reason}",
            kept="nothing was opened or sent",
            next="correct the file; `refold commands make-key` shows its shape",
        )


class CommandIdReused(RefoldError):
    """The command id was used before, for another command."""

    code: ClassVar[str] = "R549"
    exit_code: ClassVar[int] = 2

    def __init__(self, run_id: str, command: str, command_id: str, before: str) -> None:
        self.run_id, self.command, self.command_id = run_id, command, command_id
        super().__init__(
            f"{command} for run {run_id} was sent under the id {command_id}, which was used before "
            f"for {before}",
            kept="what was decided then; this one was not applied",
            next="send it under an id of its own",
        )


class CommandUndecided(RefoldError):
    """Nobody has decided the command yet. It stands in the log and will be."""

    code: ClassVar[str] = "R512"
    exit_code: ClassVar[int] = 3

    def __init__(self, run_id: str, command: str, command_id: str, waited_ms: int) -> None:
        self.run_id, self.command, self.command_id = run_id, command, command_id
        self.waited_ms = waited_ms
        super().__init__(
            f"no worker has taken {command} for run {run_id} within {waited_ms / 1000:g} s",
            kept=f"the command ({command_id}); it stands in the log and is applied once",
            next="see that a worker runs (`refold worker MODULE:APP`, `refold doctor`), then ask "
            f"`{shell_line('refold why', run_id)}`",
        )


class CommandUnknown(RefoldError):
    """The log did not say whether it has the command; `stored`: it has, its decision is unknown."""

    code: ClassVar[str] = "R513"
    exit_code: ClassVar[int] = 4

    def __init__(
        self, run_id: str, command: str, command_id: str, reason: str, *, stored: bool = False
    ) -> None:
        self.run_id, self.command, self.command_id = run_id, command, command_id
        self.reason, self.stored = reason, stored
        if stored:
            super().__init__(
                f"it is not known what became of {command} for run {run_id}: {reason}",
                kept=f"the command {command_id}; a repeat under the same id is applied once",
                next="look at the run, or repeat the command with the same command_id "
                "(a start: with the same run id and input)",
            )
            return
        super().__init__(
            f"it is not known whether the log has {command} for run {run_id}: {reason}",
            kept=f"perhaps the command {command_id}; a repeat under the same id is applied once",
            next="when the log answers again, repeat it with the same command_id "
            "(a start: with the same run id and input)",
        )


class ClientClosed(RefoldError):
    """A call on a client that is not open, or was closed while the call waited."""

    code: ClassVar[str] = "R514"
    exit_code: ClassVar[int] = 2

    def __init__(self, *, forked: bool = False) -> None:
        """`forked`: it is open, in the process that this one was forked from."""
        super().__init__(
            "the client was opened before this process was forked"
            if forked
            else "the client is not open",
            kept="every command that was acknowledged, and every run",
            next="open one in each process"
            if forked
            else "use it inside `async with Client(...) as client`",
        )


class ResultNotThere(RefoldError):
    """The run had not ended when the time to wait was over."""

    code: ClassVar[str] = "R515"
    exit_code: ClassVar[int] = 3

    def __init__(self, run_id: str, waited_ms: int, sentence: str = "") -> None:
        self.run_id, self.waited_ms = run_id, waited_ms
        super().__init__(
            f"run {run_id} has not ended within {waited_ms / 1000:g} s"
            + (f": {sentence}" if sentence else ""),
            kept="the run, which goes on",
            next=f"wait longer, or ask `{shell_line('refold why', run_id)}`",
        )


class AppUnusable(RefoldError):
    """MODULE:APP does not lead to an App: the module, the name in it, or the object is wrong."""

    code: ClassVar[str] = "R516"
    exit_code: ClassVar[int] = 2

    def __init__(self, target: str, reason: str, *, next: str = "") -> None:
        """`next` is what to do where the target itself is right."""
        self.target, self.reason = target, reason
        super().__init__(
            f"no app at {target!r}: {reason}",
            kept="nothing was opened or started",
            next=next
            or "write MODULE:APP, where MODULE imports from the working directory or PYTHONPATH "
            "and APP is a refold.App in it",
        )


class InputUnreadable(RefoldError):
    """What was given as JSON is no JSON, or the file that holds it cannot be read."""

    code: ClassVar[str] = "R517"
    exit_code: ClassVar[int] = 2

    def __init__(self, option: str, reason: str) -> None:
        self.option, self.reason = option, reason
        super().__init__(
            f"{option} cannot be read: {reason}",
            kept="nothing was sent",
            next=f"give JSON ({option} '{{\"id\": 1}}') or a file that holds it ({option} @FILE)",
        )


class UsageRefused(RefoldError):
    """The command line itself is wrong: an unknown command or option, or a missing one."""

    code: ClassVar[str] = "R518"
    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, command: str) -> None:
        super().__init__(
            message, kept="nothing was done", next=f"`{command} --help` shows what it takes"
        )


class RunStopped(RefoldError):
    """A run that waits for a person or for other code, and nothing else of it can go on."""

    code: ClassVar[str] = "R519"
    exit_code: ClassVar[int] = 3

    def __init__(self, run_id: str, sentence: str, next: str) -> None:
        self.run_id, self.sentence = run_id, sentence
        super().__init__(
            f"run {run_id} stopped: {sentence}", kept="every recorded step of it", next=next
        )


class SettingInvalid(RefoldError):
    """An environment variable of refold's that cannot be read."""

    code: ClassVar[str] = "R520"
    exit_code: ClassVar[int] = 2

    def __init__(self, variable: str, reason: str) -> None:
        self.variable, self.reason = variable, reason
        super().__init__(
            f"the environment variable {variable} cannot be used: {reason}",
            kept="nothing was opened or changed",
            next=f"correct or unset {variable}",
        )


class SchemaAbsent(RefoldError):
    """A schema was asked for that the embedded registry does not have."""

    code: ClassVar[str] = "R521"
    exit_code: ClassVar[int] = 2

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"there is no schema {name!r}",
            kept="nothing was read",
            next="`refold schemas list` shows names, versions and ids",
        )


class RunFunctionUnknown(RefoldError):
    """The app has no run function of this name. `names` are those that it has."""

    code: ClassVar[str] = "R523"
    exit_code: ClassVar[int] = 2

    def __init__(self, name: str, target: str, names: tuple[str, ...]) -> None:
        self.name, self.target, self.names = name, target, names
        has = f"it has {', '.join(sorted(names))}" if names else "it has none"
        super().__init__(
            f"{target} has no run function {name!r}; {has}",
            kept="nothing was started",
            next=f"`refold check {target}` lists what the app registers",
        )


class RunInterrupted(RefoldError):
    """The command was told to stop before the run had ended."""

    code: ClassVar[str] = "R524"
    exit_code: ClassVar[int] = 3

    def __init__(self, run_id: str, sentence: str) -> None:
        self.run_id, self.sentence = run_id, sentence
        super().__init__(
            f"stopped by a signal before run {run_id} had ended: {sentence}",
            kept="every recorded step of it; the partition was handed over",
            next="repeat the command, or let a worker go on with it",
        )


class AskingInterrupted(RefoldError):
    """The command line was told to stop before what it had asked for was answered."""

    code: ClassVar[str] = "R535"
    exit_code: ClassVar[int] = 3

    def __init__(self, run_id: str, command: str, *, sent: bool, answered: bool) -> None:
        self.run_id, self.command, self.sent, self.answered = run_id, command, sent, answered
        if answered:
            what, kept = "the run had ended", "the run; it goes on wherever a worker lives"
        else:
            what, stands = "a worker had answered", "it stands in the log and is applied once"
            kept = f"the command; {stands}" if sent else f"nothing, or the command: then {stands}"
        super().__init__(
            f"`refold {command}` for run {run_id} was stopped by a signal before {what}",
            kept=kept,
            next=f"`{shell_line('refold why', run_id)}` says what became of it",
        )


class CommandGone(RefoldError):
    """A rejected command is to be published again, and nobody has its bytes any more."""

    code: ClassVar[str] = "R527"
    exit_code: ClassVar[int] = 1

    def __init__(self, partition: int, offset: int) -> None:
        self.partition, self.offset = partition, offset
        super().__init__(
            f"the command at offset {offset} of partition {partition} is not in the log any more, "
            "and no whole copy of it is left",
            kept="its rejection, with the beginning of its bytes; nothing was published",
            next="let whoever sent it send it again",
        )


class CommandHopeless(RefoldError):
    """A rejected command is to be published again, and it would surely be rejected again."""

    code: ClassVar[str] = "R528"
    exit_code: ClassVar[int] = 1

    def __init__(self, partition: int, offset: int, reason: str) -> None:
        self.partition, self.offset, self.reason = partition, offset, reason
        super().__init__(
            f"the command at offset {offset} of partition {partition} would be refused again: "
            f"{reason}",
            kept="its rejection; nothing was published",
            next="correct what the reason names and send a new command",
        )


class CommandNotRejected(RefoldError):
    """There is no rejected command at this place."""

    code: ClassVar[str] = "R529"
    exit_code: ClassVar[int] = 2

    def __init__(self, partition: int, offset: int, known: str) -> None:
        """`known` is what stands there instead."""
        self.partition, self.offset = partition, offset
        super().__init__(
            f"no command at offset {offset} of partition {partition} was rejected: {known}",
            kept="everything; nothing was published",
            next="`refold commands rejected` lists them with partition and offset",
        )


class OutputRefused(RefoldError):
    """What a command had to say could not be written: a full disk, a device that takes nothing."""

    code: ClassVar[str] = "R533"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the command's output could not be written: {reason}",
            kept="everything that the log has acknowledged; the command may have done its work",
            next="make room or write elsewhere, and see what it has done (`refold runs`, "
            "`refold history`) before you repeat it",
        )


class FolderGone(RefoldError):
    """The working directory was deleted while it was somebody's place."""

    code: ClassVar[str] = "R534"
    exit_code: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__(
            "the working directory does not exist any more",
            kept="everything that the log has acknowledged",
            next="go to a directory that exists (`cd`), and repeat the command there",
        )


SAID_MAX = 500
"""Characters of an unexpected exception's message that are shown."""


class Unexpected(RefoldError):
    """An exception that nobody foresaw: a defect of refold, or of code that it called."""

    code: ClassVar[str] = "R599"

    def __init__(self, error: BaseException, where: str) -> None:
        self.error = error
        said = text_of(error, SAID_MAX).strip().splitlines()
        super().__init__(
            f"unexpected {type(error).__name__}"
            + (f": {said[0]}" if said else "")
            + (f" at {where}" if where else ""),
            kept="everything that the log has acknowledged",
            next="repeat the command with --debug and report what it prints",
        )


REFUSALS: dict[str, type[CommandRefused]] = {
    "run_exists_other_input": RunExists,
    "unknown_function": FunctionUnknown,
    "input_invalid": InputInvalid,
    "not_in_doubt": StepNotInDoubt,
    "too_early": TooEarly,
    "run_ended": RunOver,
    "nothing_to_retry": NothingToRetry,
    "nothing_to_settle": NothingToSettle,
    "unsigned": SignatureRefused,
    "bad_signature": SignatureRefused,
}
"""The error of each `CommandRejected.reason`; any other is a CommandRefused itself."""
