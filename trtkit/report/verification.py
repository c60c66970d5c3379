"""The verification report as an HTML page: verdict, outputs, answers, corners, and error and range of every layer."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from trtkit.inputs.images import read_image
from trtkit.report import charts
from trtkit.report.page import page, section
from trtkit.report.tables import Note, Table, VerdictCell, named, percent
from trtkit.report.verification_tables import compared, every_layer, perplexity_and_corners, remarks, summary
from trtkit.runtime.drawing import with_two_sets_of_boxes
from trtkit.verification.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.report.charts import Row
    from trtkit.report.page import PageOrigin, PagePart
    from trtkit.verification.report import Agreement, Answer, ComparedPicture, LayerError, Report

_SMALL, _LARGE = 320, 640
"""Edges of pictures in pixels: plain ones, and those with boxes."""
_LARGEST_FP16, _SMALLEST_FP16 = 65504.0, 2.0**-24
_ERRORS = {"equal": charts.GREY, "within tolerance": charts.BLUE, "above tolerance": charts.ORANGE,
           "not finite": charts.RED}  # fmt: skip
_RANGES = {"fits fp16": charts.BLUE, "beyond fp16, in a wider type": charts.ORANGE, "overflows fp16": charts.RED}


def html_report(report: Report, origin: PageOrigin) -> str:
    """Return the report of `trtkit verify` as a self-contained page. Pictures that no longer exist are left out."""
    parts: list[PagePart] = [Note(summary(report)), *remarks(report), *compared(report)]
    if report.top_1_agreement is not None:
        parts.append(Note(f"top-1 agreement of logits: {percent(report.top_1_agreement).text}"))
    parts += section("Pictures", _pictures([item for item in report.pictures if Path(item.path).is_file()]))
    parts += [*_answers(report), *perplexity_and_corners(report)]
    if report.layers:
        parts += section("Error of each layer", _error_chart(report))
        parts += [*section("Range of each layer", _range_chart(report)), every_layer(report.layers)]
    return page(f"verify {report.name}", parts, origin, VerdictCell(report.passed, verdict(report)))


def _pictures(pictures: Sequence[ComparedPicture]) -> Markup:
    """Return small inline copies of pictures; empty without any."""
    figures = Markup("").join(map(_picture, pictures))
    has_boxes = any(picture.boxes or picture.reference_boxes for picture in pictures)
    note = "Boxes of the reference are drawn in white over those of the network." if has_boxes else ""
    return Markup("<div class='pictures'>{}</div><p class='note'>{}</p>").format(figures, note) if figures else figures


def _picture(picture: ComparedPicture) -> Markup:
    """Return a small picture with its name, and any boxes on it."""
    has_boxes = bool(picture.boxes or picture.reference_boxes)
    data, small = io.BytesIO(), read_image(Path(picture.path))
    width = small.width
    small.thumbnail((_LARGE, _LARGE) if has_boxes else (_SMALL, _SMALL))
    counts = f": {_boxes(len(picture.boxes))}, reference {len(picture.reference_boxes)}" if has_boxes else ""
    if has_boxes:
        small = with_two_sets_of_boxes(small, picture.boxes, picture.reference_boxes, small.width / width)
    small.save(data, "JPEG", quality=80)
    figure = Markup("<figure{}><img alt='{}' src='data:image/jpeg;base64,{}'><figcaption>{}</figcaption></figure>")
    kind = Markup(" class='boxes'") if has_boxes else ""
    return figure.format(kind, picture.name, base64.b64encode(data.getvalue()).decode(), f"{picture.name}{counts}")


def _boxes(count: int) -> str:
    return f"{count} box{'' if count == 1 else 'es'}"


def _answers(report: Report) -> Iterator[Table]:
    """Yield how many answers equal the reference's, and each pair with its class names."""
    task, samples = report.task, report.samples
    items = samples if len(samples) == len(task.answers) else [f"#{index}" for index in range(len(task.answers))]
    if task.measure:
        rows = [
            (
                item,
                _answer(task, ours),
                _answer(task, theirs),
                VerdictCell(ours == theirs, "yes" if ours == theirs else "no"),
            )
            for item, (ours, theirs) in zip(items, task.answers, strict=True)
        ]
        shares = f"{percent(task.agreement).text} equal ({task.measure}), {percent(task.required).text} required"
        yield Table(f"answers: {shares}", named("item", "trtkit", "reference", "equal"), rows)


def _answer(task: Agreement, answer: Answer) -> str:
    name = task.names.get(str(answer))
    return str(answer) if name is None else f"{name} ({answer})"


def _error_chart(report: Report) -> Markup:
    """Return the errors in the network's order; layers without an error are at the bottom."""
    positive = [layer.relative_rms_error for layer in report.layers if 0 < layer.relative_rms_error < math.inf]
    low, high = min([*positive, report.tolerance]) / 10, 10 * max([*positive, report.tolerance])
    rows: list[Row] = [
        {
            **_named(index, layer),
            "error": min(max(layer.relative_rms_error, low), high),
            "kind": _error_kind(layer, report.tolerance),
            "Relative RMS error": f"{layer.relative_rms_error:.3g}",
        }
        for index, layer in enumerate(report.layers)
    ]
    axes = _ORDER, charts.ChartAxis("error", "relative RMS error", is_log=True, ticks=".0e")
    drawn = charts.points(rows, axes, charts.colour("kind", "error", _ERRORS))
    caption = "Against the same network in fp32. Hover to name a layer; click the legend to dim the others."
    line = charts.limit(report.tolerance, f"tolerance {report.tolerance:g}")
    return charts.figure(charts.with_legend(drawn, "kind") + line, caption)


def _range_chart(report: Report) -> Markup:
    """Return each layer's range from the smallest nonzero to the largest magnitude."""
    rows: list[Row] = [
        {
            **_named(index, layer),
            "largest": min(layer.largest, 1e38),
            "smallest": layer.smallest if 0 < layer.smallest <= layer.largest else min(layer.largest, 1e38),
            "kind": _range_kind(layer),
            "Largest": f"{layer.largest:.3g}",
            "Smallest": f"{layer.smallest:.3g}",
        }
        for index, layer in enumerate(report.layers)
        if layer.largest > 0
    ]
    axes = _ORDER, charts.ChartAxis("largest", "magnitude", is_log=True, ticks=".0e")
    drawn = charts.points(rows, axes, charts.colour("kind", "largest value", _RANGES), size=30)
    spans = drawn.mark_rule(opacity=0.35).encode(y2="smallest:Q")
    limits = charts.limit(_LARGEST_FP16, "largest fp16") + charts.limit(_SMALLEST_FP16, "smallest fp16")
    caption = "From the smallest to the largest magnitude in the fp32 network, zeros aside; points are the largest."
    return charts.figure(spans + drawn + limits, caption)


_ORDER = charts.ChartAxis("index", "layer, in the network's order")


def _named(index: int, layer: LayerError) -> Row:
    return {"index": float(index), "Layer": layer.layer, "Type": layer.kind, "Precision": layer.dtype}


def _range_kind(layer: LayerError) -> str:
    if layer.largest <= _LARGEST_FP16:
        return "fits fp16"
    return "overflows fp16" if layer.dtype == "fp16" else "beyond fp16, in a wider type"


def _error_kind(layer: LayerError, tolerance: float) -> str:
    if not math.isfinite(layer.relative_rms_error):
        return "not finite"
    if layer.relative_rms_error == 0:
        return "equal"
    return "within tolerance" if layer.relative_rms_error <= tolerance else "above tolerance"
