"""Metrics, traces and log lines: what leaves the process, and that nothing leaves that must not."""

import asyncio
import io
import json
import logging
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from refold import App, Policy, RunContext
from refold.client import Client
from refold.gateway.metrics import GatewayMetrics
from refold.gateway.roles import Role
from refold.live.answers import routes
from refold.live.embedded import EmbeddedFigures
from refold.live.metrics import figure_samples
from refold.log.memory import MemoryBroker, MemoryLog
from refold.log.port import Ack, Entry, Record, Topic
from refold.telemetry import BY_NAME, CATALOGUE, Sample
from refold.telemetry.exposition import exposition
from refold.telemetry.lines import hide, open_lines
from refold.telemetry.serving import Server, json_answer, metrics_route
from refold.telemetry.tracing import SpanSender, wanted
from refold.worker import Worker, WorkerEvent
from refold.worker.metrics import WorkerMetrics
from refold_projections.figures import Figures, PartitionFigures
from refold_schemas.errors.live import OptionalPartMissing, PortRefused, TracesRefused
from refold_schemas.errors.log import LogUnavailable
from refold_tools.cli.observing import Observing, serve
from support.gateway_lab import GatewayLab, play
from support.live_history import history
from support.otlp import Collector, collector
from support.written_log import CODEC

ROOT = Path(__file__).parents[2]
OPS = ROOT / "ops"
DOCUMENT = ROOT / "docs/telemetry.md"

app = App("shop")


@app.step()
async def charge(pence: int) -> int:
    return pence


@app.step(policy=Policy.ESCALATE)
async def ship(pence: int) -> int:
    raise RuntimeError("the carrier at http://u:pw123@carrier is away")


@app.run("parcel")
async def parcel(ctx: RunContext, pence: int) -> int:
    return await ctx.step(ship, pence)


@app.run("order")
async def order(ctx: RunContext, pence: int) -> int:
    return await ctx.step(charge, pence)


def families(text: bytes) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def values(text: bytes, wanted: str) -> dict[tuple[str, ...], float]:
    found = {}
    for family in families(text).values():
        for sample in family.samples:
            if sample.name == wanted:
                found[tuple(sample.labels[name] for name in sorted(sample.labels))] = sample.value
    return found


def counted() -> PartitionFigures:
    figures = PartitionFigures(CODEC, traces=True)
    for record in history(3, 200):
        figures.apply(record)
    return figures


@pytest.fixture
def otlp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collector() as kept:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", kept.endpoint)
        yield kept


# ---- metrics


async def work_and_scrape() -> tuple[bytes, list[Sample], dict[str, Any]]:
    """A worker does two runs; then its metrics, figures of the same log, and its page's answer."""
    log = MemoryLog("memory://metrics")
    await log.open(create=True)
    worker = Worker(app, log)
    serving = asyncio.create_task(worker.run())
    figures = EmbeddedFigures(log)
    counting = asyncio.create_task(figures.run())
    loop = asyncio.get_running_loop()
    async with Client(log) as client:
        for number in range(2):
            handle = await client.start("order", number, run_id=f"order-{number}")
            assert await handle.result() == number
    while figures.figures.counts().get(("order", ""), {}).get("runs_completed") != 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    scrape = exposition([WorkerMetrics(worker, loop)])
    server = Server("127.0.0.1", 0, {"/metrics": metrics_route(scrape)})
    try:
        text = await asyncio.to_thread(fetch, server, "/metrics")
    finally:
        server.close()
    samples = list(figure_samples(figures.figures))
    shown = figures.figures.windows("hour")
    worker.stop()
    await serving
    counting.cancel()
    await asyncio.wait({counting})
    await log.close()
    return text, samples, shown


def test_a_run_counts_once_its_start_is_durable() -> None:
    """A run whose start is not acknowledged may never have been."""

    begun, answers = asyncio.Event(), asyncio.Event()

    class Late(MemoryLog):
        """The answer to the append of a start does not come before it is asked for."""

        async def append(self, topic: Topic, partition: int, entries: Sequence[Entry]) -> Ack:
            ack = await super().append(topic, partition, entries)
            if topic is Topic.EVENTS and any(entry.key == b"order-1" for entry in entries):
                begun.set()
                await answers.wait()
            return ack

    async def main() -> None:
        broker = MemoryBroker("runs", partition_count=1)
        log, others = Late(broker=broker), MemoryLog(broker=broker)
        await log.open(create=True)
        await others.open(create=True)
        worker = Worker(app, log)
        serving = asyncio.create_task(worker.run())
        loop = asyncio.get_running_loop()
        scrape = exposition([WorkerMetrics(worker, loop)])

        async def runs() -> float:
            found = values(await asyncio.to_thread(scrape), "refold_worker_runs")
            return found["0",]

        async with Client(others) as client:
            await (await client.start("order", 1, run_id="order-0")).result()
            starting = asyncio.create_task(client.start("order", 1, run_id="order-1"))
            await begun.wait()
            assert await runs() == 1
            answers.set()
            await (await starting).result()
            assert await runs() == 2
        worker.stop()
        await serving
        await log.close()
        await others.close()

    asyncio.run(main())


def fetch(server: Server, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
        body: bytes = answer.read()
        return body


def test_a_worker_says_what_it_did_from_what_its_engine_keeps() -> None:
    text, samples, shown = asyncio.run(work_and_scrape())
    assert values(text, "refold_worker_claims_total") == {(): 1}
    assert values(text, "refold_worker_commands_total") == {(): 2}
    assert values(text, "refold_worker_events_total")[()] >= 6
    appends = values(text, "refold_worker_append_seconds_count")[()]
    assert appends == values(text, "refold_worker_appends_total")[()] > 0
    assert values(text, "refold_worker_batch_events_sum")[()] >= 6
    assert values(text, "refold_worker_commands_lag_records") == {("0",): 0}
    assert values(text, "refold_worker_queue_bytes") == {("0",): 0}
    assert values(text, "refold_worker_claims_ended_total")[("fenced",)] == 0
    assert values(text, "refold_worker_loop_stalls_total") == {(): 0}
    named = {m.name for m in CATALOGUE if m.of in ("worker", "every service")}
    ours = set(re.findall(r"^# TYPE (refold_\w+) ", text.decode(), re.MULTILINE))
    assert ours == named
    assert b"process_resident_memory_bytes" in text
    found = {(s.name, s.labels): s.value for s in samples}
    assert found["refold_runs_total", ("order", "completed")] == 2
    assert found["refold_steps_total", ("order", "charge", "done")] == 2
    [hour, *_] = shown["windows"]
    assert {cell["step"] for cell in hour["cells"]} == {None, "charge"}


def test_every_live_metric_of_the_catalogue_is_exported_and_no_other() -> None:
    figures = Figures(lambda: {0: counted()}, lambda: 0)
    text = exposition([lambda: figure_samples(figures)])()
    ours = set(re.findall(r"^# TYPE (refold_\w+) ", text.decode(), re.MULTILINE))
    of_process = {"refold_live_partitions", "refold_live_lag_records", "refold_live_records_total"}
    of_process |= {"refold_spans_sent_total", "refold_spans_dropped_total"}
    rare = {"refold_records_undecodable_total"}
    assert ours | of_process | rare == {m.name for m in CATALOGUE if m.of == "live"}
    assert b"run_id" not in text
    assert b"run-1" not in text


def test_histograms_are_cumulative_and_in_seconds() -> None:
    figures = counted()
    view = Figures(lambda: {0: figures}, lambda: 0)
    text = exposition([lambda: figure_samples(view)])()
    buckets = [
        (float(s.labels["le"]), s.value)
        for s in families(text)["refold_step_seconds"].samples
        if s.name.endswith("_bucket") and s.labels["step"] == "gather"
    ]
    assert [le for le, _ in buckets] == sorted(le for le, _ in buckets)
    assert [count for _, count in buckets] == sorted(count for _, count in buckets)
    total = values(text, "refold_step_seconds_count")["refund", "gather"]
    assert buckets[-1] == (float("inf"), total)


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_names_have_units_and_labels_are_few(metric: Any) -> None:
    assert re.fullmatch(r"refold_[a-z_]+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not {"run_id", "slot", "attempt", "claim"} & set(metric.labels)
    assert metric.help.endswith(".")


def test_the_document_lists_every_metric_with_its_labels_and_meaning() -> None:
    rows = re.findall(r"^\| `(refold_\w+)` \| (\w+) \| (.*?) \| (.*?) \| (.*?) \|$",
                      DOCUMENT.read_text(), re.MULTILINE)  # fmt: skip
    listed = {name: row for name, *row in rows}
    expected = {
        m.name: [m.kind, ", ".join(f"`{label}`" for label in m.labels), m.of, m.help]
        for m in CATALOGUE
    }
    assert listed == expected


def test_a_gateway_counts_by_template_never_by_id_and_says_whom_it_refuses(
    tmp_path: Path,
) -> None:
    texts: list[bytes] = []

    async def scene(lab: GatewayLab) -> None:
        scrape = exposition([GatewayMetrics(lab.shell)])
        await lab.start("echo", 1, "run-48211")
        for path in ("/api/v1/runs/run-48211/boundary", "/api/v1/runs/gone-1/boundary", "/none-1"):
            await lab.call("GET", path)
        assert (await lab.http.get("/api/v1/health")).status_code == 401
        refused = await lab.call("POST", "/api/v1/runs/run-48211/cancel", Role.VIEWER, json={})
        assert refused.status_code == 403
        await lab.http.request("BREW", "/api/v1/health/live")
        headers = lab.headers(Role.VIEWER, name="busy")
        for _ in range(5):
            answer = await lab.http.get("/api/v1/health", headers=headers)
        assert answer.status_code == 429
        texts.append(await asyncio.to_thread(scrape))

    play(tmp_path, scene, rate_per_s=0.001, rate_burst=4)
    text = texts[0]
    requests = values(text, "refold_gateway_requests_total")  # labels: method, route, status
    boundary = "/api/v1/runs/{run_id}/boundary"
    assert requests["GET", boundary, "2xx"] == requests["GET", boundary, "4xx"] == 1
    assert requests["POST", "/api/v1/runs", "2xx"] == 1
    assert requests["POST", "/api/v1/runs/{run_id}/cancel", "4xx"] == 1
    assert requests["GET", "none", "4xx"] == 1
    assert {method for method, _, _ in requests} == {"GET", "POST", "other"}
    assert b"48211" not in text
    assert b"gone-1" not in text
    assert b"none-1" not in text
    assert values(text, "refold_gateway_request_seconds_count")["GET", boundary] == sum(
        count for (_, route, _), count in requests.items() if route == boundary
    )
    assert values(text, "refold_gateway_commands_total") == {("StartRun",): 1}
    assert values(text, "refold_gateway_unauthenticated_total") == {(): 1}
    assert values(text, "refold_gateway_role_missing_total") == {("viewer",): 1}
    assert values(text, "refold_gateway_rate_limited_total")[("caller",)] == 1
    assert values(text, "refold_gateway_streams") == {(): 0}
    ours = set(re.findall(r"^# TYPE (refold_\w+) ", text.decode(), re.MULTILINE))
    with_a_database = {name for name in BY_NAME if name.startswith("refold_gateway_connections_")}
    of_gateway = {m.name for m in CATALOGUE if m.of in ("gateway", "every service")}
    assert ours == of_gateway - with_a_database


# ---- dashboards and alerts

FUNCTIONS = {"sum", "max", "min", "avg", "count", "rate", "increase", "histogram_quantile", "by"}
FUNCTIONS |= {"without", "clamp_min", "absent", "and", "or", "unless", "topk", "on", "ignoring"}
LABELS = {label for metric in CATALOGUE for label in metric.labels} | {"le", "job", "instance"}
RANGES = {"__rate_interval"}


def expressions() -> dict[str, str]:
    """Every expression of dashboard and alerts, by where it stands."""
    found = {}
    rules = yaml.safe_load((OPS / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            found[f"alert {rule['alert']}"] = rule["expr"]
    board = json.loads((OPS / "grafana-dashboard.json").read_text())
    for panel in board["panels"]:
        for at, target in enumerate(panel.get("targets", ())):
            found[f"panel {panel['title']} {at}"] = target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found[f"variable {variable['name']}"] = variable["query"]["query"]
    return found


def exported(name: str) -> str | None:
    """The metric that a series name belongs to."""
    if name in BY_NAME:
        return None if BY_NAME[name].kind == "histogram" else name
    bare = re.sub(r"_(bucket|sum|count)$", "", name)
    found = BY_NAME.get(bare)
    return bare if found is not None and found.kind == "histogram" else None


def test_dashboard_and_alerts_name_only_what_is_exported_and_parse() -> None:
    found = expressions()
    assert len(found) > 25
    for place, expression in found.items():
        if place.startswith("variable"):
            expression = re.sub(r"^label_values\((.*), *\w+\)$", r"\1", expression)
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
        depth: list[str] = []
        for character in bare:
            if character in "([{":
                depth.append(character)
            elif character in ")]}":
                assert depth, f"{place}: {character} closes nothing"
                assert depth.pop() + character in ("()", "[]", "{}"), place
        assert depth == [], f"{place}: {expression}"
        assert not re.search(r"[-+*/]\s*$|^\s*[*/]|\(\s*\)", bare), place
        without = re.sub(r"\[[^\]]*\]", "", bare)
        labels_used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=(?!=))", without))
        grouped = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", without)
        labels_used |= {one.strip() for part in grouped for one in part.split(",") if one.strip()}
        assert labels_used <= LABELS, f"{place}: {labels_used - LABELS}"
        words = re.sub(r"\{[^}]*\}", "", without)
        words = re.sub(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)", "", words)
        names = set(re.findall(r"[a-zA-Z_]\w*", words)) - FUNCTIONS
        series = {name for name in names if name.startswith("refold_")}
        assert series, f"{place} asks for no metric"
        for name in series:
            assert exported(name), f"{place}: nobody exports {name}"
        assert names - series <= {"up"}, f"{place}: {names - series}"
        for name in re.findall(r"histogram_quantile\([^,]+,(.*)", expression):
            assert "le" in re.findall(r"by \(([^)]*)\)", name)[0], f"{place}: le is summed away"


def test_a_counter_is_never_shown_as_it_is_and_a_gauge_never_as_a_rate() -> None:
    for place, expression in expressions().items():
        if place.startswith("variable"):
            continue
        rated = set(re.findall(r"(?:rate|increase)\(\s*(refold_\w+)", expression))
        for name in set(re.findall(r"refold_\w+", expression)):
            bare = exported(name)
            assert bare is not None
            kind = BY_NAME[bare].kind
            assert (name in rated) == (kind != "gauge"), f"{place}: {name} is a {kind}"


def test_every_alert_leads_to_a_section_that_exists() -> None:
    rules = yaml.safe_load((OPS / "alerts.yaml").read_text())
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    assert len(alerts) >= 10
    assert len({rule["alert"] for rule in alerts}) == len(alerts)
    for rule in alerts:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["alert"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s")), rule["alert"]
        assert rule["annotations"]["summary"]
        place, _, anchor = rule["annotations"]["runbook"].partition("#")
        text = (ROOT / place).read_text()
        heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in heads}
        assert anchor in anchors, f"{rule['alert']}: {place}#{anchor}"


# ---- what is asked over HTTP


def test_the_read_api_answers_and_refuses_by_name() -> None:
    async def ask() -> dict[str, tuple[int, Any]]:
        figures = Figures(lambda: {0: counted()}, lambda: 0)
        loop = asyncio.get_running_loop()
        server = Server("127.0.0.1", 0, routes(lambda: figures, loop, "shop"))
        try:
            paths = ["/figures?window=hour&run=shop", "/figures?window=day", "/figures?since_ms=x"]
            paths += ["/totals", "/waiting", "/health", "/figures?windwo=hour", "/none", "/"]
            return {path: await asyncio.to_thread(code_of, server, path) for path in paths}
        finally:
            server.close()

    found = asyncio.run(ask())
    assert {path: status for path, (status, _) in found.items() if status == 200}.keys() == {
        "/figures?window=hour&run=shop", "/totals", "/waiting", "/health",
    }  # fmt: skip
    assert {found[path][1]["namespace"] for path in ("/totals", "/waiting", "/health")} == {"shop"}
    windows = found["/figures?window=hour&run=shop"][1]
    assert windows["namespace"] == "shop"
    assert {cell["run"] for w in windows["windows"] for cell in w["cells"]} == {"shop"}
    assert "second, minute, hour" in found["/figures?window=day"][1]["detail"]
    assert found["/none"][0] == 404
    assert found["/figures?windwo=hour"][0] == 400


def code_of(server: Server, path: str) -> tuple[int, Any]:
    try:
        return 200, json.loads(fetch(server, path))
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_loop_that_is_held_up_is_answered_for() -> None:
    loop = asyncio.new_event_loop()  # nobody runs it
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("refold.live.answers.ANSWER_S", 0.05)
            server = Server("127.0.0.1", 0, routes(lambda: Figures(dict, lambda: 0), loop, "n"))
            try:
                assert code_of(server, "/totals")[0] == 503
            finally:
                server.close()
    finally:
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_a_port_that_is_taken_is_refused_with_its_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortRefused, match=str(port)):
            Server("127.0.0.1", port, {})


def test_who_asks_for_figures_alone_needs_no_package_for_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)  # as if it were not installed
    ways = {"/figures": lambda _: json_answer({"windows": []})}
    with pytest.raises(OptionalPartMissing, match="prometheus_client"):
        serve("127.0.0.1", 0, [], ways)
    server = serve("127.0.0.1", 0, [], ways, metrics_wanted=False)
    try:
        assert json.loads(fetch(server, "/figures")) == {"windows": []}
        assert code_of(server, "/metrics")[0] == 404
    finally:
        server.close()


def test_what_a_worker_says_of_an_outage_that_it_outlives_asks_for_no_restart() -> None:
    class Away(MemoryLog):
        """Its commands cannot be read at first."""

        failures = 2

        async def read(
            self, topic: Topic, partition: int, offset: int, *, size_max: int = 1 << 20
        ) -> Sequence[Record]:
            if topic is Topic.COMMANDS and self.failures:
                self.failures -= 1
                raise LogUnavailable(self.url, "its broker does not answer")
            return await super().read(topic, partition, offset, size_max=size_max)

    async def play_it() -> list[str]:
        log = Away("memory://outage")
        await log.open(create=True)
        said: list[WorkerEvent] = []
        worker = Worker(app, log, on_event=said.append)
        serving = asyncio.create_task(worker.run())
        asking = MemoryLog("memory://outage", broker=log.broker)
        await asking.open(create=False)
        async with Client(asking) as client:
            assert await (await client.start("order", 1, run_id="order-1")).result() == 1
        worker.stop()
        await serving
        await asking.close()
        await log.close()
        return [event.text for event in said if event.kind == "warning"]

    (warned,) = asyncio.run(play_it())
    assert warned == (
        "commands cannot be read; it is tried again: the log memory://outage is not available: "
        "its broker does not answer (R303) (R016)"
    )


# ---- traces


def test_spans_arrive_as_otlp_with_one_trace_a_run(otlp: Collector) -> None:
    figures = counted()

    async def send() -> SpanSender:
        sender = SpanSender(version="1", namespace="refunds")
        await sender.send(figures.spans)
        await sender.send(figures.spans)  # a restart sends some again: the same spans
        await sender.close()
        return sender

    assert wanted()
    sender = asyncio.run(send())
    assert (sender.sent, sender.dropped) == (2 * len(figures.spans), 0)
    assert otlp.ids() == {(span.id.trace, span.id.span) for span in figures.spans}
    assert otlp.resource["service.name"] == "refold"
    assert otlp.resource["refold.namespace"] == "refunds"
    traces: dict[str, set[str]] = {}
    for span in otlp.spans:
        run_ids = {a.value.string_value for a in span.attributes if a.key == "refold.run_id"}
        traces.setdefault(span.trace_id.hex(), set()).update(run_ids)
        assert span.end_time_unix_nano >= span.start_time_unix_nano > 10**18
    assert all(len(run_ids) == 1 for run_ids in traces.values())
    doubts = [
        s for s in otlp.spans
        if any(a.key == "refold.outcome" and a.value.string_value == "in_doubt"
               for a in s.attributes)
    ]  # fmt: skip
    linked = {link.span_id for span in otlp.spans for link in span.links}
    assert {s.span_id for s in doubts} & linked, "no attempt in doubt is linked to what followed"


@pytest.mark.parametrize("status", [400, 503])
def test_a_collector_that_refuses_costs_spans_and_nothing_else(
    otlp: Collector, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setattr("refold.telemetry.tracing.SEND_S", 3.0)
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    otlp.refuse = status
    figures = counted()

    async def send() -> SpanSender:
        sender = SpanSender(version="1")
        await sender.send(figures.spans)
        await sender.close()
        return sender

    sender = asyncio.run(send())
    assert (sender.sent, sender.dropped) == (0, len(figures.spans))


def test_what_the_variables_cannot_mean_is_refused(
    otlp: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(TracesRefused, match="OTEL_EXPORTER_OTLP_PROTOCOL"):
        SpanSender(version="1")


@pytest.mark.parametrize(
    ("name", "value"),
    [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")],
)
def test_traces_are_off_where_the_environment_says_so(
    otlp: Collector, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert wanted()
    monkeypatch.setenv(name, value)
    assert not wanted()


def test_a_run_is_sampled_whole_or_not_at_all(
    otlp: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    figures = counted()

    async def send() -> None:
        sender = SpanSender(version="1")
        await sender.send(figures.spans)
        await sender.close()

    asyncio.run(send())
    sampled = {trace for trace, _ in otlp.ids()}
    assert otlp.ids() == {(s.id.trace, s.id.span) for s in figures.spans if s.id.trace in sampled}
    assert 0 < len(sampled) < len({s.id.trace for s in figures.spans})


# ---- log lines


def test_lines_have_fields_and_no_secrets() -> None:
    out = io.StringIO()
    secrets = {"REFOLD_KAFKA_PASSWORD": "correct-horse", "REFOLD_REGISTRY_URL": "http://u:pw99@r"}
    line = open_lines("json", stream=out, environment=secrets, service="worker")
    fields = {"run_id": "r1", "slot": "charge#1", "attempt": 2, "partition": 0, "claim": "0a1b2c3d"}
    line("warning", "in_doubt", "charge: postgresql://ann:pw@db said correct-horse", fields)
    line("info", "log", "x", {"api_key": "abc", "note": "pw99", "slot": None})
    logging.getLogger("aiokafka").error("Bearer abcdefghijk for correct-horse")
    first, second, third = map(json.loads, out.getvalue().splitlines())
    assert {name: first[name] for name in fields} == fields
    assert (first["event"], first["level"], first["service"]) == ("in_doubt", "warning", "worker")
    assert "slot" not in second
    assert second["api_key"] == second["note"] == "***"
    assert third["logger"] == "aiokafka"
    for word in ("correct-horse", "pw99", "ann:pw", "abcdefghijk"):
        assert word not in out.getvalue()
    close_lines()


def test_what_a_worker_tells_of_a_step_has_its_slot_attempt_and_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    tell = Observing(None, "127.0.0.1", "json").teller("shop")

    async def play() -> None:
        log = MemoryLog("memory://told")
        await log.open(create=True)
        worker = Worker(app, log, on_event=tell)
        serving = asyncio.create_task(worker.run())
        async with Client(log) as client:
            handle = await client.start("parcel", 5, run_id="p1")
            while (await handle.boundary()).needs != "person":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        worker.stop()
        await serving
        await log.close()

    asyncio.run(play())
    close_lines()
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    [doubt] = [line for line in told if line["event"] == "in_doubt"]
    assert (doubt["run_id"], doubt["slot"], doubt["attempt"]) == ("p1", "ship#1", 1)
    [claimed] = [line for line in told if line["event"] == "claimed"]
    assert doubt["claim"] == claimed["claim"]
    assert doubt["claim"] in claimed["message"]
    assert "pw123" not in out.getvalue()


def test_text_lines_are_one_line_each() -> None:
    out = io.StringIO()
    line = open_lines("text", stream=out, environment={})
    line("info", "claimed", "claim 0a1b2c3d", {"partition": 3, "at_ms": 0})
    assert out.getvalue().count("\n") == 1
    assert "partition=3" in out.getvalue()
    assert "1970-01-01T00:00:00.000" in out.getvalue()
    close_lines()


@pytest.mark.parametrize("kind", ["text", "json"])
def test_what_others_say_commands_no_terminal_in_a_line(kind: str) -> None:
    out, odd = io.StringIO(), "pay \x1b[2J\x9b31m\r\n2026-01-01 completed \u202ecod \ud800"
    line = open_lines(kind, stream=out, environment={})
    line("warning", "in_doubt", odd, {"note": odd})
    close_lines()
    said = out.getvalue()
    assert said.count("\n") == 1
    assert said.strip().isprintable()
    assert kind == "text" or json.loads(said)["message"] == odd


def close_lines() -> None:
    root = logging.getLogger()
    for handler in [one for one in root.handlers if type(one).__name__ == "Handler"]:
        root.removeHandler(handler)


@pytest.mark.parametrize("text", ["kafka://u:p@h:1/x", "see https://tok@host/a and b"])
def test_credentials_in_a_url_are_hidden(text: str) -> None:
    assert re.search(r"//\*\*\*@h", hide(text))


# ---- what is not installed


@pytest.mark.parametrize(
    ("module", "script"),
    [
        ("prometheus_client", "from refold.telemetry.exposition import exposition; exposition([])"),
        ("structlog", "from refold.telemetry.lines import open_lines; open_lines('json')"),
        (
            "opentelemetry",
            "from refold.telemetry.tracing import SpanSender; SpanSender(version='1')",
        ),
        (
            "faust",
            "import asyncio\nfrom refold.live.service import LiveService\n"
            "class Log: url = 'kafka://h/n'\nasyncio.run(LiveService(Log()).run())",
        ),
    ],
)
def test_a_missing_package_is_one_sentence_that_names_the_extra(module: str, script: str) -> None:
    code = (
        f"import sys\nsys.modules[{module!r}] = None\n"
        "from refold_schemas.errors.live import OptionalPartMissing\n"
        "try:\n" + "".join(f"    {line}\n" for line in script.splitlines())
        + "except OptionalPartMissing as error: print(error)\n"
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    extra = "live" if module == "faust" else "telemetry"
    assert f"pip install 'refold[{extra}]'" in done.stdout, done.stderr
    assert done.stdout.rstrip().endswith(f"({OptionalPartMissing.code})")


def test_embedded_figures_fed_by_another_reader_are_those_that_read_themselves() -> None:
    async def both() -> tuple[Any, Any, int]:
        broker = MemoryBroker("embedded", partition_count=1)
        broker.exists = True
        records = history(5, 200)
        fed = EmbeddedFigures(MemoryLog("memory://embedded"), codec=CODEC, clock=lambda: 0)
        for at in range(0, len(records), 7):
            await fed.feed(0, records[max(at - 3, 0) : at + 7])
        fresh = PartitionFigures(CODEC)
        for record in records:
            fresh.apply(record)
        fresh.changes()
        cells = {key: cell.counts for key, cell in fresh.cells.items()}
        found = {key: cell.counts for key, cell in fed.of(0).cells.items()}
        return cells, found, fed.restarts

    cells, found, restarts = asyncio.run(both())
    assert found == cells
    assert restarts == 0
