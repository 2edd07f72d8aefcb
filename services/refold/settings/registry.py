"""Which schema registry a log's records are written and read with, as the environment says."""

import os
from urllib.parse import unquote, urlsplit

from refold_schemas.errors.cli import SettingInvalid
from refold_schemas.registry import FileRegistry, Registry
from refold_schemas.registry.asking import RegistryAccess

VARIABLE = "REFOLD_REGISTRY_URL"
WHO = frozenset(f"REFOLD_REGISTRY_{one}" for one in ("USERNAME", "PASSWORD", "CAFILE"))


def open_registry(log_url: str, registry_url: str | None = None) -> Registry:
    """The registry for the records of a log; nothing is asked of it yet.

    `registry_url` is instead of `REFOLD_REGISTRY_URL`. Without either, and for a log in memory, it
    is the embedded one. A log on Kafka is written under the outer registry's ids; one in a file
    is for this machine alone: it only reads them. Raises SettingInvalid.
    """
    access = None if log_url.startswith("memory://") else registry_access(registry_url)
    if access is None:
        return FileRegistry()
    from refold_schemas.registry.confluent import ConfluentRegistry

    return ConfluentRegistry(access, writes=is_shared(log_url))


def is_shared(log_url: str) -> bool:
    """Whether other programs write and read the log too, so that its schemas are their business."""
    return log_url.startswith("kafka://")


def registry_access(given: str | None = None) -> RegistryAccess | None:
    """Where the schema registry is and who asks; None where none is set. Raises SettingInvalid."""
    url = given or os.environ.get(VARIABLE, "").strip()
    if not url:
        return None
    try:
        check_registry_url(url)
    except ValueError as error:
        raise SettingInvalid(VARIABLE, str(error)) from None
    username, password, cafile = None, None, None
    if any(name.upper() in WHO for name in os.environ):  # most have none: it loads pydantic
        from refold.settings import load_settings

        settings = load_settings()
        username, cafile = settings.registry_username, settings.registry_cafile
        if settings.registry_password is not None:
            password = settings.registry_password.get_secret_value()
    parts = urlsplit(url)
    if parts.username is not None:
        username, password = unquote(parts.username), unquote(parts.password or "")
    host = parts.netloc.rpartition("@")[2]
    bare = parts._replace(netloc=host).geturl().rstrip("/")
    return RegistryAccess(bare, username, password, None if cafile is None else str(cafile))


def check_registry_url(url: str) -> None:
    """Raise ValueError, without any credentials in its text, for what is no URL of a registry."""
    try:
        parts = urlsplit(url)
        found = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        found = False
    if not found or "," in url:
        raise ValueError("it is no URL of one registry; write it like http://host:8081")
