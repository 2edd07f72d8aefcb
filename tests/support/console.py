"""What a command may print on its console."""


def crashed(err: str) -> bool:
    """A traceback of refold itself begins its line; that of run code is told behind a clock."""
    return any(line.startswith("Traceback") for line in err.splitlines())
