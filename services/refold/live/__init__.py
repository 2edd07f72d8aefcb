"""Live figures as a service (a Faust app over `ns.events`) and embedded: windows that people watch.

Nothing here is the truth of a run: that is in the log, and in the tables that the projector fills.
"""
