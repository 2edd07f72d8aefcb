"""The URL of a log, with the namespace that a caller named beside it."""

from urllib.parse import parse_qs, urlsplit

from refold_schemas.errors.log import LogUrlInvalid


def with_namespace(url: str, namespace: str | None) -> str:
    """The URL with a namespace that it does not name itself. Raises LogUrlInvalid for two names.

    >>> with_namespace("sqlite:///a.db", "refunds")
    'sqlite:///a.db?ns=refunds'
    """
    if namespace is None:
        return url
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        return url  # the URL itself names it; the client compares after opening
    named = parse_qs(parts.query).get("ns")
    if named is None:
        return f"{url}{'&' if parts.query else '?'}ns={namespace}"
    if named != [namespace]:
        raise LogUrlInvalid(url, f"it names another namespace than {namespace}")
    return url
