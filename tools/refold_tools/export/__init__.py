"""Copies events, runs and effects of a window of time to files that analytics tools read."""

from refold_tools.export.columns import TABLES
from refold_tools.export.exporting import Exporting, Plan, Report
from refold_tools.export.manifest import Manifest, read_manifest

__all__ = ["TABLES", "Exporting", "Manifest", "Plan", "Report", "read_manifest"]
