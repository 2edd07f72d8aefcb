"""One command for writing code: worker, projector, gateway and page on this machine: `refold dev`.

The worker is a process of its own, since it is started anew when the code changes; the projector
and the gateway are tasks of this one.
"""

from refold_tools.dev.development import Development, Plan

__all__ = ["Development", "Plan"]
