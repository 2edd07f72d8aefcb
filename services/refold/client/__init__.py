"""What a caller imports: Client and run handles, and the same for people without an event loop."""

from refold.client.blocking import BlockingClient, BlockingRunHandle
from refold.client.client import Client
from refold.client.handle import RunHandle
from refold.client.history import HistoryRecord
from refold.client.questions import RunSummary

__all__ = [
    "BlockingClient",
    "BlockingRunHandle",
    "Client",
    "HistoryRecord",
    "RunHandle",
    "RunSummary",
]
