"""Log lines with fields, as JSON or as text: what a service tells, and what its libraries say.

Secrets are taken out of every line: by the name of a field, in a URL, and by their value where the
environment has it.
"""

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, TextIO
from urllib.parse import unquote, urlsplit

from refold_schemas.errors.harmless import harmless_json
from refold_schemas.errors.live import OptionalPartMissing

FORMATS = ("json", "text")
HIDDEN = "***"
SECRET_NAMES = re.compile(
    r"password|passwd|secret|token|authorization|api_?key|credential|cookie", re.IGNORECASE
)
SECRET_VARIABLES = re.compile(r"(^|_)(PASSWORD|SECRET|TOKEN|API_?KEY)(_|$)|^OTEL_.*HEADERS$")
SECRET_MIN = 4
"""A shorter value is found everywhere: it hides nothing, it only makes lines unreadable."""
_USERINFO = re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s@]+@", re.IGNORECASE)
_BEARER = re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)

Line = Callable[[str, str, str, Mapping[str, Any]], None]
"""`line(level, event, message, fields)`: fields of None are left out."""


def secrets_of(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values that no line may show, the longest first.

    >>> secrets_of({"REFOLD_KAFKA_PASSWORD": "correct-horse", "REFOLD_DATABASE_URL": "pg://u:pw12@h"})
    ('correct-horse', 'pw12')
    """
    found: set[str] = set()
    for name, value in environment.items():
        if SECRET_VARIABLES.search(name.upper()):
            found.add(value)
        if "://" in value and "@" in value:
            try:
                password = urlsplit(value).password
            except ValueError:
                continue
            if password:
                found |= {password, unquote(password)}
    return tuple(sorted((one for one in found if len(one) >= SECRET_MIN), key=len, reverse=True))


def hide(text: str, secrets: tuple[str, ...] = ()) -> str:
    """The text without passwords in URLs, bearer tokens, and `secrets`.

    >>> hide("postgresql://ann:pw@db/x refused Bearer abcdefgh.ijk")
    'postgresql://***@db/x refused Bearer ***'
    """
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    text = _USERINFO.sub(rf"\g<1>{HIDDEN}@", text)
    return _BEARER.sub(rf"\g<1> {HIDDEN}", text)


def open_lines(
    kind: str,
    *,
    stream: TextIO | None = None,
    environment: Mapping[str, str] | None = None,
    **fields: Any,
) -> Line:
    """Send the process's log lines to `stream` (stderr), in this format; returns how to write one.

    What libraries log from warning on comes the same way. `fields` are in every line. Raises
    OptionalPartMissing.
    """
    try:
        import structlog
    except ModuleNotFoundError as error:
        raise OptionalPartMissing("--log-format", "structlog", extra="telemetry") from error

    target = sys.stderr if stream is None else stream
    secrets = secrets_of(os.environ if environment is None else environment)

    def safe(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        for name, value in event.items():
            if SECRET_NAMES.search(name):
                event[name] = HIDDEN
            elif isinstance(value, str):
                event[name] = hide(value, secrets)
            elif not isinstance(value, (int, float, bool, type(None))):
                event[name] = hide(str(value), secrets)
        return event

    common: list[Any] = [structlog.processors.add_log_level, structlog.processors.format_exc_info]
    render: Any
    if kind == "json":
        render = structlog.processors.JSONRenderer(
            serializer=lambda *one, **how: harmless_json(json.dumps(*one, **how)),
            ensure_ascii=False,
        )
    else:
        render = structlog.dev.ConsoleRenderer(colors=False, pad_event_to=12, sort_keys=False)
    structlog.reset_defaults()
    logger = structlog.wrap_logger(
        structlog.WriteLogger(target),
        processors=[*common, safe, render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )

    def line(level: str, event: str, message: str, more: Mapping[str, Any]) -> None:
        said = {name: value for name, value in {**fields, **more}.items() if value is not None}
        at = said.pop("at_ms", None)
        moment = datetime.now(UTC) if at is None else datetime.fromtimestamp(at / 1000, UTC)
        stamp = moment.isoformat(timespec="milliseconds")
        getattr(logger, level)(event, timestamp=stamp, message=message, **said)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            level = record.levelname.lower()
            line(
                level if level in ("warning", "error", "critical") else "info",
                "library",
                record.getMessage(),
                {"logger": record.name},
            )

    root = logging.getLogger()
    for before in [one for one in root.handlers if type(one).__name__ == Handler.__name__]:
        root.removeHandler(before)
    root.addHandler(Handler(logging.WARNING))
    return line
