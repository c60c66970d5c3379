"""The part of a bench report that holds a network against the roofline: its layers, measured, and a batch in time."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from trtkit.report.log_plot import LogPlot
from trtkit.report.plots import COLOURS, Bar, timeline

if TYPE_CHECKING:
    from collections.abc import Iterator

Json = dict[str, Any]
_MOST_BARS = 400
_LEGEND = "Blue: bound by compute; brown: by memory; grey: overhead, next to none of the time is work."
_CLASSES = {"compute": "tokens", "memory": "first"}


def roofline_plots(results: Json, case: Json) -> Iterator[str]:
    """Yield for each phase of a case the roofline with its measured layers, and the layers of a batch in time."""
    rates, bandwidth = _rates(results.get("ceiling", {}))
    for phase in case.get("phases", ()):
        took_ms = sum(row["ms"] for row in phase["layers"])
        if not rates or took_ms <= 0:
            continue
        title = f"{phase['name']}: {took_ms:.4g} ms in {len(phase['layers'])} layers"
        yield f"<h3>Roofline of a {escape(title)}</h3>"
        yield _roofline(phase, rates, bandwidth, took_ms)
        yield f"<h3>Timeline of a batch, layer by layer, {escape(title)}</h3>"
        yield f"<p>{_LEGEND}</p>{timeline([('layers', _bars(phase))], 'ms')}"


def _rates(ceiling: Json) -> tuple[dict[str, float], float]:
    """Return operations a second by type, and bytes a second; none where no ceiling is known."""
    if "operations_per_s" not in ceiling:
        return {}, 0.0
    measured = (ceiling.get(name, 0.0) for name in ("copy_bytes_per_s", "read_bytes_per_s", "bytes_per_s"))
    return ceiling["operations_per_s"], max(measured)


def _roofline(phase: Json, rates: dict[str, float], bandwidth: float, took_ms: float) -> str:
    """Return the roofs, a point for each layer that computes, and a large one for the whole network."""
    rows = [row for row in phase["layers"] if row["flops"] and row["bytes"]]
    points = [_point(row["layer"], row["flops"], row["bytes"], row["ms"]) for row in rows]
    whole = _point("the whole network, fused", phase["flops"], phase["bytes"], took_ms)
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


def _bars(phase: Json) -> list[Bar]:
    """Return a bar for each layer, one behind the other."""
    bars, start = [], 0.0
    for row in phase["layers"][:_MOST_BARS]:
        label = f"{row['layer']}: {row['ms']:.4g} ms, at best {row['floor_ms']:.4g} ms, bound by {row['bound']}"
        bars.append(Bar(start, start + row["ms"], _CLASSES.get(row["bound"], "wait"), label))
        start += row["ms"]
    return bars
