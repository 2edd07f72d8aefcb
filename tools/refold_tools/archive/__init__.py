"""Copies the events of finished runs to files, and trims the log behind them."""

from refold_tools.archive.archiving import Archiving, Plan, Report
from refold_tools.archive.files import ArchiveFile, Header, read_archive

__all__ = ["ArchiveFile", "Archiving", "Header", "Plan", "Report", "read_archive"]
