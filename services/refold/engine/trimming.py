"""How far a partition's topics may be trimmed, by a checkpoint that the log confirms.

Source: design, section 3.3; docs/adr/0022. Workers trim nothing themselves: `refold archive` does.
"""

from refold.engine.checkpoints import Base


def events_trimmable(base: Base) -> int:
    """The offset up to which no reader that begins at `base` needs an event.

    Every run has its records before it in a snapshot that stands. The last record that was read
    stays: readers verify the position by it.
    """
    return max(0, base.position.last_offset)


def commands_trimmable(base: Base) -> int:
    """The offset up to which every command was decided: all before it may go.

    Whatever else keeps commands from being deleted, because it is decided from the log later on,
    belongs here.
    """
    return base.position.command_next


__all__ = ["commands_trimmable", "events_trimmable"]
