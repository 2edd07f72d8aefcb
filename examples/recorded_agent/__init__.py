"""An agent that plays recorded conversations: what was said again, what was done once more."""
