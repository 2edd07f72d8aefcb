"""What somebody else says, made fit for a terminal: nothing in it is a command."""

import re

COMMANDS_OF_TERMINALS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but for tab and the line's end, what turns the order of letters, and halves of
surrogate pairs, which no stream can take."""


def harmless(text: str) -> str:
    """A text in which nothing moves the cursor, changes a colour or turns the order of letters.

    What far systems, models and exceptions say is shown to people; it must not write elsewhere on
    their terminal than in its own line.

    >>> harmless("card \\x1b[2J\\x1b]0;x\\x07 declined")
    'card \\\\x1b[2J\\\\x1b]0;x\\\\x07 declined'
    """
    return COMMANDS_OF_TERMINALS.sub(_escaped, text)


def harmless_json(line: str) -> str:
    """The same of a line of JSON, in which nothing is changed for who reads it as JSON."""
    return COMMANDS_OF_TERMINALS.sub(lambda found: f"\\u{ord(found[0]):04x}", line)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
