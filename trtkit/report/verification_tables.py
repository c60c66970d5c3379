"""Tables of `trtkit verify`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rich.text import Text

from trtkit.cli.tables import listing, pairs, plural, shape_text
from trtkit.verification.verdict import PASS, difference_text, fix, reason, slice_text, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from trtkit.verification.report import (
        Agreement,
        BundleNetwork,
        Comparison,
        Corner,
        LayerError,
        PartOutput,
        PerplexityCheck,
        QuantizationLoss,
        Report,
        Rows,
        Suppression,
    )

# Layers listed: the first out of tolerance and those with the largest errors.
_TOP = 10


def verify_tables(report: Report) -> Iterator[RenderableType]:
    """Yield the report's tables, the verdict last."""
    yield from _compared(report)
    if report.task.measure:
        yield _answers(report.task)
    if report.perplexity:
        yield _perplexity(report.perplexity)
    if report.corners:
        yield _corners(report.corners)
    if report.layers:
        yield _layers(report.layers)
        yield _ranges(report.layers)
        wrong = first_out_of_tolerance(report.layers, report.tolerance)
        if wrong is not None:
            yield _first_wrong(wrong)
    if report.unreal:
        yield Text(report.unreal, "yellow")
    if report.layers_problem:
        yield _red(report.layers_problem)
    if report.fixed:
        kept = ", ".join(report.fixed.keep_fp32)
        yield Text.assemble(("repaired: ", "green"), f"{report.fixed.config} keeps {kept} in fp32")
    if fix(report):
        yield Text(f"fix: {fix(report)}", "yellow")
    styled_verdict = (verdict(report), _verdict_style(report))
    yield Text.assemble(styled_verdict, f": {report.name} in {report.precision}, {reason(report)}")


def _compared(report: Report) -> Iterator[RenderableType]:
    """Yield what was compared, and the errors of outputs and parts."""
    yield _overview(report)
    yield _outputs(report.outputs, "outputs")
    if report.rows:
        yield _rows(report.rows)
    if report.counted:
        counted = report.counted
        text = f"boxes with a score of {counted.floor:g} or more: {counted.rows} in {plural(counted.runs, 'run')}"
        yield Text(f"{text}; others come in any order and are not compared")
    if report.nms:
        yield _nms(report.nms)
    if report.parts:
        yield _parts(report.parts)
    if report.engine:
        yield _outputs(report.engine.outputs, "the engine on this GPU against the reference executor")
    if report.stored:
        yield _outputs(report.stored.outputs, f"compared with {report.stored.reference}")
    if report.loss:
        yield _loss(report.loss)
    if report.networks:
        yield _networks(report.networks)


def first_out_of_tolerance(layers: Sequence[LayerError], tolerance: float) -> LayerError | None:
    """Return the first layer whose error exceeds `tolerance` or that is not finite."""
    return next((layer for layer in layers if layer.relative_rms_error > tolerance or not layer.is_finite), None)


def _overview(report: Report) -> Table:
    rows = pairs(f"verify {report.name}")
    rows.add_row("network", report.executor)
    rows.add_row("reference", report.reference)
    rows.add_row("inputs", ", ".join(report.samples))
    if report.batch_rows == "mixed":
        rows.add_row("batch", "rows affect each other: a server must not batch requests")
    elif report.batch_rows == "independent":
        rows.add_row("batch", "rows are independent")
    return rows


def _outputs(outputs: Mapping[str, Comparison], title: str) -> Table:
    rows = listing(title, "name", "relative RMS error", "max abs error", "cosine", "worst slice")
    for name, item in outputs.items():
        rms, largest = f"{item.relative_rms_error:.2e}", f"{item.max_abs_error:.2e}"
        rows.add_row(name, rms, largest, f"{item.cosine:.8f}", slice_text(item))
        if item.problem:
            rows.add_row(f"  {item.problem}")
        if item.equal_nans:
            rows.add_row(f"  NaN in both: {item.equal_nans} of {item.values} values, not counted as errors")
    return rows


def _rows(rows: Rows) -> Text:
    """Return how many rows have no match, which the errors of the outputs do not count."""
    text = f"rows paired; {rows.unpaired:.1%} without a match (limit {rows.allowed:.1%})"
    return Text(text, "" if rows.passed else "red")


def _loss(loss: QuantizationLoss) -> Text:
    """Return what quantizing costs on the calibration data, now and when it was done."""
    text = f"loss on the calibration data: {loss.measured:.1%}; {loss.recorded:.1%} when quantized"
    return Text(f"{text} (limit {loss.allowed:.1%})", "" if loss.passed else "red")


def _networks(networks: Sequence[BundleNetwork]) -> Table:
    """List the networks that the bundle holds, which run, against the verified ones."""
    rows = listing("networks in the bundle, compared with those written from the source", "stage", "rank", "")
    for network in networks:
        verdict = "equal" if network.is_held else "not in the bundle: it has plugins, which only TensorRT runs"
        rows.add_row(network.stage, str(network.rank), verdict if network.passed else _red(difference_text(network)))
    return rows


def _nms(nms: Suppression) -> Text:
    """Return whether NMS inside the network selected what the host would."""
    text = f"NMS in the engine replayed on its rows: {nms.boxes} selected in {plural(nms.runs, 'run')}"
    return Text(f"{text}; {nms.problem or 'all as the host selects'}", "" if nms.passed else "red")


def _parts(parts: Sequence[PartOutput]) -> Table:
    """Compare the parts of a hybrid with the reference's modules."""
    rows = listing("parts (each includes those before it)", "part", "reference module", "relative RMS error", "")
    for part in parts:
        verdict = "PASS" if part.passed else _red(_fault(part))
        rows.add_row(part.name, part.module, f"{part.relative_rms_error:.2e}", verdict)
    return rows


def _answers(task: Agreement) -> Table:
    rows = pairs("answers")
    top_5 = "" if task.top_5 is None else f", top-5 {task.top_5:.1%}"
    rows.add_row(task.measure, f"{task.agreement:.1%} match the reference{top_5}")
    rows.add_row("ours", ", ".join(str(ours) for ours, _ in task.answers[:_TOP]))
    rows.add_row("reference", ", ".join(str(theirs) for _, theirs in task.answers[:_TOP]))
    return rows


def _perplexity(text: PerplexityCheck) -> Table:
    rows = pairs("perplexity per token")
    rows.add_row("text", f"{text.text}, {plural(text.windows, 'window')}, {text.tokens} tokens")
    rows.add_row("ours", f"{text.perplexity:.4f}")
    rows.add_row("reference", f"{text.reference:.4f}")
    rows.add_row("change", f"{text.relative_change:.3%} (limit {text.allowed:.1%})")
    return rows


def _corners(corners: Sequence[Corner]) -> Table:
    rows = listing("profile corners", "corner", "shapes", "relative RMS error", "")
    for corner in corners:
        shapes = "; ".join(f"{name} {shape_text(shape)}" for name, shape in corner.shapes.items())
        error = "" if corner.relative_rms_error == math.inf else f"{corner.relative_rms_error:.2e}"
        verdict = "PASS" if corner.passed else _red(_fault(corner))
        rows.add_row(corner.name, shapes, error, verdict)
    return rows


def _layers(layers: Sequence[LayerError]) -> Table:
    """List the layers with the largest errors in the order they run."""
    worst = sorted(layers, key=lambda layer: layer.relative_rms_error, reverse=True)[:_TOP]
    rows = listing("largest errors compared with the higher-precision run", "layer", "type", "relative RMS error", "")
    for layer in (layer for layer in layers if layer in worst):
        note = "" if layer.is_finite else _red("not finite")
        rows.add_row(layer.layer, f"{layer.kind} {layer.dtype}", f"{layer.relative_rms_error:.2e}", note)
    return rows


def _ranges(layers: Sequence[LayerError]) -> Table:
    """List the layers nearest to overflow in fp16, with what other types would do."""
    nearest = sorted(layers, key=lambda layer: layer.headroom_bits["fp16"])[:_TOP]
    rows = listing("least headroom (bits)", "layer", "largest", "fp16", "bf16", "fp8", "flushed to 0 in fp16")
    for layer in nearest:
        bits = layer.headroom_bits
        texts = [
            _red(f"{bits[kind]:.1f}") if bits[kind] < 0 else f"{bits[kind]:.1f}" for kind in ("fp16", "bf16", "fp8")
        ]
        rows.add_row(layer.layer, f"{layer.largest:.3g}", *texts, f"{layer.flushed['fp16']:.1%}")
    return rows


def _first_wrong(layer: LayerError) -> Text:
    """Return where the network leaves its tolerance."""
    what = f"{layer.layer} ({layer.kind} {layer.dtype}), error {layer.relative_rms_error:.2e}"
    return Text.assemble(("first layer out of tolerance: ", "red"), what)


def _verdict_style(report: Report) -> str:
    if not report.passed:
        return "bold red"
    return "bold green" if verdict(report) == PASS else "bold yellow"


def _fault(compared: Comparison | Corner) -> str:
    """Return what is wrong with a part or a corner."""
    return str(compared.problem or slice_text(compared) or "out of tolerance")


def _red(text: str) -> Text:
    return Text(text, "red")
