"""The ways in which a custom op is computed without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from trtkit.dtypes import FP8, FP32
from trtkit.errors import BuildError, NetworkError, SourceError
from trtkit.network.aot import load_kernels
from trtkit.network.custom_op import DOMAIN, attribute_values
from trtkit.network.graph import Graph, Tensor
from trtkit.network.host_array import array_dtype
from trtkit.network.lowering.trt_ops import TrtOps
from trtkit.network.onnx.function import function_of
from trtkit.reference import Executor, read_layers, to_array, to_tensor

if TYPE_CHECKING:
    from trtkit.arrays import Array
    from trtkit.backends import Backend
    from trtkit.network.foreign import Fact
    from trtkit.verification.custom_ops.trial import Trial

OPSET = 20
"""That of the models made here."""


def native_in_onnx_runtime(trial: Trial) -> list[Array] | None:
    """Compute by ONNX Runtime's own node; None if it has none, or not for this type."""
    native = trial.case.native
    if native is None:
        return None
    names = {port.name: f"x{index}" for index, port in enumerate(trial.op.inputs) if trial.inputs[index] is not None}
    inputs = [names.get(name, "") for name in native.inputs]
    outputs = [f"y{index}" for index in range(len(trial.outputs))]
    node = helper.make_node(native.op_type, inputs, outputs, domain=native.domain, **native.attributes)
    try:
        return run_onnx(trial, model_of(trial, node))
    except SourceError:
        if trial.dtype == FP32:
            raise
        return None


def function_in_onnx_runtime(trial: Trial, form: str) -> list[Array]:
    """Compute by the op's function in ONNX Runtime."""
    return run_onnx(trial, function_model(trial, form))


@dataclass(frozen=True, eq=False)
class Parsed:
    """A function as TensorRT's parser understood it. parser: holds memory of the network."""

    backend: Backend
    builder: Any
    network: Any
    parser: Any


def parsed_function(backend: Backend, trial: Trial, form: str) -> Parsed:
    """Parse the op's function by TensorRT. Raises NetworkError with its words."""
    logger = backend.logger("ERROR")
    builder = backend.trt.Builder(logger)
    network = backend.new_network(builder)
    parser = backend.trt.OnnxParser(network, logger)
    if not parser.parse(function_model(trial, form).SerializeToString()):
        raise NetworkError(f"TensorRT cannot parse the function: {parser.get_error(0).desc()}", trial.op.name)
    return Parsed(backend, builder, network, parser)


def function_in_tensorrt(backend: Backend, trial: Trial, form: str) -> tuple[list[Array], int]:
    """Compute the op's function, parsed by TensorRT, by the reference executor; and count its layers."""
    parsed = parsed_function(backend, trial, form)
    return _executed(Executor(read_layers(backend, parsed.network)), trial), int(parsed.network.num_layers)


def network_of(backend: Backend, trial: Trial, form: str) -> Graph:
    """Write the op's lowering with the network API."""
    graph = Graph(backend)
    inputs: list[Tensor | None] = [
        None if fact is None else graph.input(f"x{index}", fact.dtype, fact.shape)
        for index, fact in enumerate(trial.facts)
    ]
    outputs = trial.op.lower(TrtOps(graph), inputs, trial.case.attributes, form)
    for index, tensor in enumerate(outputs):
        graph.output(tensor, f"y{index}")
    return graph


def run_network(graph: Graph, trial: Trial) -> list[Array]:
    """Compute a lowering by the reference executor."""
    return _executed(Executor(read_layers(graph.backend, graph.network, graph.constants)), trial)


def interpreted_kernel(trial: Trial) -> list[Array]:
    """Compute by the op's kernel under Triton's interpreter."""
    inputs = [None if x is None else to_tensor(x, f"x{index}") for index, x in enumerate(trial.inputs)]
    outputs = load_kernels(trial.op, interpreted=True).launch(inputs, trial.case.attributes)
    return [to_array(tensor) for tensor in outputs]


def build(graph: Graph | Parsed, trial: Trial, compute_capability: int | None = None) -> int:
    """Build a lowering by TensorRT and return the engine's size in bytes. Raises BuildError."""
    trt, builder = graph.backend.trt, graph.builder
    config = builder.create_builder_config()
    if compute_capability is not None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, f"SM{compute_capability}"), 0)
    if trial.case.dynamic:
        profile = builder.create_optimization_profile()
        for name, x in trial.named().items():
            profile.set_shape(name, x.shape, x.shape, x.shape)
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(graph.network, config)
    if plan is None:
        raise BuildError("TensorRT cannot build the lowering", trial.op.name)
    return int(plan.nbytes)


def function_model(trial: Trial, form: str) -> onnx.ModelProto:
    """Return a model of one node `trtkit::Op` with its function."""
    op = trial.op
    function = function_of(op, op.name, trial.facts, trial.case.attributes, OPSET, form)
    outputs = [f"y{index}" for index in range(len(op.outputs))]
    attributes = attribute_values(trial.case.attributes)
    node = helper.make_node(op.name, list(trial.named()), outputs, domain=DOMAIN, **attributes)
    model = model_of(trial, node)
    model.functions.append(function)
    return model


def model_of(trial: Trial, node: onnx.NodeProto) -> onnx.ModelProto:
    """Return a model of one node between the trial's inputs and outputs."""
    inputs = [_value_info(f"x{index}", fact) for index, fact in enumerate(trial.facts) if fact is not None]
    outputs = [_value_info(f"y{index}", fact) for index, fact in enumerate(trial.outputs)]
    graph = helper.make_graph([node], trial.op.name, inputs, outputs)
    imports = {"": OPSET, node.domain: 1} if node.domain else {"": OPSET}
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_onnx(trial: Trial, model: onnx.ModelProto) -> list[Array]:
    """Run a model in ONNX Runtime. Raises SourceError where it refuses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise SourceError(f"ONNX Runtime cannot load the model: {error}", trial.op.name) from None
    outputs: list[np.ndarray[Any, Any]] = session.run(None, {name: _feed(x) for name, x in trial.named().items()})
    return outputs


def _feed(x: Array) -> object:
    """Return an input as ONNX Runtime takes it: fp8 by its bits, since NumPy has no such type."""
    import onnxruntime

    if array_dtype(x) != FP8:
        return x
    bits, kind = x.view(np.uint8), onnx.TensorProto.FLOAT8E4M3FN
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)


def _executed(executor: Executor, trial: Trial) -> list[Array]:
    return [to_array(tensor) for tensor in executor.run(trial.named()).values()]


def _value_info(name: str, fact: Fact) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.DataType.Value(fact.dtype.onnx)
    return helper.make_tensor_value_info(name, kind, [size if size >= 0 else None for size in fact.shape])
