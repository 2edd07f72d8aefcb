"""What the page says after an action: one of our own texts, whatever the address says."""

SAID = {
    "happened": ("good", "Recorded: it happened.", "A worker has taken it; the run goes on."),
    "absent": ("good", "Recorded: it did not happen.", "A worker has taken it; the run goes on."),
    "retried": ("good", "Recorded.", "The run goes on from where it stood."),
    "cancelled": ("good", "Its end is asked for.", "What is open is settled first."),
    "waits": (
        "doubt",
        "Sent, not yet decided.",
        "No worker has decided it so far. It stays in the log, and is applied once when one does.",
    ),
    "republished": ("good", "Published again.", "The owner of the run's partition decides it."),
}


def said_of(name: str | None) -> dict[str, str] | None:
    """Title and text by the name that an action gives; None for any other name."""
    if name not in SAID:
        return None
    tone, title, text = SAID[name]
    return {"tone": tone, "title": title, "text": text, "next": ""}
