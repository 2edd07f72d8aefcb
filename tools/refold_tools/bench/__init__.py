"""Measurements against the budgets and the peers: `refold bench`. Figures count as ratios only."""

from refold_tools.bench.command import bench

__all__ = ["bench"]
