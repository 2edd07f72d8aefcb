"""Reading a request's fields strictly, with an error that names the field."""

from typing import Any

from world.messages import Answer, Request, refusal


class BadField(Exception):
    """A field is missing or of the wrong kind; `answer` is the vendor's 400."""

    def __init__(self, name: str, wanted: str, got: Any) -> None:
        """Say which field, what was wanted and what came."""
        self.answer: Answer = refusal(
            400, "bad_request", f"{name} is {got!r}, not {wanted}; nothing was done", field=name
        )
        super().__init__(name)


def text(request: Request, name: str) -> str:
    """A string that is not empty. Raises BadField."""
    value = request.body.get(name)
    if not isinstance(value, str) or not value:
        raise BadField(name, "a text", value)
    return value


def amount(request: Request, name: str) -> int:
    """A whole number of at least one. Raises BadField."""
    value = request.body.get(name)
    if type(value) is not int or value < 1:
        raise BadField(name, "a whole number from 1 on", value)
    return value
