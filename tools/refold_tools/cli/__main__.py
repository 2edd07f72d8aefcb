"""`python -m refold_tools.cli`: the refold command where its script is not installed."""

from refold_tools.cli.leaving import run_process

run_process()
