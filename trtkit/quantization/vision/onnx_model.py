"""Quantize a prepared ONNX model: with ModelOpt and calibration data, or its weights alone."""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.errors import QuantizeError
from trtkit.inputs.samples import wrapped_sample
from trtkit.network.onnx import quantize
from trtkit.network.onnx.autocast import matches, select_nodes
from trtkit.network.onnx.io import LARGEST_INLINE_BYTES, graph_inputs, save_model
from trtkit.quantization.by_part import check_options
from trtkit.quantization.vision import data, products, repair
from trtkit.quantization.vision.data import OnnxQuantization
from trtkit.quantization_methods import METHODS, NONE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx

    from trtkit.inputs.samples import Sample
    from trtkit.network.onnx.quantize import QuantizedCounts
    from trtkit.quantization.by_part import PartChoice
    from trtkit.quantization.vision.data import QuantizationRun, ReadImages
    from trtkit.quantization.vision.products import Loss
    from trtkit.quantization.vision.repair import Repaired

LOSS_KEY = "trtkit.quantization_loss"
"""Key in an ONNX file's metadata: the quantized model's loss on its worst calibration sample."""


@dataclass(frozen=True)
class QuantizedOnnx:
    """A quantized model, counts of what is quantized, and its loss on the calibration data; None without data."""

    model: onnx.ModelProto
    counts: QuantizedCounts
    loss: Loss | None


def quantized(model: onnx.ModelProto, quantization: OnnxQuantization, run: QuantizationRun) -> onnx.ModelProto:
    """Return the model quantized; whatever its options exclude stays in fp32.

    Raises ConfigError, QuantizeError, SourceError.
    """
    options, key = quantization.options, quantization.key
    check_options(options, key)
    result = _quantized_but(model, quantization, select_nodes(model, options.exclude, f"{key}.exclude"), run)
    counts = result.counts
    if not counts.weights and not counts.activations:
        what = f"{options.method} finds nothing to quantize: every product is excluded or too small"
        raise QuantizeError(what, key, f"exclude less, use another method, or remove `{key}`")
    run.steps.add("quantize", f"{options.method}: {counts}")
    if result.loss is not None:
        run.steps.add("loss", str(result.loss))
        result.model.metadata_props.add(key=LOSS_KEY, value=f"{result.loss.worst:.3g}")
    return result.model


def recorded_loss(model: onnx.ModelProto) -> float | None:
    """Return the loss that `quantized` recorded in an ONNX file; None if it has no valid record."""
    value = next((entry.value for entry in model.metadata_props if entry.key == LOSS_KEY), "")
    try:
        loss = float(value)
    except ValueError:
        return None
    return loss if math.isfinite(loss) else None


def _quantized_but(
    model: onnx.ModelProto, quantization: OnnxQuantization, exclude: Sequence[str], run: QuantizationRun
) -> QuantizedOnnx:
    """Return the model quantized except for the nodes `exclude`. Raises QuantizeError, SourceError."""
    options, method = quantization.options, METHODS[quantization.options.method]
    _check_model(model, quantization.key)
    try:
        model = quantize.lifted(model, method.dtype)
    except ValueError as error:
        opset = quantize.OPSETS[method.dtype.bits]
        what = f"{options.method} needs opset {opset}, and the model cannot be converted: {error}"
        raise QuantizeError(what, "opset", f"export the model with opset {opset} or newer") from None
    if method.rounds_inputs:
        result = _by_modelopt(model, quantization, exclude, run)
        return QuantizedOnnx(result.model, quantize.counts(result.model), result.loss)
    if method.takes_block and options.block:
        _check_block(model, exclude, options.block, quantization.key)
    exact = type(model)()
    exact.CopyFrom(model)
    quantize.quantize_weights(model, method.dtype, exclude, options.block)
    samples = [] if options.calibration.data is None else data.read_calibration(quantization, graph_inputs(model))
    loss = products.loss_of(exact, model, samples, run) if samples else None
    return QuantizedOnnx(model, quantize.counts(model), loss)


def quantized_part(
    model: onnx.ModelProto, choice: PartChoice, read_images: ReadImages, run: QuantizationRun
) -> onnx.ModelProto:
    """Return a hybrid's exported parts with the part of `choice` quantized. Node names start with their part's name.

    Raises QuantizeError, SourceError.
    """
    options, name = choice.options, choice.part.name
    if options.method == NONE:
        return model
    named = [pattern for pattern in options.exclude if any(matches(node, pattern) for node in model.graph.node)]
    exclude = {node.name for node in model.graph.node if not node.name.startswith(f"{name}/")}
    exclude.update(select_nodes(model, named, f"{choice.key}.exclude"))
    result = _quantized_but(model, OnnxQuantization(options, read_images, choice.key), sorted(exclude), run)
    counts = result.counts
    if not counts.weights and not counts.activations:
        if choice.is_own:
            what = (
                f"{options.method} finds nothing to quantize in part `{name}`: every product is excluded or too small"
            )
            raise QuantizeError(what, choice.key, "use another method, or `none`")
        return model
    run.steps.add("quantize", f"part `{name}`, {options.method}: {counts}")
    if result.loss is not None:
        run.steps.add("loss", f"part `{name}`: {result.loss}")
    return result.model


def _check_model(model: onnx.ModelProto, key: str) -> None:
    """Refuse quantized models, and operators that ModelOpt does not know. Raises QuantizeError."""
    if quantize.is_quantized(model):
        what = "the model already has Q/DQ nodes"
        raise QuantizeError(what, key, f"remove `{key}`, or use the original, unquantized model")
    foreign = Counter(node.op_type for node in model.graph.node if node.domain not in {"", "ai.onnx"})
    if foreign:
        names = ", ".join(f"{count} {name}" for name, count in foreign.items())
        fix = "use a model of standard ONNX operators; trtkit's `custom_ops` stay in `precision`"
        raise QuantizeError(f"operators of other domains cannot be quantized: {names}", key, fix)


def _check_block(model: onnx.ModelProto, exclude: Sequence[str], block: int, key: str) -> None:
    """Refuse a block size that does not divide the axis it applies to. Raises QuantizeError naming the nodes."""
    wrong = quantize.undivided(model, exclude, block)
    if wrong:
        products = ", ".join(f"the {size} inputs of `{name}`" for name, size in list(wrong.items())[:4])
        more = f", nor those of {len(wrong) - 4} more" if len(wrong) > 4 else ""
        fix = f"remove `block` to use the largest size that divides, or exclude {', '.join(list(wrong)[:4])}"
        raise QuantizeError(f"a block size of {block} does not divide {products}{more}", f"{key}.block", fix)


def _by_modelopt(
    model: onnx.ModelProto, quantization: OnnxQuantization, exclude: Sequence[str], run: QuantizationRun
) -> Repaired:
    """Calibrate the model on data and insert Q/DQ with ModelOpt."""
    options, where = quantization.options, str(quantization.options.calibration.data)
    samples = data.read_calibration(quantization, graph_inputs(model))
    run.steps.add("calibration data", f"{len(samples)} samples")
    before = quantize.product_inputs(model, exclude)
    ranges = data.measure(model, before, samples, run)
    data.check_ranges(ranges, _readers(model), where)
    quantized_model = _placed(model, quantization, exclude, _SampleReader(samples, run), run.folder)
    if options.algorithm in ("mse", "percentile"):
        tensors = [node.input[0] for node in quantize.quantized_activations(quantized_model)]
        ranges = data.measure(model, tensors, samples, run)
        repair.set_scales(quantized_model, ranges, METHODS[options.method].format, options.algorithm)
    result = repair.repaired(model, quantized_model, samples, run, options.keep)
    if result.kept:
        run.steps.add("keep", f"{len(result.kept)} products that lose most: {', '.join(result.kept)}")
    return result


def _readers(model: onnx.ModelProto) -> dict[str, str]:
    """Return the first product that reads each tensor."""
    readers: dict[str, str] = {}
    for node in model.graph.node:
        for name in node.input:
            if node.op_type in quantize.PRODUCTS:
                readers.setdefault(name, node.name)
    return readers


def _placed(
    model: onnx.ModelProto, quantization: OnnxQuantization, exclude: Sequence[str], reader: _SampleReader, folder: Path
) -> onnx.ModelProto:
    """Return the model with ModelOpt's Q/DQ and 8-bit weights. Raises QuantizeError."""
    import onnx
    from modelopt.onnx.quantization import quantize as insert_qdq

    source, output = folder / "before-quantize.onnx", folder / "quantized.onnx"
    options, key = quantization.options, quantization.key
    save_model(model, source)
    logging.getLogger("modelopt").setLevel(logging.ERROR)
    # ModelOpt mistakes scores and mask for the two inputs of a residual sum and quantizes both.
    left = [*exclude, *quantize.masked_scores(model)]
    try:
        insert_qdq(
            str(source),
            quantize_mode=METHODS[options.method].format,
            calibration_data_reader=reader,
            calibration_method="entropy" if options.algorithm == "entropy" else "max",
            calibration_eps=["cpu"],
            nodes_to_exclude=[f"^{re.escape(name)}$" for name in left],
            use_external_data_format=model.ByteSize() > LARGEST_INLINE_BYTES,
            high_precision_dtype="fp32",
            output_path=str(output),
            log_level="ERROR",
            dq_only=True,
        )
    except Exception as error:  # ModelOpt, ONNX Runtime and GraphSurgeon raise all kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        fix = f"exclude the failing nodes with `{key}.exclude`, or use int8_wo"
        raise QuantizeError(f"ModelOpt cannot quantize the model: {reason}", key, fix) from error
    placed = onnx.load(str(output))
    del placed.metadata_props[:]
    placed.metadata_props.extend(model.metadata_props)  # text recognizers keep their alphabet there
    return placed


class _SampleReader:
    """Passes samples to ModelOpt one by one, the first in the shapes that the engine is tuned for."""

    def __init__(self, samples: Sequence[Sample], run: QuantizationRun) -> None:
        self._samples, self._place = samples, run
        self.rewind()

    def get_next(self) -> Mapping[str, Any] | None:
        """Return the next sample's arrays; None after the last."""
        sample = next(self._left, None)
        return None if sample is None else sample.inputs

    def get_first(self) -> Mapping[str, Any]:
        """Return the sample that ModelOpt uses to find products too narrow for quantization."""
        return wrapped_sample("opt", self._place.shapes, self._samples[0]).inputs

    def rewind(self) -> None:
        self._left = self._place.steps.track("calibrate", self._samples)
