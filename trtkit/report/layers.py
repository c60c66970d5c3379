"""The part of a bench report that holds a network against the roofline: its layers, measured, and a batch in time."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from trtkit.benchmarking.ceiling_report import MeasuredRates, PublishedRates
from trtkit.report.log_plot import LogPlot
from trtkit.report.plots import COLOURS, Bar, timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.benchmarking.ceiling_report import Ceiling, PhaseLayers

_MOST_BARS = 400
_LEGEND = "Blue: bound by compute; brown: by memory; grey: overhead, next to none of the time is work."
_CLASSES = {"compute": "tokens", "memory": "first"}


def roofline_plots(ceiling: Ceiling, phases: Sequence[PhaseLayers]) -> Iterator[str]:
    """Yield for each phase of a case the roofline with its measured layers, and the layers of a batch in time."""
    for phase in phases:
        total_ms = sum(layer.ms for layer in phase.layers)
        if not isinstance(ceiling, PublishedRates | MeasuredRates) or total_ms <= 0:
            continue
        title = f"{phase.name}: {total_ms:.4g} ms in {len(phase.layers)} layers"
        yield f"<h3>Roofline of a {escape(title)}</h3>"
        yield _roofline(phase, ceiling, total_ms)
        yield f"<h3>Timeline of a batch, layer by layer, {escape(title)}</h3>"
        yield f"<p>{_LEGEND}</p>{timeline([('layers', _bars(phase))], 'ms')}"


def _roofline(phase: PhaseLayers, ceiling: PublishedRates | MeasuredRates, total_ms: float) -> str:
    """Return the roofs, a point for each layer that computes, and a large one for the whole network."""
    rates, bandwidth = ceiling.operations_per_s, ceiling.bandwidth_bytes_per_s
    layers = [layer for layer in phase.layers if layer.flops and layer.bytes]
    points = [_point(layer.layer, layer.flops, layer.bytes, layer.ms) for layer in layers]
    whole = _point("the whole network, fused", phase.flops, phase.bytes, total_ms)
    xs, ys = [x for x, _, _ in (*points, whole)], [y for _, y, _ in (*points, whole)]
    x_range = (min(0.1, *xs) / 2, 2 * max(10 * max(rates.values()) / bandwidth, *xs))
    plot = LogPlot(x_range, (min(bandwidth * x_range[0], *ys) / 2, 2 * max(*rates.values(), *ys)))
    for index, (dtype, rate) in enumerate(rates.items()):
        roof = [(x_range[0], bandwidth * x_range[0]), (rate / bandwidth, rate), (x_range[1], rate)]
        label = f"{dtype}: {rate / 1e9:.4g} x 10^9 operations/s, {bandwidth / 1e9:.4g} GB/s"
        plot.line(roof, COLOURS[index % len(COLOURS)], label)
    for x, y, label in points:
        plot.point((x, y), COLOURS[3], label)
    plot.point(whole[:2], COLOURS[4], whole[2], is_large=True)
    return plot.svg("operations per byte", "operations per second, measured")


def _point(name: str, flops: int, moved: int, ms: float) -> tuple[float, float, str]:
    rate = flops / ms * 1e3
    return flops / moved, rate, f"{name}: {ms:.4g} ms, {rate / 1e9:.4g} x 10^9 operations/s"


def _bars(phase: PhaseLayers) -> list[Bar]:
    """Return a bar for each layer, one after the other."""
    bars, start = [], 0.0
    for layer in phase.layers[:_MOST_BARS]:
        label = f"{layer.layer}: {layer.ms:.4g} ms, at best {layer.floor_ms:.4g} ms, bound by {layer.bound}"
        bars.append(Bar(start, start + layer.ms, _CLASSES.get(layer.bound, "wait"), label))
        start += layer.ms
    return bars
