"""The settings as a pydantic model: one field for each environment variable."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, FilePath, SecretStr, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from refold.settings import LOG_DEFAULT, TIME_ZONE_DEFAULT
from refold.settings.registry import check_registry_url

ELSEWHERE = ("COMMAND_KEYS", "DEBUG", "DEVSTACK_HOME", "GATEWAY_TOKENS", "SIGNING_KEY")
"""Variables that are read where they are wanted, and that a slip would switch off unnoticed."""
ALIKE = 0.85


class Settings(BaseSettings):
    """What the environment says. A blank variable counts as unset."""

    model_config = SettingsConfigDict(
        env_prefix="REFOLD_", env_ignore_empty=True, str_strip_whitespace=True, extra="ignore"
    )

    log: str = LOG_DEFAULT
    """`REFOLD_LOG`: `sqlite:///relative.db`, `sqlite:////absolute.db?ns=name`, `kafka://…`."""
    registry_url: str | None = None
    """`REFOLD_REGISTRY_URL`: a schema registry with Confluent's API; unset: the embedded one."""
    registry_username: str | None = None
    """`REFOLD_REGISTRY_USERNAME`: instead of one in the URL."""
    registry_password: SecretStr | None = None
    """`REFOLD_REGISTRY_PASSWORD`: shown nowhere."""
    registry_cafile: FilePath | None = None
    """`REFOLD_REGISTRY_CAFILE`: certificates to trust instead of the machine's own."""
    database_url: str | None = None
    """`REFOLD_DATABASE_URL`: `postgresql://…`, where the tables are."""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """`REFOLD_KAFKA_SECURITY_PROTOCOL`: whether a Kafka log is reached over TLS and with SASL."""
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    """`REFOLD_KAFKA_SASL_MECHANISM`."""
    kafka_username: str | None = None
    """`REFOLD_KAFKA_USERNAME`."""
    kafka_password: SecretStr | None = None
    """`REFOLD_KAFKA_PASSWORD`: shown nowhere."""
    kafka_cafile: FilePath | None = None
    """`REFOLD_KAFKA_CAFILE`: certificates to trust instead of the machine's own."""
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)
    """`REFOLD_METRICS_PORT`: where a service answers Prometheus; 0: any free one; unset: none."""
    metrics_host: str = "127.0.0.1"
    """`REFOLD_METRICS_HOST`: the address that it, and `--web-port`, listen on."""
    log_format: Literal["json", "text"] | None = None
    """`REFOLD_LOG_FORMAT`: log lines with fields on stderr; unset: lines for people on stdout."""
    time_zone: str = TIME_ZONE_DEFAULT
    """`REFOLD_TIME_ZONE`: the zone in which the command line writes times."""

    @field_validator("log")
    @classmethod
    def _log(cls, url: str) -> str:
        if not url:
            return LOG_DEFAULT
        if "://" not in url:
            raise ValueError(f"{url!r} is no URL; write it like sqlite:///relative.db")
        return url

    @field_validator("registry_url")
    @classmethod
    def _registry(cls, url: str | None) -> str | None:
        if url:
            check_registry_url(url)
        return url or None

    @field_validator("database_url")
    @classmethod
    def _database(cls, url: str | None) -> str | None:
        if url and not url.startswith(("postgresql://", "postgres://")):
            raise ValueError("it is no URL of a Postgres; write it like postgresql://host/name")
        return url or None

    @field_validator("time_zone")
    @classmethod
    def _time_zone(cls, name: str) -> str:
        if not name:
            return TIME_ZONE_DEFAULT
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"there is no time zone {name!r} on this machine") from error
        return name


def misspelt(variables: Iterable[str]) -> dict[str, str]:
    """Variables that nobody reads and that look like one that is read, with that one.

    >>> misspelt(["REFOLD_COMMAND_KEY", "REFOLD_LOG", "REFOLD_LOG_FORMAT", "REFOLD_OF_MY_OWN"])
    {'REFOLD_COMMAND_KEY': 'REFOLD_COMMAND_KEYS'}
    """
    known = {f"REFOLD_{name.upper()}" for name in (*Settings.model_fields, *ELSEWHERE)}
    ours = sorted({one for one in variables if one.startswith("REFOLD_")} - known)
    near = {one: get_close_matches(one, known, n=1, cutoff=ALIKE) for one in ours}
    return {one: found[0] for one, found in near.items() if found}
