"""What a caller imports: Client and run handles, and the same for people without an event loop."""

from refold.client.blocking import BlockingClient, BlockingRunHandle
from refold.client.client import Client, RunHandle, RunSummary
from refold.client.history import HistoryRecord

__all__ = [
    "BlockingClient",
    "BlockingRunHandle",
    "Client",
    "HistoryRecord",
    "RunHandle",
    "RunSummary",
]
