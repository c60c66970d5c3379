"""The part of a bench report that holds a network against the roofline: its layers, measured, and a batch in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.benchmarking.ceiling_report import MeasuredRates, PublishedRates
from trtkit.report import charts
from trtkit.report.cells import milliseconds, percent, quantity, size
from trtkit.report.page import section, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.benchmarking.ceiling_report import Ceiling, PhaseLayers
    from trtkit.report.charts import Row

_MOST_BARS = 400
_BOUNDS = {"compute": charts.BLUE, "memory": charts.ORANGE, "overhead": charts.GREY}
_NETWORK = "whole network, fused"


def roofline_plots(ceiling: Ceiling, phases: Sequence[PhaseLayers]) -> Iterator[str]:
    """Yield for each phase of a case the roofline with its measured layers, and the layers of a batch in time."""
    for phase in phases:
        total_ms = sum(layer.ms for layer in phase.layers)
        if not isinstance(ceiling, PublishedRates | MeasuredRates) or total_ms <= 0:
            continue
        title = f"{phase.name}: {milliseconds(total_ms).text} in {len(phase.layers)} layers"
        yield from section(f"Roofline of a {title}", _roofline(phase, ceiling, total_ms), level=3)
        yield from section(f"Timeline of a batch, layer by layer, {title}", _timeline(phase), _table(phase), level=3)


def _roofline(phase: PhaseLayers, ceiling: PublishedRates | MeasuredRates, total_ms: float) -> str:
    """Return the roofs, a point for each layer that computes, and a large one for the whole network."""
    points = [
        _point(layer.layer, layer.bound, (layer.flops, layer.bytes, layer.ms))
        for layer in phase.layers
        if layer.flops and layer.bytes
    ]
    points.append({**_point(_NETWORK, _NETWORK, (phase.flops, phase.bytes, total_ms)), "size": 220.0})
    by = charts.colour("bound", "measured layers, bound by", {**_BOUNDS, _NETWORK: charts.GREEN})
    return charts.roofline(ceiling.operations_per_s, ceiling.bandwidth_bytes_per_s, points, by)


def _point(name: str, bound: str, work: tuple[int, int, float]) -> Row:
    flops, moved, ms = work
    rate = flops / ms * 1e3
    return {
        "intensity": flops / moved,
        "rate": rate,
        "bound": bound,
        "size": 45.0,
        "Layer": name,
        "Time": milliseconds(ms).text,
        "Rate": quantity(rate, "OP/s").text,
        "Operations per byte": f"{flops / moved:.3g}",
    }


def _timeline(phase: PhaseLayers) -> str:
    """Return a bar for each layer, one after the other."""
    rows: list[Row] = []
    start = 0.0
    for layer in phase.layers[:_MOST_BARS]:
        times = {"Time": milliseconds(layer.ms).text, "At best": milliseconds(layer.floor_ms).text}
        place: Row = {"row": "layers", "start": start, "end": start + layer.ms, "bound": layer.bound}
        rows.append({**place, "Layer": layer.layer, **times, "Bound by": layer.bound})
        start += layer.ms
    return charts.figure(charts.bars(rows, "time, ms", charts.colour("bound", "bound by", _BOUNDS)), height=40)


def _table(phase: PhaseLayers) -> str:
    headers = ("layer", "time", "at best", "reached", "bound by", "operations", "bytes moved")
    rows = [
        (
            each.layer,
            milliseconds(each.ms),
            milliseconds(each.floor_ms),
            percent(each.floor_ms / each.ms) if each.ms else None,
            each.bound,
            quantity(each.flops, "OP"),
            size(each.bytes),
        )
        for each in phase.layers
    ]
    return table(headers, rows)
