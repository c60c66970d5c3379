"""A simulation as an HTML page: figures, distributions of latency, load over time, numbers of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.report import charts
from trtkit.report.page import page, section
from trtkit.report.simulation_tables import facts, latencies, tried
from trtkit.report.tables import Lines

if TYPE_CHECKING:
    from markupsafe import Markup

    from trtkit.report.charts import Row
    from trtkit.report.page import PageOrigin, PagePart
    from trtkit.simulation.report import Simulation
    from trtkit.simulation.summary import Summary

_NAMES = {"TTFT": charts.BLUE, "TPOT": charts.ORANGE, "latency": charts.GREEN}


def simulation_page(simulation: Simulation, origin: PageOrigin) -> str:
    """Return a simulation as a self-contained page."""
    result = simulation.result
    parts: list[PagePart] = [facts(result), *section("Latency", latencies(result), _curves(result))]
    parts += [*section("Load over time", _load(result)), *section("GPUs", tried(simulation))]
    return page("simulation", [*parts, Lines("assumptions", simulation.notes)], origin)


def _curves(result: Summary) -> Markup:
    """Draw the share of requests within each time."""
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


def _load(result: Summary) -> Markup:
    rows: list[Row] = [
        {"s": moment.at_s, "requests": value, "state": state, "order": moment.at_s}
        for moment in result.moments
        for state, value in (("running", moment.running), ("waiting", moment.waiting))
    ]
    axes = charts.ChartAxis("s", "seconds"), charts.ChartAxis("requests", "requests, of all GPUs")
    by = charts.colour("state", "", {"running": charts.BLUE, "waiting": charts.RED})
    return charts.figure(charts.lines(rows, axes, by, has_points=False), "Means of intervals, until the last arrival.")
