"""A simulation as one HTML page: figures, distributions of latency, load over time, numbers of GPUs."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trtkit.report import charts
from trtkit.report.cells import milliseconds, number
from trtkit.report.page import facts, page, section, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.report.cells import Value
    from trtkit.report.charts import Row
    from trtkit.report.page import PageOrigin
    from trtkit.simulation.report import Simulation
    from trtkit.simulation.summary import Summary

_NAMES = {"TTFT": charts.BLUE, "TPOT": charts.ORANGE, "latency": charts.GREEN}


def simulation_page(simulation: Simulation, origin: PageOrigin) -> str:
    """Return a simulation as a self-contained page."""
    result = simulation.result
    parts = ["<h1>simulation</h1>", facts(_figures(result))]
    parts += section("Latency", _latencies(result), _curves(result))
    parts += section("Load over time", _load(result))
    parts += section("GPUs", *_tried(simulation))
    parts += ["<h2>Assumptions</h2><ul>", *(f"<li>{escape(line)}</li>" for line in simulation.notes), "</ul>"]
    return page("simulation", parts, origin)


def _figures(result: Summary) -> dict[str, Value]:
    rows: dict[str, Value] = {
        "requests": f"{result.requests:,} in {result.duration_s:,.1f} s, {result.dropped} not served",
        "requests/s": number(result.requests_per_second),
        "output tokens/s": number(result.output_tokens_per_second),
        "GPUs": result.gpus,
        "computing": f"{result.utilization:.1%} of the time",
        "at once": f"{result.running:.1f} of a computing GPU on average, at most {result.most_running}",
        "preemptions": result.preemptions,
        "unused of reserved cache memory": f"{result.waste:.1%}",
        "of it for prompts that are not computed yet": f"{result.unread:.1%}",
        "prompt tokens cached already": f"{result.shared:.1%}, {result.restored:.1%} in host memory",
    }
    if result.goodput is not None:
        rows["goodput"] = f"{result.goodput.share:.1%}, {result.goodput.requests_per_second:.4g} requests/s"
    if result.cost_per_month is not None:
        rows["cost a month"] = number(result.cost_per_month)
    return rows


def _latencies(result: Summary) -> str:
    rows: list[tuple[Value, ...]] = [
        (
            name,
            *map(milliseconds, (distribution.mean_ms, distribution.p50_ms, distribution.p90_ms, distribution.p99_ms)),
        )
        for name, distribution in (("TTFT", result.ttft), ("TPOT", result.tpot), ("latency", result.latency))
        if distribution.curve
    ]
    return table(("", "mean", "p50", "p90", "p99"), rows)


def _curves(result: Summary) -> str:
    """Draw which share of the requests is within each time."""
    rows: list[Row] = [
        {"ms": max(value, 1e-3), "share": index / (len(distribution.curve) - 1), "metric": name, "order": float(index)}
        for name, distribution in (("TTFT", result.ttft), ("TPOT", result.tpot), ("latency", result.latency))
        for index, value in enumerate(distribution.curve)
    ]
    axes = (
        charts.ChartAxis("ms", "milliseconds", True, "~s"),
        charts.ChartAxis("share", "share of requests", ticks=".0%"),
    )
    by = charts.colour("metric", "", _NAMES)
    return charts.figure(charts.lines(rows, axes, by, has_points=False), "Share of the requests within each time.")


def _load(result: Summary) -> str:
    rows: list[Row] = [
        {"s": moment.at_s, "requests": value, "state": state, "order": moment.at_s}
        for moment in result.moments
        for state, value in (("running", moment.running), ("waiting", moment.waiting))
    ]
    axes = charts.ChartAxis("s", "seconds"), charts.ChartAxis("requests", "requests, of all GPUs")
    by = charts.colour("state", "", {"running": charts.BLUE, "waiting": charts.RED})
    return charts.figure(charts.lines(rows, axes, by, has_points=False), "Means of intervals, until the last arrival.")


def _tried(simulation: Simulation) -> Iterator[str]:
    """Yield the numbers of GPUs that were simulated."""
    rows = [
        (
            attempt.gpus,
            f"{attempt.goodput.share:.1%}",
            milliseconds(attempt.ttft.p99_ms),
            milliseconds(attempt.tpot.p99_ms),
            f"{attempt.utilization:.0%}",
            attempt.cost_per_month,
        )
        for attempt in simulation.tried
        if attempt.goodput is not None
    ]
    if rows:
        yield table(("GPUs", "goodput", "TTFT p99", "TPOT p99", "computing", "cost a month"), rows)
