"""A model's convolutions and matrix products compared with their quantized forms, to measure the loss of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import QuantizeError
from trtkit.network.onnx.io import save_model
from trtkit.network.onnx.quantize import PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx

    from trtkit.arrays import Array
    from trtkit.inputs.samples import Sample
    from trtkit.quantization.vision.data import QuantizationRun

_OWN = "quantized/"
_STEPS = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Pair:
    """An exact product, and the nodes that compute it in low precision from the same tensors, the product last."""

    exact: onnx.NodeProto
    quantized: list[onnx.NodeProto]

    @property
    def name(self) -> str:
        return str(self.exact.name)


def product_pairs(model: onnx.ModelProto, quantized: onnx.ModelProto) -> list[Pair]:
    """Return the products of `model` with a quantized input in `quantized`, whose nodes have the same names."""
    exact = {node.name: node for node in model.graph.node if node.op_type in PRODUCTS}
    makers = {node.output[0]: node for node in quantized.graph.node if node.op_type in _STEPS}
    renamed = {*makers, *(tensor.name for tensor in quantized.graph.initializer)}
    pairs = []
    for node in quantized.graph.node:
        if node.name in exact and any(name in makers for name in node.input):
            parts = [_own(part, renamed) for part in (*_before(node, makers), node)]
            pairs.append(Pair(exact[node.name], parts))
    return pairs


def _before(node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the Q and DQ nodes upstream of a node, in order."""
    steps: dict[str, onnx.NodeProto] = {}
    for maker in (makers[name] for name in node.input if name in makers):
        steps |= {step.output[0]: step for step in (*_before(maker, makers), maker)}
    return list(steps.values())


def _own(node: onnx.NodeProto, renamed: set[str]) -> onnx.NodeProto:
    """Return a copy of a node with a new name and output, whose inputs in `renamed` are renamed too."""
    copy = type(node)()
    copy.CopyFrom(node)
    copy.name, copy.output[0] = _OWN + node.name, _OWN + node.output[0]
    for index, name in enumerate(node.input):
        if name in renamed:
            copy.input[index] = _OWN + name
    return copy


def losses(
    model: onnx.ModelProto,
    quantized: onnx.ModelProto,
    samples: Sequence[Sample],
    quantization: QuantizationRun,
) -> dict[str, float]:
    """Return each product's loss if only it is quantized: the outputs' squared relative error, by name.

    Raises QuantizeError if ONNX Runtime cannot run the model.
    """
    names = [pair.name for pair in product_pairs(model, quantized)]
    run = _runner(_with_switches(model, quantized), quantization.folder / "switched.onnx")
    total = dict.fromkeys(names, 0.0)
    report = quantization.steps.counted("products", len(names) * len(samples))
    for index, sample in enumerate(samples):
        off = {_switch(name): np.asarray(False) for name in names}
        exact = run(sample.inputs | off)
        size = sum(_square(value) for value in exact) or 1.0
        for done, name in enumerate(names, index * len(names) + 1):
            outputs = run(sample.inputs | off | {_switch(name): np.asarray(True)})
            apart = sum(_square(ours - theirs) for ours, theirs in zip(outputs, exact, strict=True))
            total[name] += apart / size / len(samples)
            report(done)
    return total


@dataclass(frozen=True)
class Loss:
    """Relative RMS error of a quantized model on data, for the output with the largest error.

    mean: over all samples. worst: of the worst sample.
    """

    mean: float
    worst: float

    def __str__(self) -> str:
        return f"relative RMS error {self.mean:.1%}, {self.worst:.1%} on the worst sample"


def loss_of(
    model: onnx.ModelProto, quantized: onnx.ModelProto, samples: Sequence[Sample], quantization: QuantizationRun
) -> Loss:
    """Return the loss of `quantized` against `model`. Raises QuantizeError if ONNX Runtime cannot run it."""
    exact = _runner(model, quantization.folder / "exact.onnx")
    run = _runner(quantized, quantization.folder / "finished.onnx")
    errors = []
    for sample in quantization.steps.track("loss", samples):
        pairs = zip(run(sample.inputs), exact(sample.inputs), strict=True)
        errors.append([_relative(ours, theirs) for ours, theirs in pairs if theirs.dtype.kind == "f"])
    squares = np.square(np.asarray(errors))
    return Loss(float(np.sqrt(squares.mean(0)).max(initial=0.0)), float(np.sqrt(squares).max(initial=0.0)))


def _relative(ours: Array, theirs: Array) -> float:
    """Return the relative RMS error of finite values; the RMS error if the reference is all zeros."""
    if ours.shape != theirs.shape:  # the number of rows depends on data
        return 0.0
    finite = np.isfinite(theirs) & np.isfinite(ours)
    error, size = (_square(values[finite]) for values in (ours - theirs, theirs))
    return float(np.sqrt(error / size if size else error / max(int(finite.sum()), 1)))


def _square(values: Array) -> float:
    return float(np.square(values.astype(np.float64)).sum())


def _switch(name: str) -> str:
    return f"{_OWN}{name}/on"


def _with_switches(model: onnx.ModelProto, quantized: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with a boolean input for each product, which selects its quantized form."""
    from onnx import TensorProto, ValueInfoProto, helper

    switched = _with_constants(model, quantized)
    chosen = {pair.name: pair for pair in product_pairs(model, quantized)}
    for node in switched.graph.node:
        if node.name not in chosen or node.op_type not in PRODUCTS:
            continue
        steps, output = chosen[node.name].quantized, node.output[0]
        plain = type(node)()
        plain.CopyFrom(node)
        plain.output[0] = f"{output}/exact"
        ends = {"then_branch": (steps, _OWN + output), "else_branch": ([plain], plain.output[0])}
        branches: dict[str, Any] = {
            key: helper.make_graph(nodes, key, [], [ValueInfoProto(name=end)]) for key, (nodes, end) in ends.items()
        }
        switched.graph.input.append(helper.make_tensor_value_info(_switch(node.name), TensorProto.BOOL, []))
        node.CopyFrom(helper.make_node("If", [_switch(node.name)], [output], node.name, **branches))
    return switched


def _with_constants(model: onnx.ModelProto, quantized: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model that includes the other's constants, renamed."""
    copy = type(model)()
    copy.CopyFrom(model)
    for tensor in quantized.graph.initializer:
        copy.graph.initializer.add().CopyFrom(tensor)
        copy.graph.initializer[-1].name = _OWN + tensor.name
    return copy


def moved_means(
    model: onnx.ModelProto, quantized: onnx.ModelProto, samples: Sequence[Sample], quantization: QuantizationRun
) -> dict[str, Array]:
    """Return how far quantization lowers each output channel's mean, by name, for convolutions and Gemms.

    Each one gets the exact model's inputs. Raises QuantizeError if ONNX Runtime cannot run the model.
    """
    from onnx import ValueInfoProto

    pairs = [pair for pair in product_pairs(model, quantized) if pair.exact.op_type != "MatMul"]
    if not pairs:
        return {}
    measured = _with_constants(model, quantized)
    del measured.graph.output[:]
    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    steps: dict[str, onnx.NodeProto] = {}
    for pair in pairs:
        parts = (*pair.quantized, *_mean(pair, ranks.get(pair.exact.input[1], 4)))
        steps |= {part.output[0]: part for part in parts}
        measured.graph.output.append(ValueInfoProto(name=f"{_OWN}{pair.name}/moved"))
    measured.graph.node.extend(steps.values())
    run = _runner(measured, quantization.folder / "means.onnx")
    means = [
        [mean.astype(np.float64) for mean in run(sample.inputs)]
        for sample in quantization.steps.track("biases", samples)
    ]
    return {pair.name: np.mean(values, axis=0) for pair, values in zip(pairs, zip(*means, strict=True), strict=True)}


def _mean(pair: Pair, rank: int) -> list[onnx.NodeProto]:
    """Return nodes for the mean, over all axes except channels, of the exact result minus the quantized one."""
    from onnx import helper, numpy_helper

    start, result = _OWN + pair.name, pair.exact.output[0]
    axes = numpy_helper.from_array(np.asarray([0, *range(2, rank)], np.int64))
    return [
        helper.make_node("Constant", [], [f"{start}/axes"], value=axes),
        helper.make_node("Sub", [result, _OWN + result], [f"{start}/apart"]),
        helper.make_node("ReduceMean", [f"{start}/apart", f"{start}/axes"], [f"{start}/moved"], keepdims=0),
    ]


def _runner(model: onnx.ModelProto, path: Path) -> Any:
    """Return a function that maps a run's inputs to all outputs; ONNX Runtime's fusions are disabled."""
    import onnxruntime

    save_model(model, path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL

    def run(inputs: Mapping[str, Array]) -> list[Array]:
        try:
            return list(session.run(None, dict(inputs)))
        except Exception as error:  # ONNX Runtime raises a different class for each kind of failure
            raise _refused(error) from None

    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _refused(error) from None
    return run


def _refused(error: Exception) -> QuantizeError:
    return QuantizeError(f"ONNX Runtime cannot run the quantized model: {str(error).strip().splitlines()[0]}")
