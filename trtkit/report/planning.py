"""A plan as one HTML page: the rooflines with the model's layers on them, and throughput against latency."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trtkit.planning.report import LlmReport, LlmSpeed
from trtkit.report.log_plot import LogPlot
from trtkit.report.page import page, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.planning.gpus import PlannedGpu
    from trtkit.planning.report import Report, VisionSpeed

_STYLE = """
.grid { stroke: #e4e4e4 } polyline { stroke-width: 1.6 } circle { stroke: #fff } circle:hover { r: 8 }
td, th { text-align: right; padding: .1rem 1rem } td:first-child { text-align: left }
"""
_COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#57606a")
# Layers on their own, by phase; a square stands for the whole network, fused.
_PHASES = {"prefill": "#bc4c00", "decode": "#0969da", "run": "#0969da"}


def plan_page(plan: Report) -> str:
    """Return a plan as a self-contained page."""
    name = plan.name
    parts = [f"<h1>{escape(name)}: what GPUs can do at best</h1>"]
    for gpu in plan.gpus:
        parts += [f"<h2>{escape(gpu.gpu.name)}</h2>", *_rooflines(plan, gpu.gpu)]
    parts += ["<h2>Operations per byte</h2>", _layers(plan)]
    parts += ["<h2>Throughput against latency</h2>", *_curves(plan)]
    parts += ["<h2>Assumed</h2><ul>", *(f"<li>{escape(line)}</li>" for line in plan.assumptions), "</ul>"]
    parts += ["<h2>Figures of GPUs</h2><ul>", *(f"<li>{_sources(gpu.gpu)}</li>" for gpu in plan.gpus), "</ul>"]
    return page(f"plan {name}", parts, style=_STYLE)


def _rooflines(plan: Report, gpu: PlannedGpu) -> Iterator[str]:
    """Yield the roofs of one GPU with a point for each kind of layer, at the height that its intensity allows."""
    types = sorted({dtype for step in plan.step.values() for dtype in step.products})
    rates = {dtype: rate for dtype in types if (rate := gpu.rate(dtype)) is not None}
    if not rates:
        yield f"<p>No rate of {escape(', '.join(types))} is known: there is no roof to draw.</p>"
        return
    bandwidth, highest = gpu.bandwidth_bytes_per_s, max(rates.values())
    points = list(_points(plan, rates, highest))
    lowest = min([x for x, *_ in points] or [1.0])
    widest = max([10 * highest / bandwidth, *(2 * x for x, *_ in points)])
    plot = LogPlot((min(0.1, lowest), widest), (bandwidth * min(0.1, lowest), 2 * highest))
    for index, (dtype, rate) in enumerate(rates.items()):
        ridge = rate / bandwidth
        roof = [(plot.x_range[0], bandwidth * plot.x_range[0]), (ridge, rate), (plot.x_range[1], rate)]
        label = f"{dtype}: {rate / 1e12:.0f} x 10^12 operations a second, ridge {ridge:.0f} a byte"
        plot.line(roof, _COLOURS[index % len(_COLOURS)], label)
    for x, rate, colour, label, is_whole in points:
        plot.point((x, min(rate, bandwidth * x)), colour, label, is_large=is_whole)
    yield plot.svg("operations per byte", "operations per second")
    keys = ", ".join(f"<b style='color:{_PHASES[phase]}'>{phase}</b>" for phase in plan.step)
    yield f"<p>{keys}: each kind of layer on its own; the large points are the whole network, fused.</p>"


def _points(plan: Report, rates: dict[str, float], highest: float) -> Iterator[tuple[float, float, str, str, bool]]:
    """Yield intensity, roof, colour and text of each kind of layer that computes, then of the whole network."""
    for phase, step in plan.step.items():
        for row in plan.layers:
            x = row.phases[phase].flops_per_byte
            if x > 0:
                rate = min((rates[d] for d in row.phases[phase].products if d in rates), default=highest)
                yield x, rate, _PHASES[phase], f"{phase}: {row.group}, {x:.1f} operations a byte", False
        x = step.flops / step.fused_bytes
        yield x, highest, _PHASES[phase], f"{phase}: the whole network, fused, {x:.1f} operations a byte", True


def _layers(plan: Report) -> str:
    """Return the intensity of each kind of layer as a table."""
    rows = [(row.group, *(f"{row.phases[phase].flops_per_byte:.1f}" for phase in plan.step)) for row in plan.layers]
    return table(("layers", *plan.step), rows)


def _curves(plan: Report) -> Iterator[str]:
    """Yield throughput over the time of a step, a line for each GPU with a point for each batch."""
    lines = {gpu.gpu.key: [_on_curve(row) for row in gpu.curve] for gpu in plan.gpus}
    lines = {name: line for name, line in lines.items() if line}
    if not lines:
        yield "<p>No batch fits, or counts are known at one batch only.</p>"
        return
    xs = [x for line in lines.values() for x, *_ in line]
    ys = [y for line in lines.values() for _, y, _ in line]
    plot = LogPlot((0.7 * min(xs), 1.4 * max(xs)), (0.7 * min(ys), 1.4 * max(ys)))
    for index, (name, line) in enumerate(lines.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        plot.line([(x, y) for x, y, _ in line], colour, name)
        for x, y, batch in line:
            plot.point((x, y), colour, f"{name}, batch {batch}: {x:.3g} ms, {y:.0f} a second")
    yield plot.svg("time per output token, ms" if isinstance(plan, LlmReport) else "latency, ms", "a second")


def _on_curve(row: LlmSpeed | VisionSpeed) -> tuple[float, float, int]:
    if isinstance(row, LlmSpeed):
        return 1e3 * row.tpot.seconds, row.output_tokens_per_second, row.batch
    return 1e3 * row.latency.seconds, row.images_per_second, row.batch


def _sources(gpu: PlannedGpu) -> str:
    links = ", ".join(f"<a href='{escape(url)}'>{escape(url.split('/')[2])}</a>" for url in gpu.sources)
    note = f" ({escape(gpu.note)})" if gpu.note else ""
    return f"{escape(gpu.name)}{note}: {links}, read {escape(gpu.read)}"
