"""Metrics, traces and log lines of every service: what there is, and how it leaves the process.

Names, units and labels are in `catalogue`; the services say what the values are, when asked. No
metric has a run id in its labels.
"""

from refold.telemetry.catalogue import BY_NAME, CATALOGUE, Buckets, Metric, Sample

__all__ = ["BY_NAME", "CATALOGUE", "Buckets", "Metric", "Sample"]
