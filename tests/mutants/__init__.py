"""Deliberate breaks of the engine, and what must catch each."""
