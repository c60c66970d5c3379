"""A report of `trtkit bench` as one HTML file: tables, distributions, throughput over latency, a timeline."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trtkit.benchmarking.report import ServedResult, TextResult, TimedResult
from trtkit.report.layers import roofline_plots
from trtkit.report.page import page, table
from trtkit.report.plots import SCRIPT, STYLE, Bar, Point, Series, axis_of, plot, timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.benchmarking.records import RequestTimes
    from trtkit.benchmarking.report import Case, Ratio, Report, Result

_MOST_POINTS, _MOST_ROWS = 200, 64
_STATISTICS = ("min", "avg", "p50", "p90", "p95", "p99", "max")
_STYLE = """
.warning { color: #c00; font-weight: 600 } .grid { stroke: #e2e2e2 } rect:hover { opacity: .6 }
.wait { fill: #d0d7de } .first { fill: #bf8700 } .tokens, .call { fill: #0969da } .failed { fill: #cf222e }
"""


def html_report(report: Report) -> str:
    """Return a report as a self-contained page."""
    title = f"bench {report.name}"
    body = [f"<h1>{escape(title)}</h1>", *_about(report), *_curve(report)]
    for case in report.cases:
        body += [f"<h2>{escape(case.name)}</h2>", _figures(case), _ratios(case), _ceilings(case), _gaps(case)]
        body += [*_distributions(case), *roofline_plots(report.ceiling, case.phases)]
        body += [part for result in case.results for part in _timeline(result)]
    return page(title, body, style=STYLE + _STYLE, script=SCRIPT)


def _about(report: Report) -> Iterator[str]:
    """Yield what computes, on what, and whether the bundle was verified."""
    provenance, bundle = report.provenance, report.bundle
    if bundle.is_unverified:
        yield f"<p class='warning'>{escape(bundle.verification)}</p>"
    machine = provenance.machine
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions.items())
    where = f"{machine.processor}, {machine.usable_cores} cores, load {machine.load_average[0]}"
    rows = [("computes", report.computes), ("bundle", bundle.path), ("verification", bundle.verification)]
    rows += [("ceiling", report.ceiling.said), ("CUDA graphs", report.cuda_graphs)]
    rows += [("inputs", report.inputs), ("machine", where), ("command", provenance.command)]
    yield table((), [*rows, ("measured", provenance.measured_at), ("versions", versions)])


def _curve(report: Report) -> Iterator[str]:
    """Yield throughput over latency: a mark for each case."""
    name, rate = report.axes
    by_contender: dict[str, list[Point]] = {}
    for case in report.cases:
        for result in case.results:
            latency, throughput = result.distribution(name), result.metrics.get(rate)
            if latency is None or throughput is None:
                continue
            x, y = latency.p50, throughput.avg
            label = f"{case.name}, {result.computes}: {x:.4g} ms, {y:.4g} {throughput.unit}"
            by_contender.setdefault(_title(result), []).append(Point(x, y, label))
    points = [point for each in by_contender.values() for point in each]
    if points:
        series = [Series(key, sorted(each, key=lambda point: point.x)) for key, each in by_contender.items()]
        x_axis = axis_of([point.x for point in points], f"{name} p50, ms", is_log=True)
        yield f"<h2>Throughput and latency</h2>{plot(series, x_axis, axis_of([p.y for p in points], rate))}"


def _figures(case: Case) -> str:
    rows = []
    for result in case.results:
        steady = "" if result.is_steady else "not steady"
        for name, metric in result.metrics.items():
            statistics = vars(metric)
            values = [f"{statistics[each]:.4g}" if each in statistics else "" for each in _STATISTICS]
            rows.append((result.contender, result.computes, name, metric.unit, *values, steady))
    return table(("contender", "computes", "metric", "unit", *_STATISTICS, ""), rows)


def _ratios(case: Case) -> str:
    rows = [
        (
            each.metric,
            f"{each.numerator} / {each.denominator}",
            f"{each.ratio:.3f}",
            f"{each.low:.3f} to {each.high:.3f}",
        )
        for each in case.ratios
    ]
    return table(("metric", "times of", "ratio", "95 %"), rows) if rows else ""


def _interval(ratio: Ratio) -> str:
    return f"{ratio.low:.3f} to {ratio.high:.3f}"


def _ceilings(case: Case) -> str:
    """Return the figures that have a ceiling, with it."""
    rows = [
        (result.contender, metric, f"{each.ceiling:.4g}", f"{each.reached:.1%}", each.bound)
        for result in case.results
        for metric, each in result.ceilings.items()
    ]
    return table(("contender", "metric", "at best", "reached", "bound by"), rows) if rows else ""


def _gaps(case: Case) -> str:
    """Return the layers that lose the most time to their ceilings."""
    rows = [
        (phase.name, gap.layer, f"{gap.ms:.4g}", f"{gap.floor_ms:.4g}", f"{gap.reached:.1%}", gap.bound)
        for phase in case.phases
        for gap in phase.gaps
    ]
    return table(("largest gaps", "layer", "ms", "at best", "reached", "bound by"), rows) if rows else ""


def _distributions(case: Case) -> Iterator[str]:
    """Yield the share of samples below each value, metric by metric."""
    for metric in case.results[0].samples:
        series = [_cumulated(result, metric) for result in case.results if result.samples.get(metric)]
        values = [point.x for each in series for point in each.points]
        if values:
            axis = axis_of(values, f"{metric}, ms", is_log=True)
            yield f"<h3>Distribution of {escape(metric)}</h3>{plot(series, axis, axis_of([1.0], 'share'))}"


def _cumulated(result: Result, metric: str) -> Series:
    ordered = sorted(result.samples[metric])
    step = max(1, len(ordered) // _MOST_POINTS)
    shown = [*range(0, len(ordered) - 1, step), len(ordered) - 1]
    points = [(ordered[index], (index + 1) / len(ordered)) for index in shown]
    labelled = [Point(x, y, f"{result.computes}: {y:.1%} within {x:.4g} ms") for x, y in points]
    return Series(_title(result), labelled)


def _timeline(result: Result) -> Iterator[str]:
    """Yield when each request waited, was computed and gave tokens; or when each call ran."""
    if isinstance(result, TextResult | ServedResult):
        rows = [(f"#{index}", _request_bars(each)) for index, each in enumerate(result.requests[:_MOST_ROWS])]
    elif isinstance(result, TimedResult):
        calls = list(zip(result.starts_ms, result.samples["latency"], strict=True))[:_MOST_ROWS]
        rows = [("calls", [Bar(start, start + ms, "call", f"{ms:.4g} ms") for start, ms in calls])]
    yield f"<h3>{escape(f'Timeline of {_title(result)}')}</h3>{timeline(rows, 'ms')}"


def _request_bars(request: RequestTimes) -> list[Bar]:
    """Return the wait until it was sent, the time to the first token, and each token after it."""
    due, sent, ended, tokens = request.due_ms, request.sent_ms, request.ended_ms, request.token_ms
    if request.error:
        return [Bar(due, ended, "failed", request.error)]
    first = tokens[0] if tokens else ended
    bars = [Bar(due, sent, "wait", f"not sent for {sent - due:.4g} ms")] if sent > due else []
    bars.append(Bar(sent, first, "first", f"first token after {first - due:.4g} ms"))
    if len(tokens) > 1:
        bars.append(Bar(first, tokens[-1], "tokens", f"{len(tokens)} tokens, {ended - due:.4g} ms in all"))
    return bars


def _title(result: Result) -> str:
    return f"{result.contender}: {result.computes}"
