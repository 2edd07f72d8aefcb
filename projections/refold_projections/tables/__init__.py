"""The tables in Postgres that follow from the log: their shapes, how they are filled and swapped.

Two sets of the same tables stand side by side; one is live. Other rooms and other people's programs
read the views `v1_*` alone, of which a statement sees one set, whole (docs/projections.md).
"""
