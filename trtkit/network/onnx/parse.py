"""Parse an ONNX file into an `INetworkDefinition`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.errors import NetworkError, Problem, UnsupportedOperatorsError
from trtkit.network.trt_errors import reason_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.backends import Backend


@dataclass(frozen=True, eq=False)
class Network:
    """A network with all that must live as long as it: TensorRT frees nothing that is still named here."""

    definition: Any
    builder: Any
    parser: Any
    logger: Any


def parse_onnx(backend: Backend, path: Path, severity: str = "WARNING") -> Network:
    """Parse `path` into a new, strongly typed network.

    Raises UnsupportedOperatorsError with every fault that the parser reports in one pass.
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
        return  # nodes folded away or repeated by a loop: nothing to pair them by
    for layer, (node, mode) in zip(samples, expected, strict=True):
        parsed = layer.interpolation_mode.name.lower()
        if parsed != mode:
            raise NetworkError(
                f"TensorRT parsed mode `{mode}` as `{parsed}`", f"GridSample `{node}`", "export with opset 16 to 19"
            )


def _problem(error: Any) -> Problem:
    """Put one parser error into words: node, operator, reason."""
    name = error.node_name() or f"node {error.node()}"
    return Problem(reason_of(error), f"{error.node_operator() or 'model'} `{name}`")
