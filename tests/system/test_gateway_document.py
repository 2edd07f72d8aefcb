"""The gateway against its own OpenAPI document: requests made from it, answers held against it."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from refold.gateway.app import create_routes
from refold.gateway.roles import Role
from refold.gateway.settings import GatewaySettings
from support.gateway_lab import BASE, GatewayLab, serving

CONFORM = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
DOCUMENT = create_routes(GatewaySettings()).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
answered: dict[str, set[int]] = defaultdict(set)
"""What each operation has answered, in both modes."""
STREAM = "/api/v1/runs/{run_id}/events"


def _ok(result: Any) -> Any:
    return result.ok()


OPERATIONS = {
    f"{one.method.upper()} {one.path}": one
    for one in (_ok(result) for result in SCHEMA.get_all_operations())
    if one.path != STREAM  # a stream does not end: test_gateway_streams has it
}


class World:
    """A lab on a loop that stays: hypothesis calls from outside of it."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.lab: GatewayLab = self.runner.run(self._begin(folder))

    async def _begin(self, folder: Path) -> GatewayLab:
        # Nobody waits long for what the examples start.
        limits: dict[str, Any] = {"within_max_s": 0.02, "deadline_s": 30.0}
        lab = await self._stack.enter_async_context(serving(folder, **limits))
        await lab.start("buy", 5, "r1")
        return lab

    def close(self) -> None:
        self.runner.run(self._stack.aclose())
        self.runner.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("document"))
    yield made
    made.close()


def test_the_document_names_every_error_and_no_place_outside(world: World) -> None:
    served = world.runner.run(world.lab.call("GET", "/openapi.json")).json()
    assert served == DOCUMENT
    assert "Problem" in served["components"]["schemas"]
    assert "HTTPValidationError" not in str(served)
    for path, methods in served["paths"].items():
        for method, operation in methods.items():
            place = f"{method} {path}"
            assert operation["summary"], place
            assert operation["description"], place
            problems = [operation["responses"][code] for code in ("4XX", "5XX")]
            assert [list(one["content"]) for one in problems] == [["application/problem+json"]] * 2


@pytest.mark.untraced
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("place", OPERATIONS)
def test_requests_made_from_the_document(world: World, place: str, mode: GenerationMode) -> None:
    operation = OPERATIONS[place]
    lab = world.lab
    token = lab.headers(Role.ADMIN)
    examples: list[int] = []

    @hypothesis.settings(
        max_examples=8,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        examples.append(1)
        if mode is GenerationMode.POSITIVE and len(examples) % 2:
            # Made-up names lead to refusals alone: every other one is of what there is.
            if "run_id" in case.path_parameters:
                case.path_parameters["run_id"] = "r1"
            if place == "POST /api/v1/runs":
                case.body["run"] = "echo"
        options = case.as_transport_kwargs(base_url=BASE)
        options.pop("cookies", None)
        options["headers"] = {**(options.get("headers") or {}), **token}
        if isinstance(options.get("data"), bytes | str):
            options["content"] = options.pop("data")
        answer = world.runner.run(lab.http.request(**options))
        case.validate_response(answer, checks=CONFORM)
        answered[place].add(answer.status_code)
        if answer.status_code == 503:
            assert answer.json()["code"] == "R712"  # no database is set here
        else:
            case.validate_response(answer, checks=[not_a_server_error])
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json"

    try:
        one()
    except hypothesis.errors.Unsatisfiable:  # nothing can be wrong with a request without parts
        assert mode is GenerationMode.NEGATIVE


def test_the_requests_were_no_mere_refusals() -> None:
    """After the others: an example that is always refused says nothing of an answer's shape."""
    if len(answered) < len(OPERATIONS):
        return  # only some of them were asked for
    good = {place for place, codes in answered.items() if codes & {200, 201, 202, 204}}
    tables = {place for place, codes in answered.items() if 503 in codes}
    refused = set(OPERATIONS) - good - tables
    assert refused <= {
        "POST /api/v1/commands/rejected/{partition}/{offset}/republish",
        "POST /api/v1/session",
        "POST /api/v1/runs/{run_id}/resolve",
        "POST /api/v1/runs/{run_id}/retry",
        "GET /errors/{code}",
    }
