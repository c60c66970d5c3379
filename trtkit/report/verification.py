"""The verification report as one HTML page: verdict, outputs, answers, corners, and error and range of every layer."""

from __future__ import annotations

import base64
import io
import math
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING

from trtkit.inputs.images import read_image
from trtkit.report import charts
from trtkit.report.cells import VerdictCell, percent
from trtkit.report.page import facts, page, section, table, verdict_title
from trtkit.verification.verdict import PASS, fix, reason, slice_text, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from trtkit.report.cells import Value
    from trtkit.report.charts import Row
    from trtkit.report.page import PageOrigin
    from trtkit.verification.report import Agreement, Answer, Comparison, LayerError, Report

_MOST_PICTURES = 24
_LARGEST_FP16, _SMALLEST_FP16 = 65504.0, 2.0**-24
_ERRORS = {"equal": charts.GREY, "within tolerance": charts.BLUE, "above tolerance": charts.ORANGE,
           "not finite": charts.RED}  # fmt: skip
_RANGES = {"fits fp16": charts.BLUE, "beyond fp16, in a wider type": charts.ORANGE, "overflows fp16": charts.RED}


def html_report(report: Report, origin: PageOrigin, pictures: Mapping[str, Path] = MappingProxyType({})) -> str:
    """Return the report of `trtkit verify` as a self-contained page. pictures: by the names of samples."""
    parts = [
        verdict_title(f"verify {report.name}", verdict(report), passed=report.passed),
        *(
            f"<p>{escape(text)}</p>"
            for text in (reason(report), fix(report), report.unreal, report.layers_problem)
            if text
        ),
        facts(_summary(report)),
        *section("Outputs", _outputs(report)),
        *section("Pictures", _pictures([pictures[name] for name in report.samples if name in pictures])),
        *_answers(report),
        *_perplexity(report),
        *section("Profile corners", _corners(report)),
        *section("Parts", _parts(report)),
    ]
    if report.engine is not None:
        parts += section("Engine on the GPU against the reference executor", _compared(report.engine.outputs))
    if report.stored is not None:
        parts += section(f"Compared with {report.stored.reference}", _compared(report.stored.outputs))
    return page(f"verify {report.name}", [*parts, *_layers(report)], origin)


def _summary(report: Report) -> dict[str, Value]:
    """Return what was compared with what."""
    rows: dict[str, Value] = {name: str(getattr(report, name)) for name in ("precision", "executor", "reference")}
    rows["inputs"] = ", ".join(report.samples)
    if report.batch_rows is not None:
        rows["rows of a batch"] = report.batch_rows
    if report.nms is not None:
        rows["NMS in the engine"] = (
            report.nms.problem or f"{report.nms.boxes} boxes in {report.nms.runs} runs, as on the host"
        )
    if report.loss is not None:
        rows["loss on the calibration data"] = f"{report.loss.measured:.1%}; {report.loss.recorded:.1%} when quantized"
    if report.networks:
        count = sum(network.is_held and network.passed for network in report.networks)
        rows["networks in the bundle"] = f"{count} of {len(report.networks)} equal to those written from the source"
    if report.top_1_agreement is not None:
        rows["top-1 agreement of logits"] = percent(report.top_1_agreement)
    return rows


def _outputs(report: Report) -> str:
    rows = []
    for name, comparison in report.outputs.items():
        note = comparison.problem or (f"{comparison.equal_nans} NaNs on both sides" if comparison.equal_nans else "")
        rows.append(
            (
                name,
                *_figures(comparison),
                VerdictCell(comparison.passed, ": ".join(filter(None, (_word(comparison.passed), note)))),
            )
        )
    return table(("output", *_HEADERS, "verdict"), rows)


_HEADERS = ("relative RMS error", "max abs error", "cosine similarity", "worst slice")


def _figures(comparison: Comparison) -> tuple[Value, ...]:
    return comparison.relative_rms_error, comparison.max_abs_error, f"{comparison.cosine:.8f}", slice_text(comparison)


def _compared(outputs: dict[str, Comparison]) -> str:
    return table(("output", *_HEADERS), [(name, *_figures(comparison)) for name, comparison in outputs.items()])


def _yes(is_equal: bool) -> VerdictCell:
    return VerdictCell(is_equal, "yes" if is_equal else "no")


def _word(passed: bool) -> str:
    return PASS if passed else "FAIL"


def _pictures(paths: Sequence[Path]) -> str:
    """Return small copies of pictures, inlined; empty without any."""
    figures = "".join(f"<figure>{_picture(path)}</figure>" for path in paths[:_MOST_PICTURES])
    return f"<div class='pictures'>{figures}</div>" if figures else ""


def _picture(path: Path) -> str:
    """Return a picture of at most 320 pixels with its name."""
    data, small = io.BytesIO(), read_image(path)
    small.thumbnail((320, 320))
    small.save(data, "JPEG", quality=80)
    text, name = base64.b64encode(data.getvalue()).decode(), escape(path.name)
    return f"<img alt='{name}' src='data:image/jpeg;base64,{text}'><figcaption>{name}</figcaption>"


def _answers(report: Report) -> Iterator[str]:
    """Yield how many answers equal the reference's, and each pair, with the names of classes."""
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
        title = (
            f"Answers: {percent(task.agreement).text} equal ({task.measure}), {percent(task.required).text} required"
        )
        yield from section(title, table(("item", "trtkit", "reference", "equal"), rows))


def _answer(task: Agreement, answer: Answer) -> str:
    name = task.names.get(str(answer))
    return str(answer) if name is None else f"{name} ({answer})"


def _perplexity(report: Report) -> Iterator[str]:
    if (perplexity := report.perplexity) is not None:
        rows: dict[str, Value] = {
            "text": perplexity.text,
            "tokens": perplexity.tokens,
            "perplexity": f"{perplexity.perplexity:.4f}",
        }
        rows |= {"reference": f"{perplexity.reference:.4f}", "relative change": percent(perplexity.relative_change)}
        yield from section("Perplexity", facts({**rows, "allowed change": percent(perplexity.allowed)}))


def _corners(report: Report) -> str:
    rows = []
    for corner in report.corners:
        shapes = "; ".join(f"{name} {list(shape)}" for name, shape in corner.shapes.items())
        text = _word(True) if corner.passed else corner.problem or slice_text(corner) or "out of tolerance"
        rows.append((corner.name, shapes, corner.relative_rms_error, VerdictCell(corner.passed, text)))
    return table(("corner", "shapes", "relative RMS error", "verdict"), rows)


def _parts(report: Report) -> str:
    rows = [(part.name, part.module, *_figures(part), VerdictCell(part.passed, _word(part.passed)))
            for part in report.parts]  # fmt: skip
    return table(("part", "module of the reference", *_HEADERS, "verdict"), rows)


def _layers(report: Report) -> Iterator[str]:
    """Yield error and range of every layer as charts, and both as a table."""
    if not report.layers:
        return
    yield from section("Error of each layer", _error_chart(report), level=2)
    yield from section("Range of each layer", _range_chart(report), level=2)
    headers = ("#", "layer", "type", "precision", "relative RMS error", "smallest", "largest", "fp16 headroom, bits",
               "flushed to 0 in fp16")  # fmt: skip
    rows = [
        (index, layer.layer, layer.kind, layer.dtype, layer.relative_rms_error, layer.smallest, layer.largest,
         f"{layer.headroom_bits['fp16']:.1f}", percent(layer.flushed["fp16"]))
        for index, layer in enumerate(report.layers)
    ]  # fmt: skip
    yield from section("Layers", table(headers, rows))


def _error_chart(report: Report) -> str:
    """Return the errors in the network's order; a layer without an error is on the floor."""
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


def _range_chart(report: Report) -> str:
    """Return each layer's range from the smallest to the largest magnitude that is not zero."""
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
