"""`refold bench`: measures, compares with budgets and peers, and prints a table."""

import json
import statistics
import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from refold_tools.bench import rows, tables
from refold_tools.bench.appends import appends
from refold_tools.bench.budgets import ALONE, against_restate, verdict
from refold_tools.bench.counting import live
from refold_tools.bench.machine import canary, describe_machine
from refold_tools.bench.stores import Store, open_store

Measure = Callable[[Store], rows.Figures]
ROWS: dict[str, Measure] = {
    "latency": lambda store: rows.latency(store, rows.DURABLE),
    "latency_flowing": lambda store: rows.latency(store, rows.FLOWING),
    "throughput": lambda store: rows.throughput(store, rows.DURABLE),
    "throughput_flowing": lambda store: rows.throughput(store, rows.FLOWING),
    "resume": rows.resume,
    "takeover": rows.takeover,
    "timers": rows.timers,
    "flatness": rows.flatness,
    "idle": rows.idle,
    "fold": rows.fold_speed,
    "start_up": rows.start_up,
    "projector": tables.projector_speed,
    "freshness": tables.freshness,
    "rebuild": tables.rebuild_speed,
    "queries": tables.queries,
}
ON_KAFKA: dict[str, Measure] = {
    "append": appends,
    "processes": rows.processes,
    "live": live,
}
QUICK = ("latency", "latency_flowing", "throughput", "resume", "fold", "start_up")


class Kind(StrEnum):
    """What a log is kept in."""

    SQLITE = "sqlite"
    KAFKA = "kafka"


def bench(
    on: Annotated[
        Kind | None,
        typer.Option(
            "--on",
            help="What the log is kept in. Default: sqlite. kafka: a broker is started for it.",
            show_default=False,
        ),
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            "--log",
            metavar="URL",
            help="Measure on these brokers: kafka://HOST:PORT/PREFIX. The namespaces that are "
            "made there begin with PREFIX, and stay.",
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", metavar="ROWS", help="Rows, with commas: " + ", ".join([*ROWS, *ON_KAFKA])
        ),
    ] = None,
    vs: Annotated[
        str | None,
        typer.Option("--vs", metavar="PEERS", help="restate, dbos, langgraph, temporal; commas."),
    ] = None,
    reps: Annotated[int, typer.Option("--reps", min=1, help="Repetitions; medians are shown.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="The short rows only.")] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print the answer as JSON, on the last line of stdout.")
    ] = False,
) -> None:
    """Measure refold on this machine, against its budgets and, with --vs, against its peers.

    Figures count as ratios to a peer measured in the same run: machines differ and drift.
    """
    if log is not None and not log.startswith("kafka://"):
        raise typer.BadParameter("--log names brokers, as in kafka://HOST:PORT/PREFIX")
    if log is not None and on is Kind.SQLITE:
        raise typer.BadParameter("--log names brokers and --on sqlite none: give one of the two")
    wanted = [name.strip() for name in only.split(",")] if only else []
    machine = describe_machine()
    answer: dict[str, Any] = {"machine": machine}
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as made:
        folder = Path(made)
        answer["canary"] = canary(folder)
        _say(
            f"{machine['processors']} processors, {machine['memory_gib']} GiB, {machine['system']},"
        )
        _say(f"Python {machine['python']}, load {machine['load']}; {answer['canary']}")
        kind = Kind.KAFKA if log is not None else on or Kind.SQLITE
        if vs is not None:
            named = [peer.strip() for peer in vs.split(",")]
            _say(f"refold on {kind}; each engine's server is started for each measurement\n")
            answer["on"] = kind
            answer["peers"] = _against(named, wanted, reps, kind, log)
        else:
            with open_store(kind, log, folder) as store:
                answer["durability"] = store.durability
                _say(f"durability: {store.durability}\n")
                answer["rows"] = _alone(store, wanted, reps, quick=quick)
    if json_:
        print(json.dumps(answer))  # noqa: T201


def _alone(store: Store, wanted: list[str], reps: int, *, quick: bool) -> dict[str, rows.Figures]:
    there = {**ROWS, **ON_KAFKA} if store.kind == Kind.KAFKA else ROWS
    unknown = [name for name in wanted if name not in there]
    if unknown:
        raise typer.BadParameter(
            f"no row {', '.join(unknown)} on {store.kind}; there are {', '.join(there)}"
        )
    budgets = {(b.row, b.figure): b for b in ALONE}
    found: dict[str, rows.Figures] = {}
    for name in wanted or (QUICK if quick else there):
        runs = [there[name](store) for _ in range(reps)]
        figures = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        found[name] = figures
        for key, value in figures.items():
            budget = budgets.get((name, key))
            told = "" if budget is None else verdict(budget, value)
            limit = "" if budget is None else f"goal {budget.goal:g}, bar {budget.bar:g}"
            _say(f"{name:18} {key:22} {value:>12,.3f}   {told:7} {limit}")
    return found


def _against(
    peers: list[str], wanted: list[str], reps: int, kind: Kind, log: str | None
) -> list[dict[str, Any]]:
    """Every test of every peer and of refold, interleaved, so that the machine's drift hits all.

    `wanted` are the tests; all of them if there are none.
    """
    from refold_tools.bench.peers import TESTS, measure

    unknown = [name for name in wanted if name not in TESTS]
    if unknown:
        shared = ", ".join(TESTS)
        raise typer.BadParameter(f"no peer measures {', '.join(unknown)}; they measure {shared}")
    results: list[dict[str, Any]] = []
    for rep in range(reps):
        for test in wanted or TESTS:
            for peer in ("refold", "refold-flowing", *peers):
                if peer == "refold-flowing" and test not in ("latency", "throughput"):
                    continue
                if peer == "langgraph" and test in ("takeover", "timers"):
                    continue  # it has no durable timer
                result = {**measure(peer, test, kind, log), "peer": peer, "test": test, "rep": rep}
                results.append(result)
                _say(f"{test:11} {peer:15} " + _short(result))
    _ratios(results, peers, kind)
    return results


def _short(result: dict[str, Any]) -> str:
    if "error" in result:
        return f"failed: {result['error']}"
    shown = (
        "step_p50_ms",
        "step_p99_ms",
        "steps_per_s",
        "bytes_per_step",
        "ready_to_done_ms",
        "ready_to_all_ms",
        "late_p50_ms",
        "late_p99_ms",
        "worker_rss_mb",
        "server_rss_mb",
    )
    return "  ".join(f"{k} {result[k]:,.3g}" for k in shown if result.get(k) is not None)


def _ratios(results: list[dict[str, Any]], peers: list[str], kind: Kind) -> None:
    def median(peer: str, test: str, figure: str) -> float | None:
        values = [
            r[figure]
            for r in results
            if r["peer"] == peer and r["test"] == test and r.get(figure) is not None
        ]
        return statistics.median(values) if values else None

    _say("")
    for row, test, figure, who in (
        ("latency", "latency", "step_p50_ms", "refold"),
        ("latency_flowing", "latency", "step_p50_ms", "refold-flowing"),
        ("throughput", "throughput", "steps_per_s", "refold"),
        ("throughput_flowing", "throughput", "steps_per_s", "refold-flowing"),
        ("resume", "resume", "ready_to_done_ms", "refold"),
        ("takeover", "takeover", "ready_to_all_ms", "refold"),
        ("timers", "timers", "late_p50_ms", "refold"),
    ):
        ours = median(who, test, figure)
        for peer in peers:
            theirs = median(peer, test, figure)
            if not ours or not theirs:
                continue
            budget = next((b for b in against_restate(kind) if b.row == row), None)
            told = verdict(budget, ours / theirs) if budget and peer == "restate" else ""
            _say(f"{row:18} {figure:18} refold / {peer:10} {ours / theirs:8.3f}  {told}")


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201
