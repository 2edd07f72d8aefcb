"""The process that owns partitions and hosts runs."""

from refold.engine.owner import WorkerEvent
from refold.engine.settings import WorkerSettings
from refold.worker.overdue import CallOverdue
from refold.worker.tuning import tune_process
from refold.worker.worker import Worker

__all__ = ["CallOverdue", "Worker", "WorkerEvent", "WorkerSettings", "tune_process"]
