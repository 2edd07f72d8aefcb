"""The gateway's settings out of the environment: one field for each `REFOLD_GATEWAY_*` variable."""

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from refold.gateway.settings import (
    ALGORITHMS_DEFAULT,
    TOKENS_DEFAULT,
    GatewaySettings,
    OidcSettings,
)
from refold_schemas.errors.cli import SettingInvalid
from refold_schemas.errors.gateway import GatewayUnsafe

PREFIX = "REFOLD_GATEWAY_"


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, str_strip_whitespace=True, extra="ignore"
    )

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    tokens: Path = TOKENS_DEFAULT
    hosts: str = ""
    proxies: str = ""
    database_schema: str = "public"
    live_url: str | None = Field(default=None, pattern=r"^https?://")
    body_size_max: int = Field(default=2 << 20, ge=1_024, le=64 << 20)
    rate_per_s: float = Field(default=50.0, gt=0, le=100_000)
    rate_burst: int = Field(default=100, ge=1, le=100_000)
    requests_max: int = Field(default=256, ge=1, le=10_000)
    streams_max: int = Field(default=256, ge=1, le=10_000)
    connections_max: int = Field(default=5, ge=1, le=200)
    deadline_s: float = Field(default=15.0, ge=1, le=600)
    session_s: float = Field(default=12 * 3600.0, ge=60, le=30 * 86_400)
    oidc_issuer: str | None = None
    oidc_audience: str | None = None
    oidc_jwks_url: str | None = None
    oidc_role_claim: str = "roles"
    oidc_role_map: str = ""
    oidc_who_claim: str = "sub"
    oidc_algorithms: str = ",".join(ALGORITHMS_DEFAULT)
    oidc_leeway_s: float = Field(default=30.0, ge=0, le=300)

    @field_validator("oidc_role_map")
    @classmethod
    def _map(cls, text: str) -> str:
        for one in _parts(text):
            if one.count("=") != 1:
                raise ValueError(f"{one!r} is not GROUP=ROLE")
        return text


def settings_from(
    *,
    log_url: str,
    database_url: str | None,
    time_zone: str,
    insecure: bool,
    host: str | None,
    port: int | None,
    tokens: Path | None,
) -> GatewaySettings:
    """What was given, else what the environment says. Raises SettingInvalid, GatewayUnsafe."""
    said = _read()
    return GatewaySettings(
        log_url=log_url,
        database_url=database_url,
        database_schema=said.database_schema,
        host=host or said.host,
        port=said.port if port is None else port,
        insecure=insecure,
        tokens_path=tokens or said.tokens,
        oidc=_oidc(said),
        time_zone=time_zone,
        live_url=said.live_url,
        trusted_hosts=tuple(one.lower() for one in _parts(said.hosts)),
        proxies=_parts(said.proxies),
        body_size_max=said.body_size_max,
        rate_per_s=said.rate_per_s,
        rate_burst=said.rate_burst,
        requests_max=said.requests_max,
        streams_max=said.streams_max,
        connections_max=said.connections_max,
        deadline_s=said.deadline_s,
        session_s=said.session_s,
    )


def tokens_path(given: Path | None) -> Path:
    """The file of tokens. Raises SettingInvalid."""
    return given or _read().tokens


def _read() -> _Environment:
    try:
        return _Environment()
    except ValidationError as error:
        first: dict[str, Any] = dict(error.errors(include_url=False, include_input=False)[0])
        variable = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        raise SettingInvalid(variable, first["msg"].removeprefix("Value error, ")) from error


def _oidc(said: _Environment) -> OidcSettings | None:
    given = (said.oidc_issuer, said.oidc_audience, said.oidc_jwks_url)
    if not any(given):
        return None
    issuer, audience, jwks_url = given
    if issuer is None or audience is None or jwks_url is None:
        raise GatewayUnsafe(
            "of the identity provider only a part is set",
            "set REFOLD_GATEWAY_OIDC_ISSUER, _OIDC_AUDIENCE and _OIDC_JWKS_URL together",
        )
    pairs = [one.partition("=") for one in _parts(said.oidc_role_map)]
    return OidcSettings(
        issuer,
        audience,
        jwks_url,
        role_claim=said.oidc_role_claim,
        role_map=tuple((group.strip(), role.strip()) for group, _, role in pairs),
        who_claim=said.oidc_who_claim,
        algorithms=_parts(said.oidc_algorithms),
        leeway_s=said.oidc_leeway_s,
    )


def _parts(text: str) -> tuple[str, ...]:
    return tuple(one.strip() for one in text.split(",") if one.strip())
