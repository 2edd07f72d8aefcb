"""What a run may be called: 1 to 200 characters of UTF-8, no control characters."""

from unicodedata import category

from refold_schemas.errors import BadRunId

RUN_ID_LENGTH_MAX = 200


def check_run_id(run_id: object) -> None:
    """Raise BadRunId unless `run_id` is text of 1 to 200 characters without control characters.

    >>> check_run_id("order-48211")
    """
    if type(run_id) is not str:
        raise BadRunId(run_id, f"it is {type(run_id).__name__}, not text")
    if not run_id:
        raise BadRunId(run_id, "it is empty")
    if len(run_id) > RUN_ID_LENGTH_MAX:
        raise BadRunId(run_id, f"it has {len(run_id)} characters, more than {RUN_ID_LENGTH_MAX}")
    if run_id.isascii() and run_id.isprintable():
        return
    for index, character in enumerate(run_id):
        # Cs: half of a surrogate pair, which the log's UTF-8 cannot hold
        if category(character) in ("Cc", "Cs"):
            raise BadRunId(run_id, f"character {index + 1} is U+{ord(character):04X}")
