"""Errors of the live figures and of telemetry (R801-R807): none is about the truth of a run."""

from typing import ClassVar

from refold_schemas.errors.base import RefoldError

REBUILD = (
    "stop every `refold live` of the namespace, then start one with --rebuild: it counts the log "
    "from its beginning"
)


class LiveNeedsKafka(RefoldError):
    """`refold live` was given a log that no Faust app can read."""

    code: ClassVar[str] = "R801"
    exit_code: ClassVar[int] = 2

    def __init__(self, url: str) -> None:
        self.url = url
        super().__init__(
            f"{url} is no log on Kafka: its live figures are made where it is served",
            kept="nothing was opened or changed",
            next="use `refold dev` for them, or give a kafka:// log",
        )


class OptionalPartMissing(RefoldError):
    """A package of an optional extra is not installed."""

    code: ClassVar[str] = "R802"
    exit_code: ClassVar[int] = 2

    def __init__(self, what: str, missing: str, *, extra: str) -> None:
        self.what, self.missing, self.extra = what, missing, extra
        super().__init__(
            f"{what} cannot be had: the package {missing} is not installed",
            kept="everything; nothing was started",
            next=f"pip install 'refold[{extra}]'",
        )


class FiguresTopicUnfit(RefoldError):
    """The topic of the figures is not one that they can be kept in."""

    code: ClassVar[str] = "R803"
    exit_code: ClassVar[int] = 2

    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(
            f"the topic {topic} cannot hold the live figures: {reason}",
            kept="the log, and the topic as it is",
            next=REBUILD,
        )


class FiguresOutOfStep(RefoldError):
    """The figures count records that the log does not hold."""

    code: ClassVar[str] = "R804"
    exit_code: ClassVar[int] = 3

    def __init__(self, partition: int, reason: str) -> None:
        self.partition, self.reason = partition, reason
        super().__init__(
            f"the live figures of partition {partition} are not those of this log: {reason}",
            kept="the log; figures are made from it and can be made again",
            next=REBUILD,
        )


class FiguresNotStored(RefoldError):
    """A write of figures was not acknowledged, or the client that reads the log gave up."""

    code: ClassVar[str] = "R805"
    exit_code: ClassVar[int] = 4

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"the live figures cannot be kept any more: {reason}",
            kept="what was acknowledged; nothing is counted twice by what comes again",
            next="check that the brokers run, then start it again: it goes on from there",
        )


class PortRefused(RefoldError):
    """A port for metrics or figures cannot be listened on."""

    code: ClassVar[str] = "R806"
    exit_code: ClassVar[int] = 2

    def __init__(self, host: str, port: int, reason: str) -> None:
        self.host, self.port, self.reason = host, port, reason
        super().__init__(
            f"nothing can listen on {host}:{port}: {reason}",
            kept="everything; nothing was started",
            next="choose another port, or stop what has it",
        )


class TracesRefused(RefoldError):
    """The settings of the trace exporter cannot be used."""

    code: ClassVar[str] = "R807"
    exit_code: ClassVar[int] = 2

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"traces cannot be exported: {reason}",
            kept="everything; nothing was started",
            next="correct the OTEL_* variable; without OTEL_EXPORTER_OTLP_ENDPOINT none are made",
        )
