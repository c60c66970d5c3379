"""A report of `trtkit bench` as one HTML page: loads, distributions, ratios, and layers on the roofline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.benchmarking.ceiling_report import MeasuredRates, PublishedRates
from trtkit.benchmarking.report import ServedResult, TextResult, TimedResult
from trtkit.report import charts
from trtkit.report.benchmark_tables import ceiling_tables, notes, overview
from trtkit.report.page import PageOrigin, page, section
from trtkit.report.tables import (
    Column,
    NumberCell,
    Table,
    milliseconds,
    named,
    number,
    numbers,
    percent,
    quantity,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from markupsafe import Markup

    from trtkit.benchmarking.ceiling_report import Ceiling, PhaseLayers
    from trtkit.benchmarking.metrics import RequestTimes
    from trtkit.benchmarking.report import Case, Report, Result
    from trtkit.benchmarking.statistics import Metric
    from trtkit.report.charts import Row
    from trtkit.report.page import PagePart
    from trtkit.report.tables import Value


_MOST_POINTS, _MOST_ROWS = 200, 64
_STATISTICS = ("min", "avg", "p50", "p90", "p95", "p99", "max")
_STAGES = {
    "waiting to be sent": charts.GREY,
    "until the first token": charts.ORANGE,
    "until the answer": charts.ORANGE,
    "tokens": charts.BLUE,
    "call": charts.BLUE,
    "failed": charts.RED,
}


def html_report(report: Report) -> str:
    """Return a report as a self-contained page."""
    title = f"bench {report.name}"
    parts: list[PagePart] = [overview(report), *notes(report), *_loads(report)]
    for case in report.cases:
        figures = [_figures(case), *_ratios(case), *ceiling_tables(case), *_distributions(case)]
        plots = roofline_plots(report.ceiling, case.phases)
        timelines = [part for result in case.results for part in _timeline(result)]
        parts += section(case.name, *figures, *plots, *timelines)
    provenance, bundle = report.provenance, report.bundle
    versions = ", ".join(f"{name} {version}" for name, version in provenance.versions.items())
    origin = PageOrigin(
        provenance.command, f"{bundle.path}, build key {bundle.build_key}", provenance.measured_at, versions
    )
    return page(title, parts, origin)


def _loads(report: Report) -> Iterator[PagePart]:
    """Yield throughput over latency for every case and contender, as a chart and as a table."""
    name, rate = report.axes
    points: list[Row] = []
    rows: list[tuple[Value, ...]] = []
    for case in report.cases:
        for result in case.results:
            latency, throughput = result.distribution(name), result.metrics.get(rate)
            if latency is None or throughput is None:
                continue
            cells = milliseconds(latency.p50), milliseconds(latency.p99), _with_unit(throughput.avg, throughput)
            rows.append((case.name, _title(result), *cells))
            texts = {"Load": case.name, "Contender": _title(result), "Latency, p50": cells[0].text}
            point: Row = {"x": latency.p50, "y": throughput.avg, "order": latency.p50, "contender": _title(result)}
            points.append({**point, **texts, "Throughput": cells[2].text})
    if points:
        unit = next(_unit(result.metrics[rate]) for case in report.cases for result in case.results
                    if rate in result.metrics)  # fmt: skip
        axes = (
            charts.ChartAxis("x", f"{_words(name)} p50, ms", is_log=True),
            charts.ChartAxis("y", f"{_words(rate)}, {unit}"),
        )
        drawn = charts.with_legend(charts.lines(points, axes, charts.colour("contender", "contender")), "contender")
        columns = (*named("load", "contender"), *numbers(f"{_words(name)} p50", "p99", _words(rate)))
        yield from section("Throughput and latency", charts.figure(drawn), Table("", columns, rows))


def _figures(case: Case) -> Table:
    rows: list[tuple[Value, ...]] = []
    for result in case.results:
        steady = "" if result.is_steady else "not steady"
        for name, metric in result.metrics.items():
            values = [_with_unit(getattr(metric, statistic), metric) if hasattr(metric, statistic) else None
                      for statistic in _STATISTICS]  # fmt: skip
            rows.append((_words(name), _title(result), *values, steady))
    return Table("", (*named("metric", "contender"), *numbers(*_STATISTICS), Column("")), rows)


def _with_unit(value: float, metric: Metric) -> NumberCell:
    if metric.unit == "ms":
        return milliseconds(value)
    return NumberCell(value, f"{number(value).text} {_unit(metric)}")


def _unit(metric: Metric) -> str:
    return metric.unit.replace("sec", "s")


def _ratios(case: Case) -> Iterator[PagePart]:
    """Yield how much longer the first contender takes than each of the others, with 95 % confidence intervals."""
    rows: list[Row] = [
        {
            "row": f"{_words(ratio.metric)}: {ratio.numerator} / {ratio.denominator}",
            "value": ratio.ratio,
            "low": ratio.low,
            "high": ratio.high,
            "Ratio": f"{ratio.ratio:.3f}",
            "95 % interval": f"{ratio.low:.3f} to {ratio.high:.3f}",
        }
        for ratio in case.ratios
    ]
    if rows:
        drawn = charts.intervals(rows, "ratio of times, with its 95 % interval; above 1 is slower")
        cells = [(str(row["row"]), str(row["Ratio"]), str(row["95 % interval"])) for row in rows]
        shown = Table("", named("times of", "ratio", "95 % interval"), cells)
        yield from section("Ratios", charts.figure(drawn, height=34 * len(rows) + 10), shown)


def _distributions(case: Case) -> Iterator[PagePart]:
    """Yield the share of samples below each value, by metric."""
    for metric in case.results[0].samples:
        rows = [row for result in case.results for row in _cumulated(result, metric)]
        if rows:
            milliseconds = charts.ChartAxis("ms", f"{_words(metric)}, ms", is_log=True)
            axes = milliseconds, charts.ChartAxis("share", "share of samples", ticks=".0%")
            drawn = charts.lines(rows, axes, charts.colour("contender", "contender"), has_points=False)
            shown = charts.figure(charts.with_legend(drawn, "contender"))
            yield from section(f"Distribution of {_words(metric)}", shown)


def _cumulated(result: Result, metric: str) -> list[Row]:
    ordered = sorted(result.samples.get(metric, ()))
    if not ordered:
        return []
    step = max(1, len(ordered) // _MOST_POINTS)
    shown = [*range(0, len(ordered) - 1, step), len(ordered) - 1]
    return [
        {
            "ms": ordered[index],
            "share": (index + 1) / len(ordered),
            "order": float(index),
            "contender": _title(result),
            "Contender": _title(result),
            "Samples": f"{percent((index + 1) / len(ordered)).text} within {milliseconds(ordered[index]).text}",
        }
        for index in shown
    ]


def _timeline(result: Result) -> Iterator[PagePart]:
    """Yield when each request waited, was computed and produced tokens, or when each call ran."""
    rows: list[Row] = []
    if isinstance(result, TextResult | ServedResult):
        rows = [
            bar for index, request in enumerate(result.requests[:_MOST_ROWS]) for bar in _request(f"#{index}", request)
        ]
    elif isinstance(result, TimedResult):
        calls = list(zip(result.starts_ms, result.samples["latency"], strict=True))[:_MOST_ROWS]
        rows = [_bar("calls", "call", start, start + ms, milliseconds(ms).text) for start, ms in calls]
    if rows:
        count = len({row["row"] for row in rows})
        stages = {name: hue for name, hue in _STAGES.items() if name in {row["stage"] for row in rows}}
        drawn = charts.bars(rows, "time, ms", charts.colour("stage", "stage", stages))
        shown = charts.figure(drawn, height=max(40, 16 * count))
        yield from section(f"Timeline of {_title(result)}", shown)


def _request(name: str, request: RequestTimes) -> list[Row]:
    """Return the wait until it was sent, the time to the first token, and each later token."""
    due, sent, ended, tokens = request.due_ms, request.sent_ms, request.ended_ms, request.token_ms
    if request.error:
        return [_bar(name, "failed", due, ended, request.error)]
    first = tokens[0] if tokens else ended
    shown = [_bar(name, "waiting to be sent", due, sent, milliseconds(sent - due).text)] if sent > due else []
    stage = "until the first token" if tokens else "until the answer"
    shown.append(_bar(name, stage, sent, first, f"{milliseconds(first - due).text} since due"))
    if len(tokens) > 1:
        text = f"{len(tokens)} tokens, {milliseconds(ended - due).text} in all"
        shown.append(_bar(name, "tokens", first, tokens[-1], text))
    return shown


def _bar(row: str, stage: str, start: float, end: float, text: str) -> Row:
    return {"row": row, "stage": stage, "start": start, "end": end, "Request": row, "Stage": stage, "Time": text}


def _words(metric: str) -> str:
    return metric.replace("_", " ")


def _title(result: Result) -> str:
    return f"{result.contender}: {result.computes}"


_MOST_BARS = 400
_BOUNDS = {"compute": charts.BLUE, "memory": charts.ORANGE, "overhead": charts.GREY}
_NETWORK = "whole network, fused"


def roofline_plots(ceiling: Ceiling, phases: Sequence[PhaseLayers]) -> Iterator[PagePart]:
    """Yield, for each phase of a case, the roofline with its measured layers, and the layers in a timeline."""
    for phase in phases:
        total_ms = sum(layer.ms for layer in phase.layers)
        if not isinstance(ceiling, PublishedRates | MeasuredRates) or total_ms <= 0:
            continue
        title = f"{phase.name}: {milliseconds(total_ms).text} in {len(phase.layers)} layers"
        yield from section(f"Roofline of a {title}", _roofline(phase, ceiling, total_ms))
        timeline = f"Timeline of a batch, layer by layer, {title}"
        yield from section(timeline, _layers_timeline(phase), _table(phase))


def _roofline(phase: PhaseLayers, ceiling: PublishedRates | MeasuredRates, total_ms: float) -> Markup:
    """Return the roofs, a point for each computing layer, and a large one for the whole network."""
    points = [
        _point(layer.layer, layer.bound, layer.flops, layer.bytes, layer.ms)
        for layer in phase.layers
        if layer.flops and layer.bytes
    ]
    points.append({**_point(_NETWORK, _NETWORK, phase.flops, phase.bytes, total_ms), "size": 220.0})
    by = charts.colour("bound", "measured layers, bound by", {**_BOUNDS, _NETWORK: charts.GREEN})
    return charts.roofline(ceiling.operations_per_s, ceiling.bandwidth_bytes_per_s, points, by)


def _point(name: str, bound: str, flops: int, moved_bytes: int, ms: float) -> Row:
    rate = flops / ms * 1e3
    return {
        "intensity": flops / moved_bytes,
        "rate": rate,
        "bound": bound,
        "size": 45.0,
        "Layer": name,
        "Time": milliseconds(ms).text,
        "Rate": quantity(rate, "OP/s").text,
        "Operations per byte": f"{flops / moved_bytes:.3g}",
    }


def _layers_timeline(phase: PhaseLayers) -> Markup:
    """Return a bar for each layer, in sequence."""
    rows: list[Row] = []
    start = 0.0
    for layer in phase.layers[:_MOST_BARS]:
        times = {"Time": milliseconds(layer.ms).text, "At best": milliseconds(layer.floor_ms).text}
        bar: Row = {"row": "layers", "start": start, "end": start + layer.ms, "bound": layer.bound}
        rows.append({**bar, "Layer": layer.layer, **times, "Bound by": layer.bound})
        start += layer.ms
    return charts.figure(charts.bars(rows, "time, ms", charts.colour("bound", "bound by", _BOUNDS)), height=40)


def _table(phase: PhaseLayers) -> Table:
    rows = [
        (
            layer.layer,
            milliseconds(layer.ms),
            milliseconds(layer.floor_ms),
            percent(layer.floor_ms / layer.ms) if layer.ms else None,
            layer.bound,
            quantity(layer.flops, "OP"),
            size(layer.bytes),
        )
        for layer in phase.layers
    ]
    times, work = numbers("time", "at best", "reached"), numbers("operations", "bytes moved")
    return Table("", (Column("layer"), *times, Column("bound by"), *work), rows)
