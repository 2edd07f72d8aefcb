"""Commands that are shown to a person to be typed or copied: each word is one for the shell too."""


def shell_arguments(*arguments: str) -> str:
    """Arguments of a command, quoted where a shell would read something else into them.

    One that begins with `-`, as a run id may, would be taken for an option: `--` says that none
    follows.

    >>> shell_arguments("order-48211", "charge#1")
    "order-48211 'charge#1'"
    >>> shell_arguments("-7")
    '-- -7'
    """
    import shlex

    said = shlex.join(arguments)
    return f"-- {said}" if any(one.startswith("-") for one in arguments) else said


def shell_line(command: str, *arguments: str, options: tuple[str, ...] = ()) -> str:
    """A whole line; `command` stands as it is, and before `--` what is an option.

    >>> shell_line("refold retry", "order-48211", options=("--slot", "charge#1"))
    "refold retry order-48211 --slot 'charge#1'"
    >>> shell_line("refold resolve", "-7", "charge#1", options=("--did-not-happen",))
    "refold resolve --did-not-happen -- -7 'charge#1'"
    """
    import shlex

    given, others = shell_arguments(*arguments), shlex.join(options)
    words = (others, given) if given.startswith("-- ") else (given, others)
    return " ".join(word for word in (command, *words) if word)


__all__ = ["shell_arguments", "shell_line"]
