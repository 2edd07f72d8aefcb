"""Every metric that a service exports: name, kind, labels, who exports it, and what it means.

Names are fixed: dashboards and alerts have them. Documentation is tested against this list.
"""

from typing import NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
WORKER, LIVE, EVERY = "worker", "live", "every service"
PROJECTOR, GATEWAY, RECONCILE = "projector", "gateway", "reconcile"


class Metric(NamedTuple):
    """One metric. A counter's name ends in `_total`; units are seconds, bytes, or what is counted.

    `of` is the service that exports it.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    of: str
    help: str


class Buckets(NamedTuple):
    """The value of a histogram: upper bounds, how many in each bucket (one more), and the sum."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Sample(NamedTuple):
    """One value of a metric, its labels in the metric's order."""

    name: str
    labels: tuple[str, ...]
    value: float | Buckets


_STEP = ("run", "step")
_REQUEST = ("route", "method")

CATALOGUE: tuple[Metric, ...] = (
    Metric("refold_service_info", GAUGE, ("service", "version", "namespace"), EVERY, "Always 1."),
    # ---- the worker: from fields of the engine, read when somebody scrapes
    Metric("refold_worker_partitions", GAUGE, (), WORKER, "Partitions that this process owns."),
    Metric("refold_worker_claims_total", COUNTER, (), WORKER, "Claims that this process made."),
    Metric(
        "refold_worker_claims_ended_total",
        COUNTER,
        ("reason",),
        WORKER,
        "Claims that ended: released, fenced (a newer claim stands in the log), unknown (an append "
        "without a clear answer), cut (the log lost records), failed (a defect).",
    ),
    Metric("refold_worker_appends_total", COUNTER, (), WORKER, "Batches sent to the log."),
    Metric(
        "refold_worker_append_seconds",
        HISTOGRAM,
        (),
        WORKER,
        "From sending a batch to its acknowledgement. Batches that ended as unknown are not in it.",
    ),
    Metric("refold_worker_batch_events", HISTOGRAM, (), WORKER, "Events in an acknowledged batch."),
    Metric("refold_worker_events_total", COUNTER, (), WORKER, "Events decided by this process."),
    Metric(
        "refold_worker_queue_bytes",
        GAUGE,
        ("partition",),
        WORKER,
        "Bytes decided that the log has not acknowledged.",
    ),
    Metric("refold_worker_commands_total", COUNTER, (), WORKER, "Commands taken from the log."),
    Metric(
        "refold_worker_commands_parked",
        GAUGE,
        ("partition",),
        WORKER,
        "Commands that wait for their schema, or behind one that does.",
    ),
    Metric(
        "refold_worker_commands_lag_records",
        GAUGE,
        ("partition",),
        WORKER,
        "Records of ns.commands that are not decided. Left out while the log does not answer.",
    ),
    Metric(
        "refold_worker_outbox",
        GAUGE,
        ("partition",),
        WORKER,
        "Messages that wait to be sent to another partition or to the dead letters.",
    ),
    Metric(
        "refold_worker_runs",
        GAUGE,
        ("partition",),
        WORKER,
        "Runs whose state is in memory, and whose start is acknowledged.",
    ),
    Metric(
        "refold_worker_actors",
        GAUGE,
        ("partition",),
        WORKER,
        "Runs whose code is loaded; the others wait and cost no task.",
    ),
    Metric(
        "refold_worker_calls",
        GAUGE,
        ("partition",),
        WORKER,
        "Step calls under way, also those that outlived their deadline.",
    ),
    Metric(
        "refold_worker_timer_overdue_seconds",
        GAUGE,
        ("partition",),
        WORKER,
        "How late the timer is that has been due for longest; 0 without one.",
    ),
    Metric(
        "refold_worker_loop_stalls_total",
        COUNTER,
        (),
        WORKER,
        "Times that the engine's loop made no progress for a second (R021).",
    ),
    Metric(
        "refold_worker_loop_silent_seconds",
        GAUGE,
        (),
        WORKER,
        "How long ago the engine's loop gave its last sign of life.",
    ),
    # ---- the projector: from its fields, of this process
    Metric(
        "refold_projector_partitions", GAUGE, (), PROJECTOR, "Partitions that this process follows."
    ),
    Metric("refold_projector_records_total", COUNTER, (), PROJECTOR, "Records applied, committed."),
    Metric(
        "refold_projector_rows_total",
        COUNTER,
        ("table",),
        PROJECTOR,
        "Rows put with them, new ones and changed ones.",
    ),
    Metric("refold_projector_batches_total", COUNTER, (), PROJECTOR, "Batches committed."),
    Metric(
        "refold_projector_batch_seconds",
        HISTOGRAM,
        (),
        PROJECTOR,
        "From a batch's first statement to its commit.",
    ),
    Metric(
        "refold_projector_position_offset",
        GAUGE,
        ("partition",),
        PROJECTOR,
        "The next record of a partition of this process that is not in its rows.",
    ),
    Metric(
        "refold_projector_lag_records",
        GAUGE,
        ("partition",),
        PROJECTOR,
        "Records of a partition of this process that are not in its rows.",
    ),
    Metric(
        "refold_projector_commits_refused_total",
        COUNTER,
        (),
        PROJECTOR,
        "Batches that were not written because another projector had written. Nothing is lost.",
    ),
    Metric(
        "refold_projector_outages_total",
        COUNTER,
        ("service",),
        PROJECTOR,
        "Times that database, log or registry came to be away.",
    ),
    Metric(
        "refold_projector_away",
        GAUGE,
        ("service",),
        PROJECTOR,
        "1 while database, log or registry is away and waited for.",
    ),
    Metric(
        "refold_projector_generation",
        GAUGE,
        (),
        PROJECTOR,
        "Rises with each swap of the two sets of tables; 0 before the tables were seen.",
    ),
    Metric(
        "refold_projector_rebuild_records",
        GAUGE,
        (),
        PROJECTOR,
        "Records in the set that is being rebuilt; left out while none is.",
    ),
    Metric(
        "refold_projector_rebuild_lag_records",
        GAUGE,
        (),
        PROJECTOR,
        "Records that the set lacks which is being rebuilt, or whose rebuild was stopped.",
    ),
    # ---- the gateway: from its fields, of this process
    Metric(
        "refold_gateway_requests_total",
        COUNTER,
        (*_REQUEST, "status"),
        GATEWAY,
        "Requests by the route's template and the class of the answer's status: 2xx to 5xx, none "
        "where the reader went before.",
    ),
    Metric(
        "refold_gateway_request_seconds",
        HISTOGRAM,
        _REQUEST,
        GATEWAY,
        "From a request's coming to the beginning of its answer.",
    ),
    Metric(
        "refold_gateway_requests_under_way",
        GAUGE,
        (),
        GATEWAY,
        "Requests that are being answered, streams not among them.",
    ),
    Metric("refold_gateway_streams", GAUGE, (), GATEWAY, "Readers of server-sent events of a run."),
    Metric(
        "refold_gateway_rate_limited_total",
        COUNTER,
        ("limit",),
        GATEWAY,
        "Requests refused as too many: of a caller, or failures of one address to say who it is.",
    ),
    Metric(
        "refold_gateway_unauthenticated_total",
        COUNTER,
        (),
        GATEWAY,
        "Requests refused because nobody is known to send them.",
    ),
    Metric(
        "refold_gateway_role_missing_total",
        COUNTER,
        ("role",),
        GATEWAY,
        "Requests refused for their caller's roles, by the roles that the caller has.",
    ),
    Metric(
        "refold_gateway_commands_total",
        COUNTER,
        ("kind",),
        GATEWAY,
        "Commands sent that the log has acknowledged.",
    ),
    Metric(
        "refold_gateway_connections_in_use",
        GAUGE,
        (),
        GATEWAY,
        "Connections to Postgres with a question under way; left out without a database.",
    ),
    Metric(
        "refold_gateway_connections_max", GAUGE, (), GATEWAY, "So many connections there may be."
    ),
    Metric(
        "refold_gateway_connections_waiting",
        GAUGE,
        (),
        GATEWAY,
        "Questions that wait for a connection.",
    ),
    # ---- reconcile: what the looks of this process came to
    Metric(
        "refold_reconcile_rounds_total",
        COUNTER,
        ("outcome",),
        RECONCILE,
        "Looks of this process: done, failed (the log or its registry was away).",
    ),
    Metric(
        "refold_reconcile_asked_total",
        COUNTER,
        (),
        RECONCILE,
        "Effects whose far system was asked.",
    ),
    Metric(
        "refold_reconcile_agreed_total",
        COUNTER,
        (),
        RECONCILE,
        "Effects of which nothing was found.",
    ),
    Metric(
        "refold_reconcile_unknown_total",
        COUNTER,
        (),
        RECONCILE,
        "Effects of which the far system said nothing that could be believed; asked again.",
    ),
    Metric(
        "refold_reconcile_refused_total",
        COUNTER,
        (),
        RECONCILE,
        "Findings that were refused, so that they are not on record.",
    ),
    Metric(
        "refold_reconcile_findings_total",
        COUNTER,
        ("kind",),
        RECONCILE,
        "Findings that were new, or changed: missing, unexpected, different, conflict, settleable.",
    ),
    Metric(
        "refold_reconcile_last_done_seconds",
        GAUGE,
        (),
        RECONCILE,
        "How long ago the last look was done; left out before the first.",
    ),
    # ---- live figures: of durable events that count, in the whole namespace
    Metric(
        "refold_runs_total",
        COUNTER,
        ("run", "outcome"),
        LIVE,
        "Runs that were started, completed, failed, cancelled, diverged, blocked, resumed.",
    ),
    Metric(
        "refold_steps_total",
        COUNTER,
        (*_STEP, "outcome"),
        LIVE,
        "Steps that were done, failed (run code was told), retried (an attempt surely did not "
        "act), in_doubt, settled (in doubt before), unrecordable (done, the result is lost).",
    ),
    Metric("refold_attempts_total", COUNTER, _STEP, LIVE, "Attempts with an intent that began."),
    Metric(
        "refold_step_seconds",
        HISTOGRAM,
        _STEP,
        LIVE,
        "From a step's intent, or from the outcome before it where it has none, to its outcome.",
    ),
    Metric(
        "refold_settle_seconds",
        HISTOGRAM,
        _STEP,
        LIVE,
        "From the intent of an attempt in doubt until it was settled.",
    ),
    Metric("refold_run_seconds", HISTOGRAM, ("run",), LIVE, "From a run's start to its end."),
    Metric("refold_model_calls_total", COUNTER, _STEP, LIVE, "Model steps with a result."),
    Metric(
        "refold_model_tokens_total",
        COUNTER,
        (*_STEP, "direction"),
        LIVE,
        "Tokens that model answers say were read (input) and written (output).",
    ),
    Metric(
        "refold_model_price_usd_total",
        COUNTER,
        _STEP,
        LIVE,
        "Price in force of model answers, in US dollars.",
    ),
    Metric("refold_commands_rejected_total", COUNTER, ("run",), LIVE, "Commands rejected."),
    Metric(
        "refold_evidence_conflicts_total",
        COUNTER,
        _STEP,
        LIVE,
        "Times that evidence contradicted what was settled: for a person, each of them.",
    ),
    Metric(
        "refold_records_undecodable_total",
        COUNTER,
        ("run",),
        LIVE,
        "Events that count and whose body nobody can read.",
    ),
    Metric("refold_runs_open", GAUGE, ("run", "status"), LIVE, "Runs that have not ended."),
    Metric(
        "refold_waiting",
        GAUGE,
        ("kind", *_STEP),
        LIVE,
        "Attempts in_doubt, those of them and runs that wait for a person, runs blocked or "
        "diverged.",
    ),
    Metric(
        "refold_waiting_oldest_seconds",
        GAUGE,
        ("kind", *_STEP),
        LIVE,
        "How long the oldest of them has waited.",
    ),
    Metric("refold_live_partitions", GAUGE, (), LIVE, "Partitions that this process counts."),
    Metric(
        "refold_live_lag_records",
        GAUGE,
        ("partition",),
        LIVE,
        "Events of a partition of this process that are not counted.",
    ),
    Metric("refold_live_records_total", COUNTER, (), LIVE, "Records read by this process."),
    Metric("refold_spans_sent_total", COUNTER, (), LIVE, "Spans that the collector took."),
    Metric(
        "refold_spans_dropped_total",
        COUNTER,
        (),
        LIVE,
        "Spans that were not sent: the collector refused them, or did not answer in time.",
    ),
)
BY_NAME = {metric.name: metric for metric in CATALOGUE}
