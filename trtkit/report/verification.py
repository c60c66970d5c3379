"""The verification report as one HTML file: tables, and error and range of every layer as plots."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

from trtkit.report.page import page, table
from trtkit.verification.verdict import reason, slice_text, verdict

if TYPE_CHECKING:
    from trtkit.verification.report import Agreement, LayerError, Report

_WIDTH, _HEIGHT, _LEFT, _TOP = 960, 220, 60, 12
_STYLE = """
.right { color: #1a7f37 } .wrong { color: #c00 } .axis { stroke: #bbb; stroke-width: 1 }
.limit { stroke: #c00; stroke-dasharray: 5 4 }
circle { fill: #0969da } circle.wrong { fill: #c00 } circle.low { fill: #8250df }
"""


def html_report(report: Report) -> str:
    """Return the report of `trtkit verify` as a self-contained page."""
    colour = "right" if report.passed else "wrong"
    parts = [
        f"<h1>verify {escape(report.name)}: <span class='{colour}'>{verdict(report)}</span></h1>",
        f"<p>{escape('; '.join(text for text in (reason(report), report.unreal) if text))}</p>",
        table(["", ""], [(key, getattr(report, key)) for key in ("precision", "tolerance", "executor", "reference")]),
        "<h2>Outputs</h2>",
        table(["output", "relative RMS error", "max abs error", "cosine", "worst slice", ""], _output_rows(report)),
    ]
    if report.task.measure:
        parts += [f"<h2>Answers: {report.task.agreement:.1%} equal</h2>", _answer_table(report.task)]
    if report.corners:
        parts += ["<h2>Profile corners</h2>", table(["corner", "shapes", "error", ""], _corner_rows(report))]
    if report.layers:
        parts += _layer_parts(report)
    return page(f"verify {report.name}", parts, style=_STYLE)


def _layer_parts(report: Report) -> list[str]:
    """Return both plots and the table of all layers."""
    layers = report.layers
    errors = [(layer, layer.relative_rms_error) for layer in layers]
    ranges = [(layer, layer.largest) for layer in layers]
    headers = ["layer", "type", "precision", "relative RMS error", "largest", "headroom fp16", "flushed in fp16"]
    rows = [
        (
            layer.layer,
            layer.kind,
            layer.dtype,
            _number(layer.relative_rms_error),
            _number(layer.largest),
            f"{layer.headroom_bits['fp16']:.1f} bits",
            f"{layer.flushed['fp16']:.1%}",
        )
        for layer in layers
    ]
    return [
        "<h2>Error of every layer against the widened network</h2>",
        _plot(errors, report.tolerance, "tolerance"),
        "<h2>Largest value of every layer</h2>",
        _plot(ranges, 65504.0, "largest fp16"),
        "<h2>Layers</h2>",
        table(headers, rows),
    ]


def _plot(points: list[tuple[LayerError, float]], limit: float, limit_name: str) -> str:
    """Return a logarithmic scatter plot over the layers in order; hovering names the layer."""
    shown = [value for _, value in points if 0 < value < math.inf]
    low = math.floor(math.log10(min([*shown, limit]))) if shown else -8
    high = math.ceil(math.log10(max([*shown, limit]))) if shown else 0
    high = max(high, low + 1)

    def y_of(value: float) -> float:
        if value == math.inf:
            return _TOP
        share = (math.log10(max(value, 10.0**low)) - low) / (high - low)
        return _TOP + (1 - share) * _HEIGHT

    step = (_WIDTH - _LEFT - 10) / max(1, len(points))
    marks = [_grid_line(power, y_of(10.0**power)) for power in range(low, high + 1, max(1, (high - low) // 6))]
    marks.append(f"<line class='limit' x1='{_LEFT}' x2='{_WIDTH}' y1='{y_of(limit):.1f}' y2='{y_of(limit):.1f}'/>")
    marks.append(f"<text x='{_WIDTH - 90}' y='{y_of(limit) - 4:.1f}'>{limit_name}</text>")
    for index, (layer, value) in enumerate(points):
        style = "wrong" if value > limit else "low" if layer.dtype != "fp32" else ""
        label = f"{layer.layer} ({layer.kind} {layer.dtype}): {_number(value)}"
        x = _LEFT + 5 + index * step
        marks.append(
            f"<circle class='{style}' cx='{x:.1f}' cy='{y_of(value):.1f}' r='3'><title>{escape(label)}</title></circle>"
        )
    return f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT + 2 * _TOP}' width='100%'>{''.join(marks)}</svg>"


def _grid_line(power: int, y: float) -> str:
    line = f"<line class='axis' x1='{_LEFT}' x2='{_WIDTH}' y1='{y:.1f}' y2='{y:.1f}'/>"
    return f"{line}<text x='8' y='{y + 4:.1f}'>1e{power}</text>"


def _output_rows(report: Report) -> list[tuple[Any, ...]]:
    return [
        (name, *map(_number, (o.relative_rms_error, o.max_abs_error)), f"{o.cosine:.8f}", slice_text(o), note)
        for name, o in report.outputs.items()
        for note in [o.problem or (f"{o.equal_nans} NaNs on both sides" if o.equal_nans else "")]
    ]


def _corner_rows(report: Report) -> list[tuple[Any, ...]]:
    rows = []
    for corner in report.corners:
        shapes = "; ".join(f"{name} {list(shape)}" for name, shape in corner.shapes.items())
        verdict = "right" if corner.passed else corner.problem or slice_text(corner) or "out of tolerance"
        rows.append((corner.name, shapes, _number(corner.relative_rms_error), verdict))
    return rows


def _answer_table(task: Agreement) -> str:
    return table(["ours", "reference"], [(str(ours), str(theirs)) for ours, theirs in task.answers])


def _number(value: float) -> str:
    return f"{value:.3g}"
