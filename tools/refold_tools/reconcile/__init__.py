"""Compares the record with the far systems, key by key, and puts what differs on record."""

from refold_tools.reconcile.asking import Limits
from refold_tools.reconcile.judging import KINDS, finding_id
from refold_tools.reconcile.rounds import Reconciler, Report, Told
from refold_tools.reconcile.selecting import Effect, Window

__all__ = ["KINDS", "Effect", "Limits", "Reconciler", "Report", "Told", "Window", "finding_id"]
