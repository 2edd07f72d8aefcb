"""What routes say of themselves in the OpenAPI document beyond what their types say."""

from typing import Annotated, Any

from fastapi import Query

from refold.gateway.problems import MEDIA_TYPE, Problem

ERRORS: dict[int | str, dict[str, Any]] = {
    code: {
        "description": said,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for code, said in {
        "4XX": "The request was refused; the body says why, what was kept and what to do next.",
        "5XX": "The gateway or the log could not answer.",
    }.items()
}
TimeZone = Annotated[
    str | None,
    Query(description="Zone of the times in the answer, such as Europe/Berlin.", max_length=64),
]


def with_problem(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the schema that all errors refer to."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas["Problem"] = Problem.model_json_schema()
    return document
