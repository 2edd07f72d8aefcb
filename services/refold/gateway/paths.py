"""Ids in paths: whatever a run id has in it, its own slashes are not the path's.

Servers decode a path before routes see it, so that `order%2F1` would be two segments. This keeps
`%2F` and `%25` of a segment encoded until the route has been found; `unescaped` ends that.
"""

from typing import Annotated
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Query

from refold_schemas.errors.gateway import RequestInvalid
from refold_schemas.values import check_run_id

ELSEWHERE = "-"
"""The segment that stands for `?run_id=`."""


def routed(raw: bytes) -> str:
    """A path as it is routed: decoded but for the slashes and percent signs of its segments.

    Raises RequestInvalid for one that is no UTF-8.

    >>> routed(b"/api/v1/runs/order%2F1%25/boundary")
    '/api/v1/runs/order%2F1%25/boundary'
    >>> routed(b"/api/v1/runs/M%C3%BCnchen%20%2E%2E/boundary")
    '/api/v1/runs/M\\xfcnchen ../boundary'
    """
    try:
        segments = [unquote_to_bytes(one).decode() for one in raw.split(b"/")]
    except UnicodeDecodeError:
        raise RequestInvalid("its path is not UTF-8") from None
    return "/".join(one.replace("%", "%25").replace("/", "%2F") for one in segments)


def unescaped(segment: str) -> str:
    """A segment as it was meant."""
    return segment.replace("%2F", "/").replace("%25", "%")


async def _run_id(
    run_id: Annotated[
        str,
        Path(
            description="The run's id, percent-encoded as a whole. Browsers cannot send the ids "
            "`.` and `..` in a path: `-` stands for the query's `run_id`.",
            min_length=1,
        ),
    ],
    elsewhere: Annotated[
        str | None, Query(alias="run_id", description="The id, where the path has `-`.")
    ] = None,
) -> str:
    found = unescaped(run_id)
    if found == ELSEWHERE and elsewhere is not None:
        found = elsewhere
    check_run_id(found)
    return found


RunId = Annotated[str, Depends(_run_id)]
"""The run that a path names. Raises BadRunId."""
