"""Asks a schema registry over HTTP (Confluent's API): each question has a limit and few tries.

The client library is imported by the first question. A session lasts as long as one errand: what
is asked is asked rarely, and nothing has to be closed later or belongs to an event loop.
Source: Confluent Schema Registry API, errors 40401 to 40403.
"""

import asyncio
import json
from collections.abc import Awaitable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from refold_schemas.errors.registry import (
    RegistryClientMissing,
    RegistryRefused,
    RegistryUnavailable,
)
from refold_schemas.registry.port import Schema

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema as Sent

REQUEST_S = 5
"""How long the registry may be silent within one request."""
RETRIES_MAX = 2
RETRY_MS, RETRY_MAX_MS = 200, 1_000
QUESTION_S = 20.0
"""How long one question may take, its tries together."""
NOT_THERE = frozenset({40401, 40402, 40403})
"""Subject, version or schema not found. A 404 without one of them is a wrong address."""
REFUSALS = frozenset({409, 422})
"""HTTP status: incompatible with what is registered; not valid."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """Where a schema registry is, and who asks. `url` holds no credentials; nothing shows them."""

    url: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    cafile: str | None = None


class Fetched(NamedTuple):
    """A schema as the registry holds it: its text, and of what kind it says that it is."""

    schema_id: int
    text: str
    kind: str
    has_references: bool


class Asking:
    """One session with the registry. Each question raises RegistryUnavailable where it is away."""

    def __init__(self, access: RegistryAccess) -> None:
        self._access = access
        self._settings: dict[str, object] = {
            "url": access.url,
            "timeout": REQUEST_S,
            "max.retries": RETRIES_MAX,
            "retries.wait.ms": RETRY_MS,
            "retries.max.wait.ms": RETRY_MAX_MS,
        }
        if access.username is not None:
            self._settings["basic.auth.user.info"] = f"{access.username}:{access.password or ''}"
        if access.cafile is not None:
            self._settings["ssl.ca.location"] = access.cafile

    async def __aenter__(self) -> Self:
        """Begin. Raises RegistryClientMissing without the packages of the extra `registry`."""
        try:
            from confluent_kafka.schema_registry import AsyncSchemaRegistryClient
        except ImportError as error:
            raise RegistryClientMissing(
                self._access.url, error.name or "confluent_kafka"
            ) from error
        try:
            self._client: AsyncSchemaRegistryClient = AsyncSchemaRegistryClient(self._settings)
        except (OSError, ValueError) as error:  # a certificate file that is none
            raise RegistryUnavailable(self._access.url, told(error)) from error
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def schema(self, schema_id: int) -> Fetched | None:
        """The schema of an id; None where the registry says that it has none."""
        found = await self._ask(self._client.get_schema(schema_id))
        if found is None:
            return None
        return Fetched(
            schema_id, found.schema_str or "", found.schema_type or "AVRO", bool(found.references)
        )

    async def id_of(self, subject: str, schema: Schema) -> int | None:
        """The id under which the subject has this schema; None where it has not."""
        found = await self._ask(self._client.lookup_schema(subject, _avro(schema)))
        return None if found is None else found.schema_id

    async def versions(self, subject: str) -> tuple[Fetched, ...]:
        """All that a subject has, oldest first; nothing where there is no such subject."""
        numbers = await self._ask(self._client.get_versions(subject))
        found = []
        for number in numbers or ():
            one = await self._ask(self._client.get_version(subject, number))
            if one is not None and one.schema_id is not None:
                schema = one.schema
                kind, references = schema.schema_type or "AVRO", bool(schema.references)
                found.append(Fetched(one.schema_id, schema.schema_str or "", kind, references))
        return tuple(found)

    async def compatibility(self, subject: str) -> str | None:
        """The level that was set for the subject; None where none was."""
        return await self._ask(self._client.get_compatibility(subject))

    async def set_compatibility(self, subject: str, level: str) -> None:
        """Set it. Raises RegistryRefused."""
        await self._ask(self._client.set_compatibility(subject, level), of=subject)

    async def fits(self, subject: str, schema: Schema) -> bool:
        """Whether the schema is compatible with what the subject has."""
        said = self._client.test_compatibility_all_versions(subject, _avro(schema))
        return await self._ask(said, of=subject) is not False

    async def register(self, subject: str, schema: Schema) -> int:
        """Register the schema and return its id. Raises RegistryRefused."""
        made = await self._ask(self._client.register_schema(subject, _avro(schema)), of=subject)
        if made is None:
            raise RegistryRefused(self._access.url, subject, "it says that it is not there")
        return made

    async def _ask(self, question: Awaitable[T], *, of: str = "") -> T | None:
        from confluent_kafka.schema_registry import SchemaRegistryError

        url = self._access.url
        try:
            async with asyncio.timeout(QUESTION_S):
                return await question
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in NOT_THERE:
                return None
            said = " ".join(str(error.error_message or "").split())
            if of and error.http_status_code in REFUSALS:
                raise RegistryRefused(url, of, said) from error
            raise RegistryUnavailable(url, _status(error.http_status_code, said)) from error
        except Exception as error:  # of the HTTP client, or an answer that is none of a registry
            raise RegistryUnavailable(url, told(error)) from error


def _avro(schema: Schema) -> "Sent":
    from confluent_kafka.schema_registry import Schema as Sent

    return Sent(json.dumps(schema), "AVRO")


def _status(status: int, said: str) -> str:
    if status in (401, 403):
        return f"it lets nobody in with these credentials (HTTP {status})"
    if status == 404:
        return "what answers there is no schema registry (HTTP 404); see the path of the URL"
    return f"it answers with HTTP {status}" + (f": {said[:200]}" if said else "")


def told(error: BaseException) -> str:
    """What an error of the HTTP client says, in a line."""
    name = type(error).__name__
    if isinstance(error, TimeoutError) or "Timeout" in name:
        return "no answer in time"
    text = " ".join(str(error).split())
    return f"{name}: {text}" if text else name
