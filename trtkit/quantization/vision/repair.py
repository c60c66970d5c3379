"""Reduce the loss of 8-bit quantization: scales of least error, bias correction, unquantized products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.onnx.quantize import quantized_activations
from trtkit.quantization.vision.products import Loss, loss_of, losses, moved_means, product_pairs
from trtkit.quantization_methods import FORMATS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import onnx

    from trtkit.arrays import Array
    from trtkit.inputs.samples import Sample
    from trtkit.quantization.vision.data import QuantizationRun, Range
    from trtkit.quantization_methods import Format

SMALL_LOSS = 0.05
"""Relative RMS error up to which no product has to stay unquantized."""
RANKED_SAMPLES = 4


def set_scales(model: onnx.ModelProto, ranges: Mapping[str, Range], kind: Format, algorithm: str) -> None:
    """Set activation scales from ranges; a scale that several activations share is the largest of theirs."""
    from onnx import numpy_helper

    scales: dict[str, float] = {}
    for node in quantized_activations(model):
        extent = ranges[node.input[0]]
        is_percentile = algorithm == "percentile"
        scale = extent.percentile / FORMATS[kind].largest if is_percentile else least_error_scale(extent, kind)
        scales[node.input[1]] = max(scale, scales.get(node.input[1], 0.0))
    for tensor in model.graph.initializer:
        if scales.get(tensor.name, 0.0) > 0:
            shape = numpy_helper.to_array(tensor).shape
            tensor.CopyFrom(numpy_helper.from_array(np.full(shape, scales[tensor.name], np.float32), tensor.name))


def least_error_scale(extent: Range, kind: Format) -> float:
    """Return the scale of least squared error among those for 30 to 100 % of the largest magnitude."""
    values, largest = extent.drawn, max(abs(extent.low), abs(extent.high))
    scales = np.linspace(1.0, 0.3, 29, dtype=np.float32) * np.float32(largest / FORMATS[kind].largest)
    errors = [float(np.square(_rounded(values / scale, kind) * scale - values).mean()) for scale in scales]
    return float(scales[int(np.argmin(errors))])


def _rounded(values: Array, kind: Format) -> Array:
    import ml_dtypes

    if kind == "int8":
        return np.clip(np.rint(values), -128, 127)
    return (
        np.clip(values, -FORMATS["fp8"].largest, FORMATS["fp8"].largest)
        .astype(ml_dtypes.float8_e4m3fn)
        .astype(np.float32)
    )


@dataclass(frozen=True)
class Repaired:
    """A quantized model after repair. kept: products that stay unquantized. loss: on the calibration data."""

    model: onnx.ModelProto
    kept: tuple[str, ...]
    loss: Loss


def repaired(
    model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    samples: Sequence[Sample],
    quantization: QuantizationRun,
    share: float,
) -> Repaired:
    """Return `quantized` with corrected biases, and with the costliest products unquantized if its loss is large.

    At most `share` of all products, and of all their weights, stay unquantized. Losses of single products do not add up
    to their joint loss, so the finished model is measured, and the number of unquantized products doubles until the
    loss is small or the limit is reached; the model with the least loss of all is returned.
    """
    allowed, count = _candidates(model, quantized, samples, quantization, share)
    best: Repaired | None = None
    while True:
        tried = type(quantized)()
        tried.CopyFrom(quantized)
        keep_products(model, tried, allowed[:count])
        correct_biases(model, tried, samples, quantization)
        loss = loss_of(model, tried, samples, quantization)
        if best is None or loss.mean < best.loss.mean:
            best = Repaired(tried, tuple(allowed[:count]), loss)
        if loss.mean <= SMALL_LOSS or count == len(allowed):
            return best
        count = min(max(2 * count, 1), len(allowed))


def _candidates(
    model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    samples: Sequence[Sample],
    quantization: QuantizationRun,
    share: float,
) -> tuple[list[str], int]:
    """Return the products that may stay unquantized, and how many to start with.

    They are sorted by their own losses, the costliest first. Measuring them takes one run for each.
    """
    sizes = _weight_sizes(model, quantized)
    most, room = int(share * len(sizes)), share * sum(sizes.values())
    if not most:
        return [], 0
    lost = losses(model, quantized, samples[:: max(1, len(samples) // RANKED_SAMPLES)][:RANKED_SAMPLES], quantization)
    allowed: list[str] = []
    count, left = 0, sum(lost.values())
    for name in sorted(lost, key=lambda name: -lost[name]):
        if len(allowed) < most and sizes[name] <= room:
            count += left > SMALL_LOSS**2
            allowed.append(name)
            room -= sizes[name]
            left -= lost[name]
    return allowed, count


def _weight_sizes(model: onnx.ModelProto, quantized: onnx.ModelProto) -> dict[str, int]:
    """Return the number of values of each quantized product's weight, by name; 0 if it is not constant."""
    sizes = {tensor.name: int(np.prod(tensor.dims)) for tensor in model.graph.initializer}
    return {pair.name: sizes.get(pair.exact.input[1], 0) for pair in product_pairs(model, quantized)}


def keep_products(model: onnx.ModelProto, quantized: onnx.ModelProto, names: Collection[str]) -> None:
    """Restore the exact inputs of some products of `quantized`, and remove Q/DQ nodes that are no longer needed."""
    exact = {node.name: node for node in model.graph.node if node.name in names}
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    restored: set[str] = set()
    for node in quantized.graph.node:
        if node.name not in exact:
            continue
        for index, name in enumerate(exact[node.name].input[:2]):
            node.input[index] = f"{name}/exact" if name in constants else name
            restored.update({name} & constants.keys())
    for name in restored:
        quantized.graph.initializer.add().CopyFrom(constants[name])
        quantized.graph.initializer[-1].name = f"{name}/exact"
    _remove_unread(quantized)


def _remove_unread(model: onnx.ModelProto) -> None:
    """Remove Q and DQ nodes and constants that nothing reads."""
    outputs = {value.name for value in model.graph.output}
    while True:
        read = outputs | {name for node in model.graph.node for name in node.input}
        idle = [node for node in model.graph.node if node.op_type.endswith("eLinear") and node.output[0] not in read]
        if not idle:
            break
        for node in idle:
            model.graph.node.remove(node)
    for tensor in [tensor for tensor in model.graph.initializer if tensor.name not in read]:
        model.graph.initializer.remove(tensor)


def correct_biases(
    model: onnx.ModelProto, quantized: onnx.ModelProto, samples: Sequence[Sample], quantization: QuantizationRun
) -> None:
    """Add to biases what quantization takes from the output means of convolutions and Gemms on the data."""
    from onnx import numpy_helper

    moved = moved_means(model, quantized, samples, quantization)
    constants = {tensor.name: tensor for tensor in quantized.graph.initializer}
    for node in quantized.graph.node:
        if node.name not in moved or (len(node.input) > 2 and node.input[2] not in constants):
            continue
        bias = numpy_helper.to_array(constants[node.input[2]]) if len(node.input) > 2 else np.zeros(1, np.float32)
        corrected = bias.astype(np.float32) + moved[node.name].astype(np.float32)
        del node.input[2:]
        node.input.append(f"{node.name}/bias")
        quantized.graph.initializer.append(numpy_helper.from_array(corrected, f"{node.name}/bias"))
    _remove_unread(quantized)
