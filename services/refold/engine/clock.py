"""The two clocks of an owner: wall time for what people read, boot time for what must not lie."""

import time
from typing import Protocol


class Clock(Protocol):
    """Waiting is not its work: that goes through the running event loop."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC; may jump."""

    def boot_ms(self) -> int:
        """Milliseconds since some start; never jumps, goes on while the machine sleeps."""


class SystemClock:
    """The machine's clocks. Source of the choice of CLOCK_BOOTTIME: design, section 3.1, rule 6."""

    def wall_ms(self) -> int:
        """CLOCK_REALTIME."""
        return time.time_ns() // 1_000_000

    def boot_ms(self) -> int:
        """CLOCK_BOOTTIME: a process that was suspended with its machine wakes late, and knows."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
