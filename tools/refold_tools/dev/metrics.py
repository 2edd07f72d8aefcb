"""What the parts of `refold dev` say to Prometheus, on one port: those in here, and the worker's.

The worker is a process of its own, started anew when code changes: it is asked when somebody asks
us, and left out while it does not answer. Its `process_*` are left out, ours are there.
"""

import re
import socket
import urllib.request
from collections.abc import Callable
from typing import NamedTuple

from refold_tools.devstack.layout import HOST

ANSWER_S = 3.0
ANSWER_SIZE_MAX = 4 << 20
EVERYWHERE = ("", "0.0.0.0")
OF_WORKER = "refold_worker_"
INFO = "refold_service_info"
INFO_TYPE = f"# TYPE {INFO} gauge\n"


class Listening(NamedTuple):
    """Where Prometheus is answered; `worker_port` is where the worker answers us."""

    host: str
    port: int
    worker_port: int

    @property
    def worker_url(self) -> str:
        """The worker listens on the same address."""
        host = HOST if self.host in EVERYWHERE else self.host
        return f"http://{host}:{self.worker_port}/metrics"


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as one:
        one.bind((HOST, 0))
        port: int = one.getsockname()[1]
        return port


def of_worker(url: str) -> str:
    """What the worker says now; empty where it does not."""
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S) as answer:
            text: str = answer.read(ANSWER_SIZE_MAX).decode()
            return text
    except (OSError, ValueError):
        return ""


def joined(own: str, worker: str) -> str:
    """Both as one: of the worker's what only a worker says, and its line of `refold_service_info`.

    >>> own = "# HELP refold_service_info Always 1.\\n# TYPE refold_service_info gauge\\n"
    >>> worker = own + 'refold_service_info{service="worker"} 1.0\\n'
    >>> print(joined(own, worker), end="")
    # HELP refold_service_info Always 1.
    # TYPE refold_service_info gauge
    refold_service_info{service="worker"} 1.0
    """
    families = re.split(r"(?m)^(?=# HELP )", worker)
    kept = [one for one in families if one.startswith(f"# HELP {OF_WORKER}")]
    info = "".join(re.findall(rf"(?m)^{INFO}\{{.*\n", worker))
    return own.replace(INFO_TYPE, INFO_TYPE + info, 1) + "".join(kept)


def joining(own: Callable[[], bytes], listening: Listening) -> Callable[[], bytes]:
    """What is answered: `own`, and the worker's."""
    return lambda: joined(own().decode(), of_worker(listening.worker_url)).encode()
