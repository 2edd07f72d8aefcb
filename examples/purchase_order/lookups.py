"""From a vendor's answer about a key to what refold is told."""

from typing import TypeVar

from pydantic import BaseModel

from refold import Absent, Found, Pending, Rejected
from world.calls import CardDeclined, KeyAnswer, WorldError

Model = TypeVar("Model", bound=BaseModel)


def answer_as(kind: type[Model], said: KeyAnswer) -> Found[Model] | Absent | Pending | Rejected:
    """`said` with what the step would have returned. A refusal is one of the step's own errors."""
    match said.state:
        case "succeeded":
            return Found(kind.model_validate(said.answer))
        case "failed":
            refusal = CardDeclined if said.status == 402 else WorldError
            return Rejected(refusal(said.status or 400, said.answer))
        case "in_progress":
            return Pending()
        case "absent":
            return Absent()
