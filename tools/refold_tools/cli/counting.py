"""`refold live`: the live figures of a namespace as a service."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from refold_tools.cli.options import JsonOption, LogFormatOption, LogOption, MetricsPortOption

if TYPE_CHECKING:
    from refold_tools.cli.observing import Observing


def live(
    web_port: Annotated[
        int | None,
        typer.Option(
            "--web-port",
            metavar="PORT",
            min=0,
            max=65_535,
            help="Answer /figures, /totals and /waiting as JSON at http://127.0.0.1:PORT; 0 is any "
            "free port.",
            show_default=False,
        ),
    ] = None,
    metrics_port: MetricsPortOption = None,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Forget what was counted and count the log from its beginning. Stop every other "
            "`refold live` of the namespace first.",
        ),
    ] = False,
    log_format: LogFormatOption = None,
    log: LogOption = None,
    as_json: JsonOption = False,
) -> int:
    """Count what happens by second, minute and hour, until SIGINT or SIGTERM; needs Kafka.

    Several processes share the partitions out, and each answers for all of them. Traces are sent
    where OTEL_EXPORTER_OTLP_ENDPOINT names a collector.
    """
    from refold.settings import load_settings, log_url
    from refold_tools.cli.leaving import run_to_end
    from refold_tools.cli.observing import observing

    seen = observing(load_settings(), metrics_port, log_format)
    work = _count(log_url(log), web_port, seen, rebuild=rebuild, as_json=as_json)
    return run_to_end(work, as_json=as_json)


async def _count(
    url: str, web_port: int | None, seen: "Observing", *, rebuild: bool, as_json: bool
) -> int:
    from refold import __version__
    from refold.live.answers import routes, sampled
    from refold.live.service import LiveService
    from refold.log import open_log
    from refold.telemetry import tracing
    from refold_schemas.errors.live import LiveNeedsKafka
    from refold_tools.cli.observing import serve
    from refold_tools.cli.output import print_json, say
    from refold_tools.cli.signals import stop_on_signals

    if not url.startswith("kafka://"):
        raise LiveNeedsKafka(url.partition("?")[0])
    log = open_log(url)
    await log.open(create=False)
    loop = asyncio.get_running_loop()
    namespace = log.facts.namespace
    line = seen.lines("live", namespace)
    spans = None
    if tracing.wanted():
        spans = tracing.SpanSender(version=__version__, namespace=namespace)
    service = LiveService(log, spans=spans)
    servers = []

    def told(text: str) -> None:
        if line is not None:
            line("info", "live", text, {})
        elif as_json:
            print_json({"event": "live", "text": text})
        else:
            say(text)

    def ready(made: bool) -> None:
        ways = routes(lambda: service.figures, loop, namespace)
        samplers = [sampled(service.samples, loop)]
        at = []
        if seen.metrics_port is not None:
            both = ways if web_port == seen.metrics_port and web_port else {}
            servers.append(serve(seen.host, seen.metrics_port, samplers, both))
            at.append(f"metrics at http://{seen.host}:{servers[-1].port}/metrics")
        if web_port is not None and not (web_port and web_port == seen.metrics_port):
            servers.append(serve(seen.host, web_port, samplers, ways, metrics_wanted=False))
            at.append(f"figures at http://{seen.host}:{servers[-1].port}/figures")
        if made:
            told(f"made the topic {namespace}.live-figures")
        told("; ".join([f"counting {namespace} in {log.url}", *at]))

    try:
        with stop_on_signals(service.stop):
            await service.run(rebuild=rebuild, ready=ready)
        stats = service.stats()
        if as_json:
            print_json({"stopped": True, "stats": stats})
        else:
            told("stopped; what is counted is kept")
        return 0
    finally:
        for server in servers:
            server.close()
        if spans is not None:
            await spans.close()
        await log.close()
