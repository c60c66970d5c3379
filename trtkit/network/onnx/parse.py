"""Parse an ONNX file into an `INetworkDefinition`, and look up weights by the names of the parser's layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.errors import NetworkError, Problem, UnsupportedOperatorsError
from trtkit.network.trt_errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnx import ModelProto, NodeProto

    from trtkit.backends import Backend


@dataclass(frozen=True, eq=False)
class Network:
    """A network with all objects that must live as long as it does: TensorRT frees none of these."""

    definition: Any
    builder: Any
    parser: Any
    logger: Any


def parse_onnx(backend: Backend, path: Path, severity: str = "WARNING") -> Network:
    """Parse `path` into a new, strongly typed network.

    Raises UnsupportedOperatorsError with every error that the parser reports in one pass.
    """
    logger = backend.logger(severity)
    builder = backend.trt.Builder(logger)
    definition = backend.new_network(builder)
    parser = backend.trt.OnnxParser(definition, logger)
    if not parser.parse_from_file(str(path)):
        faults = [_problem(parser.get_error(index)) for index in range(parser.num_errors)]
        raise UnsupportedOperatorsError("TensorRT cannot parse the model", faults or [Problem("no reason given")])
    return Network(definition, builder, parser, logger)


def check_grid_samples(backend: Backend, network: Network, expected: Sequence[tuple[str, str]]) -> None:
    """Compare the interpolation mode of every grid-sample layer with its ONNX node.

    Parsers have read opset 20's `linear` as nearest (onnx-tensorrt pull request 1060). Raises NetworkError.
    """
    layers = [network.definition.get_layer(index) for index in range(network.definition.num_layers)]
    samples = [backend.typed(layer) for layer in layers if backend.layer_type(layer) == "GRID_SAMPLE"]
    if len(samples) != len(expected):
        return  # nodes folded away or repeated by a loop cannot be matched
    for layer, (node, mode) in zip(samples, expected, strict=True):
        parsed = layer.interpolation_mode.name.lower()
        if parsed != mode:
            raise NetworkError(
                f"TensorRT parsed mode `{mode}` as `{parsed}`", f"GridSample `{node}`", "export with opset 16 to 19"
            )


def _problem(error: Any) -> Problem:
    """Convert a parser error to a problem with node, operator and reason."""
    name = error.node_name() or f"node {error.node()}"
    return Problem(reason_of(error), f"{error.node_operator() or 'model'} `{name}`")


_OPAQUE_TYPES = ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E8M0", "INT4", "FLOAT4E2M1")
_KERNEL_INPUTS = {1: "kernel", 2: "bias"}


def constants_from_onnx(model: Path | ModelProto) -> dict[str, Any]:
    """Return the bf16, fp8, int4 and fp4 weights of an ONNX model as `Options.constants`.

    The parser names a constant layer after its initializer or Constant node; kernel and bias of a convolution are
    found under the layer, which is named after the node, or `node_of_<output>` if it has no name.
    """
    import onnx

    loaded = onnx.load(str(model)) if isinstance(model, Path) else model
    tensors = {tensor.name: tensor for tensor in loaded.graph.initializer}
    for node in loaded.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            tensors[node.output[0]] = node.attribute[0].t
    opaque = {getattr(onnx.TensorProto, name) for name in _OPAQUE_TYPES}
    values = {name: onnx.numpy_helper.to_array(item) for name, item in tensors.items() if item.data_type in opaque}
    kernels = {key: values[name] for node in loaded.graph.node for key, name in _kernel_names(node) if name in values}
    return values | kernels


def _kernel_names(node: NodeProto) -> list[tuple[str, str]]:
    """Return the keys of a convolution's weights and the names of their tensors."""
    if node.op_type not in ("Conv", "ConvTranspose"):
        return []
    layer = node.name or f"node_of_{node.output[0]}"
    return [
        (f"{layer}/{_KERNEL_INPUTS[index]}", name) for index, name in enumerate(node.input) if index in _KERNEL_INPUTS
    ]
