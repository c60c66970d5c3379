"""Comparison of every implementation of a custom op with its reference: trials, GPU-free executors and outcomes."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper

from trtkit.dtypes import FP8, FP32, DType, dtype_of
from trtkit.errors import BuildError, NetworkError, SourceError, TrtkitError
from trtkit.network.aot import load_kernels
from trtkit.network.custom_op import DOMAIN, attribute_values
from trtkit.network.foreign import Fact
from trtkit.network.graph import Graph, Tensor
from trtkit.network.host_array import array_dtype
from trtkit.network.lowering.trt_ops import TrtOps
from trtkit.network.onnx.function import function_of
from trtkit.reference import Executor, read_layers, to_array, to_tensor
from trtkit.verification.compare import compare, worst
from trtkit.verification.report import Comparison

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.arrays import Array
    from trtkit.backends import Backend
    from trtkit.network.custom_op import Case, CustomOp, Port

ONNX_RUNTIME, FUNCTION, PARSED, NETWORK, KERNEL = (
    "ONNX Runtime's own",
    "function in ONNX Runtime",
    "function in TensorRT",
    "network API",
    "kernel, interpreted",
)
ROUTES = (ONNX_RUNTIME, FUNCTION, PARSED, NETWORK, KERNEL)


@dataclass(frozen=True)
class Outcome:
    """Result of one implementation in one trial.

    form: of the lowering, "" if there is only one. layers: number of layers of the TensorRT network, 0 if there is
    none. relative_rms_error: infinite if values or shapes are wrong. problem: description of a failure.
    """

    op: str
    case: str
    dtype: str
    route: str
    form: str
    relative_rms_error: float
    tolerance: float
    layers: int = 0
    problem: str = ""

    @property
    def is_within(self) -> bool:
        """Whether the error is within tolerance."""
        return self.relative_rms_error <= self.tolerance


def outcomes(backend: Backend, trial: Trial) -> Iterator[Outcome]:
    """Yield the outcome of every implementation that can compute the trial; a failing one reports its problem."""
    yield from _present(_tried(trial, ONNX_RUNTIME, "", lambda: (native_in_onnx_runtime(trial), 0)))
    for form in trial.forms:
        yield from _forms(backend, trial, form)
    if trial.op.has_part("kernel") and importlib.util.find_spec("triton") is not None:
        yield from _present(_tried(trial, KERNEL, "", lambda: (interpreted_kernel(trial), 0)))


def _forms(backend: Backend, trial: Trial, form: str) -> Iterator[Outcome]:
    """Yield the outcomes of one lowering.

    As a function in ONNX Runtime and in TensorRT, and through the network API.
    """

    def network() -> tuple[list[Array], int]:
        graph = network_of(backend, trial, form)
        return run_network(graph, trial), graph.network.num_layers

    ways: list[tuple[str, Computation]] = [
        (FUNCTION, lambda: (function_in_onnx_runtime(trial, form), 0)),
        (PARSED, lambda: function_in_tensorrt(backend, trial, form)),
        (NETWORK, network),
    ]
    for route, compute in ways:
        yield from _present(_tried(trial, route, form, compute))


def _present(outcome: Outcome | None) -> Iterator[Outcome]:
    if outcome is not None:
        yield outcome


def _tried(trial: Trial, route: str, form: str, compute: Computation) -> Outcome | None:
    """Return an implementation's outcome, with outputs and layers compared; None if it gives no answer."""
    try:
        outputs, layers = compute()
    except TrtkitError as error:
        return _outcome(trial, route, form, Comparison(math.inf, math.inf, math.inf, 0.0, str(error)))
    return None if outputs is None else _outcome(trial, route, form, trial.compare(outputs), layers)


def _outcome(trial: Trial, route: str, form: str, comparison: Comparison, layers: int = 0) -> Outcome:
    names = (trial.op.name, trial.case.name, trial.dtype.name, route, form)
    return Outcome(*names, comparison.relative_rms_error, trial.dtype.tolerance, layers, comparison.problem)


Computation = Callable[[], tuple["list[Array] | None", int]]


@dataclass(frozen=True)
class Trial:
    """The inputs of a trial. dtype: fp32 or fp16, for the inputs that may have it."""

    op: CustomOp
    case: Case
    dtype: DType

    @cached_property
    def inputs(self) -> list[Array | None]:
        """The inputs, at least one per port."""
        arrays = self.op.complete(list(self.case.make(np.random.default_rng(0))))
        return [None if x is None else self._cast(self.port(index), x) for index, x in enumerate(arrays)]

    @cached_property
    def expected(self) -> list[Array]:
        """The reference's outputs, computed in fp64 from the inputs as rounded to `dtype`."""
        inputs = [None if x is None else to_tensor(_widened(x), f"x{index}") for index, x in enumerate(self.inputs)]
        outputs = self.op.part("reference").reference(inputs, self.case.attributes)
        return [tensor.numpy() for tensor in outputs]

    @cached_property
    def facts(self) -> list[Fact | None]:
        """Facts about the inputs that are known before the network runs."""
        return [
            None if x is None else Fact(array_dtype(x), self._known(index, x)) for index, x in enumerate(self.inputs)
        ]

    @cached_property
    def outputs(self) -> list[Fact]:
        """Facts about the outputs, as the op declares them."""
        return self.op.check(self.facts, self.case.attributes)

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms that can compute the case."""
        return self.case.forms or self.op.forms

    def port(self, index: int) -> Port:
        """Return the port of an input."""
        return self.op.inputs[min(index, len(self.op.inputs) - 1)]

    def __str__(self) -> str:
        return f"{self.case.name}, {self.dtype}"

    def named(self) -> dict[str, Array]:
        """Return the inputs that are present, by name."""
        return {f"x{index}": x for index, x in enumerate(self.inputs) if x is not None}

    def compare(self, outputs: Sequence[Array]) -> Comparison:
        """Compare an implementation's outputs with the reference's and return the worst comparison."""
        return worst([compare(have, want) for have, want in zip(outputs, self.expected, strict=True)])

    def _cast(self, port: Port, x: Array) -> Array:
        is_cast = self.dtype in port.types and port.name not in self.case.keeps_fp32 and x.dtype == np.float32
        return np.ascontiguousarray(x.astype(self.dtype.numpy) if is_cast else x)

    def _known(self, index: int, x: Array) -> tuple[int, ...]:
        words = self.port(index).dims.split()
        return tuple(-1 if word in self.case.dynamic else size for word, size in zip(words, x.shape, strict=True))


def trials(op: CustomOp, dtypes: Sequence[str] = ("fp32", "fp16")) -> list[Trial]:
    """Return the trials of an op."""
    return [Trial(op, case, dtype_of(dtype)) for case in op.part("cases").CASES for dtype in dtypes]


def _widened(x: Array) -> Array:
    return x.astype(np.float64) if array_dtype(x).is_float else x


OPSET = 20
"""Opset of the models made here."""


def native_in_onnx_runtime(trial: Trial) -> list[Array] | None:
    """Compute with ONNX Runtime's own node; None if it has none, or none for this type."""
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
    """Compute the op's function in ONNX Runtime."""
    return run_onnx(trial, function_model(trial, form))


@dataclass(frozen=True, eq=False)
class Parsed:
    """A function as TensorRT's parser read it. parser: owns memory that the network uses."""

    backend: Backend
    builder: Any
    network: Any
    parser: Any


def parsed_function(backend: Backend, trial: Trial, form: str) -> Parsed:
    """Parse the op's function with TensorRT. Raises NetworkError with the parser's message."""
    logger = backend.logger("ERROR")
    builder = backend.trt.Builder(logger)
    network = backend.new_network(builder)
    parser = backend.trt.OnnxParser(network, logger)
    if not parser.parse(function_model(trial, form).SerializeToString()):
        raise NetworkError(f"TensorRT cannot parse the function: {parser.get_error(0).desc()}", trial.op.name)
    return Parsed(backend, builder, network, parser)


def function_in_tensorrt(backend: Backend, trial: Trial, form: str) -> tuple[list[Array], int]:
    """Parse the op's function with TensorRT, compute it with the reference executor, and count its layers."""
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
    """Compute a lowering with the reference executor."""
    return _executed(Executor(read_layers(graph.backend, graph.network, graph.constants)), trial)


def interpreted_kernel(trial: Trial) -> list[Array]:
    """Compute with the op's kernel under Triton's interpreter."""
    inputs = [None if x is None else to_tensor(x, f"x{index}") for index, x in enumerate(trial.inputs)]
    outputs = load_kernels(trial.op, interpreted=True).launch(inputs, trial.case.attributes)
    return [to_array(tensor) for tensor in outputs]


def build(graph: Graph | Parsed, trial: Trial, compute_capability: int | None = None) -> int:
    """Build a lowering with TensorRT and return the engine's size in bytes. Raises BuildError."""
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
    """Return a model with a single node `trtkit::Op` and its function."""
    op = trial.op
    function = function_of(op, op.name, trial.facts, trial.case.attributes, OPSET, form)
    outputs = [f"y{index}" for index in range(len(op.outputs))]
    attributes = attribute_values(trial.case.attributes)
    node = helper.make_node(op.name, list(trial.named()), outputs, domain=DOMAIN, **attributes)
    model = model_of(trial, node)
    model.functions.append(function)
    return model


def model_of(trial: Trial, node: onnx.NodeProto) -> onnx.ModelProto:
    """Return a model with a single node between the trial's inputs and outputs."""
    inputs = [_value_info(f"x{index}", fact) for index, fact in enumerate(trial.facts) if fact is not None]
    outputs = [_value_info(f"y{index}", fact) for index, fact in enumerate(trial.outputs)]
    graph = helper.make_graph([node], trial.op.name, inputs, outputs)
    imports = {"": OPSET, node.domain: 1} if node.domain else {"": OPSET}
    opsets = [helper.make_opsetid(domain, version) for domain, version in imports.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_onnx(trial: Trial, model: onnx.ModelProto) -> list[Array]:
    """Run a model in ONNX Runtime. Raises SourceError if ONNX Runtime refuses it."""
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
    """Return an input in the form that ONNX Runtime accepts: fp8 as raw bits, since NumPy lacks such a type."""
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
