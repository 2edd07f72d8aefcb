"""Errors of the gateway (R701-R799): who asked what over HTTP, and why it was not answered."""

from typing import ClassVar

from refold_schemas.errors.base import RefoldError


class GatewayError(RefoldError):
    """What the gateway answers by itself, without having asked the log. `status` is HTTP's."""

    code: ClassVar[str] = "R700"
    status: ClassVar[int] = 500
    retry_after_s: float | None = None
    """Seconds after which a repeat may do better; None where time changes nothing."""


class NotAuthenticated(GatewayError):
    """No caller could be verified: no token, a wrong one, or one that has ended."""

    code: ClassVar[str] = "R701"
    status: ClassVar[int] = 401

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the caller is not known: {reason}",
            kept="nothing was read or sent",
            next="send `Authorization: Bearer TOKEN`; `refold gateway tokens create` makes one",
        )


class RoleMissing(GatewayError):
    """The caller is known, and may not do this."""

    code: ClassVar[str] = "R702"
    status: ClassVar[int] = 403

    def __init__(self, caller: str, has: str, needs: str) -> None:
        self.caller, self.has, self.needs = caller, has, needs
        super().__init__(
            f"{caller} has the role {has}; this needs {needs}",
            kept="nothing was read or sent",
            next="ask an admin for a token with that role",
        )


class RequestInvalid(GatewayError):
    """The request does not have the shape that the OpenAPI document gives."""

    code: ClassVar[str] = "R703"
    status: ClassVar[int] = 422

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the request cannot be read: {reason}",
            kept="nothing was sent",
            next="compare it with /openapi.json",
        )


class NoSuchPlace(GatewayError):
    """Nothing is served under this path."""

    code: ClassVar[str] = "R704"
    status: ClassVar[int] = 404

    def __init__(
        self,
        what: str = "nothing is served here",
        next: str = "compare the path with those in /openapi.json",  # as the base's
    ) -> None:
        super().__init__(what, kept="nothing was sent", next=next)


class MethodNotThere(GatewayError):
    """The path is served, with other methods."""

    code: ClassVar[str] = "R705"
    status: ClassVar[int] = 405

    def __init__(self) -> None:
        super().__init__(
            "this path takes other methods",
            kept="nothing was sent",
            next="the header Allow lists them, /openapi.json says what they do",
        )


class RequestTooLarge(GatewayError):
    """The body is larger than the gateway takes."""

    code: ClassVar[str] = "R706"
    status: ClassVar[int] = 413

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        super().__init__(
            f"the request's body is larger than {size_max:,} bytes",
            kept="nothing was sent",
            next="send a reference (a key, a URL) instead of the content",
        )


class UrlTooLong(GatewayError):
    """The URL is longer than the gateway takes."""

    code: ClassVar[str] = "R707"
    status: ClassVar[int] = 414

    def __init__(self, size_max: int) -> None:
        self.size_max = size_max
        super().__init__(
            f"the request's URL is longer than {size_max:,} bytes",
            kept="nothing was sent",
            next="shorten it: filters take a few values, a run id has at most 200 characters",
        )


class HeadersTooLarge(GatewayError):
    """The headers together are larger, or more, than the gateway takes."""

    code: ClassVar[str] = "R708"
    status: ClassVar[int] = 431

    def __init__(self, size_max: int, count_max: int) -> None:
        self.size_max, self.count_max = size_max, count_max
        super().__init__(
            f"the request's headers are over {size_max:,} bytes, or more than {count_max}",
            kept="nothing was sent",
            next="send fewer: of its headers the gateway reads a token, a cookie and an id",
        )


class RateLimited(GatewayError):
    """The caller asks faster than it may."""

    code: ClassVar[str] = "R709"
    status: ClassVar[int] = 429

    def __init__(self, who: str, per_s: float, retry_after_s: float) -> None:
        self.who, self.per_s, self.retry_after_s = who, per_s, retry_after_s
        super().__init__(
            f"{who} asks more than {per_s:g} times a second",
            kept="nothing was read or sent",
            next=f"ask again after {retry_after_s:.1f} s",
        )


class GatewayBusy(GatewayError):
    """Nothing is free to answer this within its deadline."""

    code: ClassVar[str] = "R710"
    status: ClassVar[int] = 503

    def __init__(self, reason: str, *, kept: str = "", retry_after_s: float = 1.0) -> None:
        self.reason, self.retry_after_s = reason, retry_after_s
        super().__init__(
            f"the gateway cannot answer this now: {reason}",
            kept=kept or "nothing was sent",
            next=f"ask again after {retry_after_s:g} s; if it stays so, see docs/errors/R710.md",
        )


class ForgeryRefused(GatewayError):
    """A request with a session cookie that does not prove that our own page has sent it."""

    code: ClassVar[str] = "R711"
    status: ClassVar[int] = 403

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the request may be another site's: {reason}",
            kept="nothing was sent",
            next="load the page again; programs use a bearer token, no cookie",
        )


class TablesAbsent(GatewayError):
    """Lists are answered from Postgres, and the gateway has none."""

    code: ClassVar[str] = "R712"
    status: ClassVar[int] = 503

    def __init__(
        self, reason: str, next: str = "set REFOLD_DATABASE_URL and run `refold projector`"
    ) -> None:
        self.reason = reason
        super().__init__(
            f"this list is read from tables: {reason}",
            kept="the log, which has everything; nothing was sent",
            next=f"{next}; start, resolve, retry, cancel, boundary and history need no tables",
        )


class GatewayUnsafe(GatewayError):
    """The gateway was to be started so that strangers could use it."""

    code: ClassVar[str] = "R713"
    exit_code: ClassVar[int] = 2

    def __init__(self, reason: str, next: str) -> None:
        self.reason = reason
        super().__init__(
            f"the gateway is not started: {reason}", kept="nothing was opened", next=next
        )


class TokensUnusable(GatewayError):
    """The file of tokens cannot be read, or be trusted."""

    code: ClassVar[str] = "R714"
    status: ClassVar[int] = 503
    exit_code: ClassVar[int] = 2

    def __init__(self, path: str, reason: str, *, next: str = "") -> None:
        self.path, self.reason = path, reason
        super().__init__(
            f"the tokens in {path} cannot be used: {reason}",
            kept="the file as it is; nobody was let in",
            next=next
            or "make a token with `refold gateway tokens create NAME --role viewer`, or "
            "put the file back from its copy",
        )


class TokenUnknown(GatewayError):
    """There is no token of this id or name."""

    code: ClassVar[str] = "R715"
    status: ClassVar[int] = 404
    exit_code: ClassVar[int] = 2

    def __init__(self, wanted: str, path: str) -> None:
        self.wanted, self.path = wanted, path
        super().__init__(
            f"there is no token {wanted!r} in {path}",
            kept="all tokens as they were",
            next="`refold gateway tokens list` shows ids and names",
        )


class ProviderUnavailable(GatewayError):
    """The keys of the identity provider cannot be had, so its tokens cannot be checked."""

    code: ClassVar[str] = "R716"
    status: ClassVar[int] = 503
    retry_after_s = 5.0

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the identity provider's keys cannot be read: {reason}",
            kept="nothing was sent; tokens of the gateway's own are not concerned",
            next="see that the gateway reaches REFOLD_GATEWAY_OIDC_JWKS_URL, then ask again",
        )


class GatewayPackageMissing(GatewayError):
    """The gateway's libraries are not installed."""

    code: ClassVar[str] = "R717"
    exit_code: ClassVar[int] = 2

    def __init__(self, missing: str) -> None:
        self.missing = missing
        super().__init__(
            f"the gateway cannot be started: the package {missing} is not installed",
            kept="nothing was opened",
            next="pip install 'refold[gateway]'",
        )


class AddressTaken(GatewayError):
    """The address cannot be listened on."""

    code: ClassVar[str] = "R718"
    exit_code: ClassVar[int] = 2

    def __init__(self, host: str, port: int, reason: str) -> None:
        self.host, self.port, self.reason = host, port, reason
        super().__init__(
            f"the gateway cannot listen on {host}:{port}: {reason}",
            kept="nothing was served",
            next="choose another one with --host and --port",
        )


class GatewayDefect(GatewayError):
    """An exception that nobody foresaw. Its text is in the gateway's own output, not in answers."""

    code: ClassVar[str] = "R719"

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        super().__init__(
            f"the gateway could not answer request {request_id}",
            kept="everything that the log has acknowledged; perhaps a command was sent",
            next="repeat it under the same Idempotency-Key; its cause is in the gateway's output",
        )


class HostRefused(GatewayError):
    """The request names a host that the gateway is not."""

    code: ClassVar[str] = "R720"
    status: ClassVar[int] = 421

    def __init__(self, host: str) -> None:
        self.host = host
        super().__init__(
            f"this gateway is not called {host!r}",
            kept="nothing was read or sent",
            next="ask it by a name of REFOLD_GATEWAY_HOSTS; with --insecure that is localhost",
        )


class ReaderTooSlow(GatewayError):
    """A reader of a run's events was cut off: it took them slower than they came."""

    code: ClassVar[str] = "R721"
    status: ClassVar[int] = 503

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the stream is cut off: {reason}",
            kept="every event, in the log",
            next="connect again with the last id as Last-Event-ID; a browser does so by itself",
        )
