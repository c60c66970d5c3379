"""The tables of a verification, as printed by `trtkit verify`; the page shows most of them too."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from trtkit.report.tables import (
    Cell,
    Column,
    Facts,
    Note,
    NumberCell,
    Part,
    Style,
    Table,
    Value,
    VerdictCell,
    named,
    numbers,
    plural,
    shape_text,
)
from trtkit.verification.report import (
    Agreement,
    BundleNetwork,
    Comparison,
    Corner,
    LayerError,
    Output,
    PartOutput,
    PerplexityCheck,
    Report,
)
from trtkit.verification.verdict import PASS, difference_text, fix, reason, slice_text, verdict

# Listed layers: the first out of tolerance and those with the largest errors.
_TOP = 10
_TYPES = ("fp16", "bf16", "fp8")


def verify_tables(report: Report) -> Iterator[Part]:
    """Yield the report's tables, with the verdict last."""
    yield from compared(report)
    if report.task.measure:
        yield _answers(report.task)
    yield from perplexity_and_corners(report)
    if report.layers:
        yield _largest_errors(report.layers)
        yield _ranges(report.layers)
        wrong = first_out_of_tolerance(report.layers, report.tolerance)
        if wrong is not None:
            what = f"{wrong.layer} ({wrong.kind} {wrong.dtype}), error {wrong.relative_rms_error:.2e}"
            yield Note(what, "bad", "first layer out of tolerance: ")
    yield from remarks(report)
    style: Style = ("good" if verdict(report) == PASS else "warning") if report.passed else "bad"
    yield Note(f": {summary(report)}", style, verdict(report))


def summary(report: Report) -> str:
    """Return what was verified, and why it passed or failed."""
    return f"{report.name} in {report.precision}, {reason(report)}"


def remarks(report: Report) -> Iterator[Note]:
    """Yield limitations of the result, and advice after a failure."""
    if report.unreal:
        yield Note(report.unreal, "warning")
    if report.layers_problem:
        yield Note(report.layers_problem, "bad")
    if report.fixed:
        yield Note(f"{report.fixed.config} keeps {', '.join(report.fixed.keep_fp32)} in fp32", "good", "repaired: ")
    if report.neurons is not None:
        text = f"neurons of all calls: {report.neurons}"
        raised = "; missed ones make answers inexact: raise `llm.sparse_ffn.keep`"
        yield Note(f"{text}{raised}" if report.neurons.missed else text, "warning" if report.neurons.missed else "")
    if fix(report):
        yield Note(f"fix: {fix(report)}", "warning")


def compared(report: Report) -> Iterator[Part]:
    """Yield the subjects of the comparison, and the errors of outputs and parts."""
    yield _overview(report)
    yield _outputs(report.outputs, "outputs")
    if (rows := report.rows) is not None:
        text = f"rows paired; {rows.unpaired:.1%} without a match (limit {rows.allowed:.1%})"
        yield Note(text, "" if rows.passed else "bad")
    if (counted := report.counted) is not None:
        text = f"boxes with a score of {counted.floor:g} or more: {counted.rows} in {plural(counted.runs, 'run')}"
        yield Note(f"{text}; others come in any order and are not compared")
    if (nms := report.nms) is not None:
        text = f"NMS in the engine replayed on its rows: {nms.boxes} selected in {plural(nms.runs, 'run')}"
        yield Note(f"{text}; {nms.problem or 'all as the host selects'}", "" if nms.passed else "bad")
    if report.parts:
        yield _parts(report.parts)
    if report.engine:
        yield _outputs(report.engine.outputs, "the engine on this GPU against the reference executor")
    if report.stored:
        yield _outputs(report.stored.outputs, f"compared with {report.stored.reference}")
    if (loss := report.loss) is not None:
        text = f"loss on the calibration data: {loss.measured:.1%}; {loss.recorded:.1%} when quantized"
        yield Note(f"{text} (limit {loss.allowed:.1%})", "" if loss.passed else "bad")
    if report.networks:
        yield _networks(report.networks)


def perplexity_and_corners(report: Report) -> Iterator[Part]:
    """Yield the perplexity, and the corners of the profiles."""
    if report.perplexity:
        yield _perplexity(report.perplexity)
    if report.corners:
        yield _corners(report.corners)


def first_out_of_tolerance(layers: Sequence[LayerError], tolerance: float) -> LayerError | None:
    """Return the first layer whose error exceeds `tolerance` or that is not finite."""
    return next((layer for layer in layers if layer.relative_rms_error > tolerance or not layer.is_finite), None)


def every_layer(layers: Sequence[LayerError]) -> Table:
    """Return errors and ranges of all layers."""
    columns = (
        *numbers("#"),
        *named("layer", "type", "precision"),
        *numbers("relative RMS error", "smallest", "largest", "fp16 headroom, bits", "flushed to 0 in fp16"),
    )
    rows: list[tuple[Value, ...]] = []
    for index, layer in enumerate(layers):
        error, bits, flushed = _error(layer.relative_rms_error), layer.headroom_bits["fp16"], layer.flushed["fp16"]
        ranges = (layer.smallest, layer.largest, NumberCell(bits, f"{bits:.1f}"), NumberCell(flushed, f"{flushed:.1%}"))
        rows.append((index, layer.layer, layer.kind, layer.dtype, error, *ranges))
    return Table("layers", columns, rows)


def _overview(report: Report) -> Facts:
    rows: list[tuple[str, Value]] = [
        ("network", report.executor),
        ("reference", report.reference),
        ("inputs", ", ".join(report.samples)),
    ]
    if report.batch_rows is not None:
        mixed = "rows affect each other: a server must not batch requests"
        rows.append(("batch", mixed if report.batch_rows == "mixed" else "rows are independent"))
    return Facts(f"verify {report.name}", rows)


def _outputs(outputs: Mapping[str, Comparison], title: str) -> Table:
    rows: list[tuple[Value, ...]] = []
    for name, item in outputs.items():
        passed = VerdictCell(item.passed, PASS if item.passed else "FAIL") if isinstance(item, Output) else None
        rows.append((name, *_figures(item), slice_text(item), passed))
        if item.problem:
            rows.append((f"  {item.problem}",))
        if item.equal_nans:
            rows.append((f"  NaN in both: {item.equal_nans} of {item.values} values, not counted as errors",))
    columns = numbers("relative RMS error", "max abs error", "cosine")
    return Table(title, (Column("name"), *columns, Column("worst slice"), Column("verdict", is_wide=True)), rows)


def _figures(item: Comparison) -> tuple[NumberCell, ...]:
    cosine = NumberCell(item.cosine, f"{item.cosine:.8f}")
    return _error(item.relative_rms_error), _error(item.max_abs_error), cosine


def _networks(networks: Sequence[BundleNetwork]) -> Table:
    """List the bundle's networks, which run, compared with the verified ones."""
    rows: list[tuple[Value, ...]] = []
    for network in networks:
        held = "equal" if network.is_held else "not in the bundle: it has plugins, which only TensorRT runs"
        text = held if network.passed else difference_text(network)
        rows.append((network.stage, str(network.rank), VerdictCell(network.passed, text)))
    title = "networks in the bundle, compared with those written from the source"
    return Table(title, named("stage", "rank", ""), rows)


def _parts(parts: Sequence[PartOutput]) -> Table:
    """Compare a hybrid's parts with the reference's modules."""
    rows = [(part.name, part.module, _error(part.relative_rms_error), _verdict(part)) for part in parts]
    columns = (*named("part", "reference module"), *numbers("relative RMS error"), Column(""))
    return Table("parts (each includes those before it)", columns, rows)


def _answers(task: Agreement) -> Facts:
    top_5 = "" if task.top_5 is None else f", top-5 {task.top_5:.1%}"
    rows = [
        (task.measure, f"{task.agreement:.1%} match the reference{top_5}"),
        ("ours", ", ".join(str(ours) for ours, _ in task.answers[:_TOP])),
        ("reference", ", ".join(str(theirs) for _, theirs in task.answers[:_TOP])),
    ]
    return Facts("answers", rows)


def _perplexity(text: PerplexityCheck) -> Facts:
    rows = [
        ("text", f"{text.text}, {plural(text.windows, 'window')}, {text.tokens} tokens"),
        ("ours", f"{text.perplexity:.4f}"),
        ("reference", f"{text.reference:.4f}"),
        ("change", f"{text.relative_change:.3%} (limit {text.allowed:.1%})"),
    ]
    return Facts("perplexity per token", rows)


def _corners(corners: Sequence[Corner]) -> Table:
    rows: list[tuple[Value, ...]] = []
    for corner in corners:
        shapes = "; ".join(f"{name} {shape_text(shape)}" for name, shape in corner.shapes.items())
        error = "" if corner.relative_rms_error == math.inf else _error(corner.relative_rms_error)
        verdict = _verdict(corner)
        if corner.outputs:
            verdict = replace(verdict, text=f"{', '.join(corner.outputs)}: {verdict.text}")
        rows.append((corner.name, shapes, error, verdict))
    return Table("profile corners", (*named("corner", "shapes"), *numbers("relative RMS error"), Column("")), rows)


def _largest_errors(layers: Sequence[LayerError]) -> Table:
    """List the layers with the largest errors, in execution order."""
    worst = sorted(layers, key=lambda layer: layer.relative_rms_error, reverse=True)[:_TOP]
    rows: list[tuple[Value, ...]] = []
    for layer in (layer for layer in layers if layer in worst):
        note = "" if layer.is_finite else VerdictCell(False, "not finite")
        rows.append((layer.layer, f"{layer.kind} {layer.dtype}", _error(layer.relative_rms_error), note))
    columns = (*named("layer", "type"), *numbers("relative RMS error"), Column(""))
    return Table("largest errors compared with the higher-precision run", columns, rows)


def _ranges(layers: Sequence[LayerError]) -> Table:
    """List the layers closest to overflow in fp16, and what other types would do."""
    nearest = sorted(layers, key=lambda layer: layer.headroom_bits["fp16"])[:_TOP]
    rows: list[tuple[Value, ...]] = []
    for layer in nearest:
        bits: list[Cell] = []
        for dtype in _TYPES:
            text = f"{layer.headroom_bits[dtype]:.1f}"
            bits.append(VerdictCell(False, text) if layer.headroom_bits[dtype] < 0 else text)
        rows.append((layer.layer, f"{layer.largest:.3g}", *bits, f"{layer.flushed['fp16']:.1%}"))
    columns = (Column("layer"), *numbers("largest", *_TYPES, "flushed to 0 in fp16"))
    return Table("least headroom (bits)", columns, rows)


def _error(value: float) -> NumberCell:
    return NumberCell(value, f"{value:.2e}")


def _verdict(item: PartOutput | Corner) -> VerdictCell:
    """Return whether a part or a corner passed, or what is wrong with it."""
    return VerdictCell(item.passed, PASS if item.passed else item.problem or slice_text(item) or "out of tolerance")
