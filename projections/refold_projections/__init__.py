"""What follows from the log: the fold, the boundary, and later the tables."""
