"""What the log's own clock shows, as far as an owner can know: bounds from its acknowledgements.

A wall clock may jump while its owner serves; the log's clock and the boot clock do not. The log
says when it appended a batch, the owner knows when it sent it and when it was told, both on its
boot clock; that clock is off by less than 1 % (design, section 6, the factor 1.01).
"""

from refold.engine.clock import Clock


class LogClock:
    """Bounds of the log's clock, milliseconds since 1970 UTC, for moments of our boot clock."""

    __slots__ = (
        "_append_ms",
        "_clock",
        "_sent_boot_ms",
        "_skew_max_ms",
        "_told_boot_ms",
        "read_ms",
    )

    def __init__(
        self,
        clock: Clock,
        *,
        append_ms: int,
        sent_boot_ms: int,
        told_boot_ms: int,
        skew_max_ms: int,
    ) -> None:
        """A first append: its time by the log, and when it was sent and known by our boot clock."""
        self._clock, self._skew_max_ms = clock, skew_max_ms
        self.read_ms = clock.wall_ms
        """Our wall clock as it is."""
        self._append_ms = append_ms
        self._sent_boot_ms, self._told_boot_ms = sent_boot_ms, told_boot_ms

    def note(self, append_ms: int | None, sent_boot_ms: int) -> None:
        """A batch was acknowledged just now. The newest one gives the narrowest bounds."""
        # A log on this machine goes by the clock that may have been set back: then the boot clock
        # carries on from what was known before.
        if append_ms is not None and append_ms >= self.earliest_ms(sent_boot_ms):
            self._append_ms, self._sent_boot_ms = append_ms, sent_boot_ms
            self._told_boot_ms = self._clock.boot_ms()

    @property
    def held_ms(self) -> int:
        """By how much our wall clock is ahead of the latest time that we let it show; else 0.

        It was set wrong, or the log's clock was set right since its last acknowledgement.
        """
        wall_ms = self._clock.wall_ms()
        return wall_ms - self.bounded_ms(wall_ms)

    def latest_ms(self, boot_ms: int) -> int:
        """What the log's clock shows at `boot_ms` at the latest."""
        ahead = boot_ms - self._sent_boot_ms
        return self._append_ms + (ahead * 101 // 100 + 1 if ahead >= 0 else ahead * 99 // 100 + 1)

    def earliest_ms(self, boot_ms: int) -> int:
        """What it shows then at the earliest."""
        ahead = boot_ms - self._told_boot_ms
        return self._append_ms + (ahead * 99 // 100 - 1 if ahead >= 0 else ahead * 101 // 100 - 1)

    def bounded_ms(self, at_ms: int) -> int:
        """`at_ms`, or the latest time that an event may have now."""
        return min(at_ms, self.latest_ms(self._clock.boot_ms()) + self._skew_max_ms)

    def wall_ms(self) -> int:
        """Our wall clock, but never further off the log's than a claim allows it to be."""
        low = self.earliest_ms(self._clock.boot_ms()) - self._skew_max_ms
        return self.bounded_ms(max(self._clock.wall_ms(), low))
