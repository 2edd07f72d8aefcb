"""What a gateway is told: where it listens, whom it believes, and every limit that it keeps."""

from dataclasses import dataclass
from pathlib import Path

from refold.settings import LOG_DEFAULT, TIME_ZONE_DEFAULT

TOKENS_DEFAULT = Path(".refold/tokens.json")
"""The file of tokens of a project on one machine."""
ALGORITHMS_DEFAULT = ("RS256", "PS256", "ES256", "EdDSA")
"""Signatures of an identity provider that are believed; never `none`, never one with a shared
secret."""


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """An identity provider whose JWTs are believed.

    `role_claim` names the claim with the caller's roles or groups, dots lead into objects;
    `role_map` says which of its values is which role (a value that is not there is none).
    `who_claim` names the caller as commands record it. `leeway_s` is for clocks that differ.
    """

    issuer: str
    audience: str
    jwks_url: str
    role_claim: str = "roles"
    role_map: tuple[tuple[str, str], ...] = ()
    who_claim: str = "sub"
    algorithms: tuple[str, ...] = ALGORITHMS_DEFAULT
    leeway_s: float = 30.0
    jwks_keep_s: float = 300.0
    """How long its keys are believed before they are asked for again."""
    jwks_again_s: float = 10.0
    """How soon an unknown key id may make the gateway ask again."""
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """One gateway. Sizes in bytes, times in seconds."""

    log_url: str = LOG_DEFAULT
    database_url: str | None = None
    database_schema: str = "public"
    host: str = "127.0.0.1"
    port: int = 8080
    insecure: bool = False
    """Whoever reaches it may do everything; refused where others than this machine reach it."""
    insecure_who: str = "insecure"
    """What commands record as their sender then."""
    tokens_path: Path = TOKENS_DEFAULT
    oidc: OidcSettings | None = None
    time_zone: str = TIME_ZONE_DEFAULT
    live_url: str | None = None
    """Where `refold live` answers, for the figures of the page."""

    body_size_max: int = 2 << 20
    url_size_max: int = 8 << 10
    header_size_max: int = 32 << 10
    header_count_max: int = 100

    rate_per_s: float = 50.0
    """Requests a second of one caller, on the average."""
    rate_burst: int = 100
    failures_per_s: float = 2.0
    """Refused tokens a second of one address, on the average."""
    failures_burst: int = 20
    callers_max: int = 10_000
    """Callers and addresses whose rate is kept; beyond it those that have asked least recently
    are forgotten."""

    deadline_s: float = 15.0
    """Within this every request is answered that does not wait for a run or stream its events."""
    within_max_s: float = 60.0
    """How long a caller may wait for a decision or for a run's end."""
    requests_max: int = 256
    """Requests that are answered at the same time; further ones get 503 at once."""
    scans_max: int = 4
    """Requests at the same time that read whole partitions of the log."""
    records_max: int = 5_000
    """Records in one answer of a history."""

    streams_max: int = 256
    streams_of_caller_max: int = 32
    stream_queue_max: int = 256
    """Events that wait for one slow reader; then it is cut off, and may go on where it was."""
    stream_stall_s: float = 20.0
    """How long a reader may take nothing."""
    stream_beat_s: float = 15.0

    connections_max: int = 5
    """Connections to Postgres; the projector has its own."""
    acquire_s: float = 2.0
    """How long a request waits for one of them."""
    statement_s: float = 5.0
    """How long one query may take; Postgres ends it."""

    session_s: float = 12 * 3600.0
    drain_s: float = 10.0
    """How long requests under way have to end after SIGTERM."""
    trusted_hosts: tuple[str, ...] = ()
    """Names under which browsers may reach it; empty: any."""
    proxies: tuple[str, ...] = ()
    """Addresses whose X-Forwarded-For and -Proto are believed."""
