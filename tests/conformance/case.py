"""Take one ONNX node case through rewrites, parse, build, execute and compare."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from trtkit.errors import TrtkitError
from trtkit.network.onnx import custom_ops, rewrites
from trtkit.reference import Executor, Options, read_layers, to_array, to_tensor

from .known import known_cause

if TYPE_CHECKING:
    from trtkit.backends import Backend

RANDOM_OPS = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
NEARER = "16-bit rounding: the executor is nearer to the fp64 result than the case's expected output"
NOISE = ("cudaError 35", "CUDA initialization failure", "CUDA driver version")


@dataclass(frozen=True)
class Outcome:
    """How far a case came. cause: why it did not come further, empty where it matched.

    rewrites: what was rewritten before it was parsed. has_constants: vectors and scalars were given as constants.
    """

    name: str
    op: str
    parsed: bool = False
    built: bool = False
    executed: bool = False
    matched: bool = False
    cause: str = ""
    rewrites: str = ""
    has_constants: bool = False


@dataclass(frozen=True)
class Prepared:
    """A case with another model: rewritten, with constants in place of inputs."""

    name: str
    model: Any
    original: Any
    data_sets: Any
    rtol: float
    atol: float
    rewrites: str = ""


def run_case(backend: Backend, case: Any) -> Outcome:
    """Run a case as it is; where that does not build and match, with small inputs as constants, as models have them."""
    first = _run(backend, rewritten(case, case.model))
    if first.built and first.matched:
        return first
    frozen = with_constants(case)
    if frozen is None:
        return first
    second = replace(_run(backend, rewritten(case, frozen)), has_constants=True)
    return second if (second.built, second.matched) > (first.built, first.matched) else first


def with_constants(case: Any) -> Any:
    """Return the model with its vectors and scalars, but the first input, as constants: sizes, axes, thresholds.

    None where there are none. A graph whose branches read them keeps them: it may name them otherwise.
    """
    model = type(case.model)()
    model.CopyFrom(case.model)
    values = dict(zip([item.name for item in model.graph.input], case.data_sets[0][0], strict=False))
    chosen = [
        item
        for item in model.graph.input[1:]
        if item.type.HasField("tensor_type") and np.ndim(_array(values.get(item.name, np.zeros((1, 1))))) < 2
    ]
    for item in chosen:
        model.graph.input.remove(item)
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(_array(values[item.name])), item.name))
    return model if chosen else None


def rewritten(case: Any, model: Any) -> Prepared:
    """Return the case with what trtkit makes of its model; the model itself where that is refused."""
    details = []
    try:
        for step in (rewrites.rewrite, custom_ops.lower):
            model, detail = step(model)
            details += [detail] if detail != "none" else []
    except TrtkitError as error:
        details = [f"refused: {error}"]
    return Prepared(case.name, model, case.model, case.data_sets, case.rtol, case.atol, ", ".join(details))


def _run(backend: Backend, case: Prepared) -> Outcome:
    """Parse, build and execute a case, and compare with its expected outputs at its own tolerance."""
    return replace(_outcome(backend, case), rewrites=case.rewrites)


def _outcome(backend: Backend, case: Prepared) -> Outcome:
    op = case.original.graph.node[-1].op_type
    log = log_of(backend)
    trt = backend.trt
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    if not parser.parse(case.model.SerializeToString()):
        error = parser.get_error(0) if parser.num_errors else None
        return Outcome(case.name, op, cause=_short(error.desc() if error else "parse failed"))
    log.errors.clear()
    inputs = inputs_of(case, network)
    extra = [name for name in _input_names(network) if name not in inputs]
    if extra:
        return Outcome(case.name, op, True, cause=known_cause(case.name) or f"unexpected inputs {extra}")
    refused = _build(backend, builder, (network, log), inputs)
    layers = read_layers(backend, network)
    try:
        outputs = Executor(layers).run(inputs)
        fast = Executor(layers, Options(is_fast=True)).run(inputs)
    except TrtkitError as error:
        return Outcome(case.name, op, True, not refused, cause=_short(error.what))
    cause = mismatch(case, list(outputs.values())) or mismatch(case, list(fast.values()))
    if cause:
        known = "random values" if _is_random(case) else known_cause(case.name)
        cause = known or _rounding_cause(backend, network, case, inputs) or cause
    return Outcome(case.name, op, True, not refused, True, not cause, cause or refused)


def is_explained(outcome: Outcome) -> bool:
    """Whether the reason why a case differs is known."""
    return outcome.cause in ("random values", NEARER) or bool(known_cause(outcome.name))


def _is_random(case: Any) -> bool:
    """Whether the case draws random values."""
    return any(node.op_type in RANDOM_OPS for node in case.original.graph.node)


def log_of(backend: Backend) -> Any:
    """Return a TensorRT logger that keeps error lines."""

    class Log(backend.trt.ILogger):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity <= backend.trt.ILogger.ERROR and not any(part in message for part in NOISE):
                self.errors.append(message)

    return Log()


def _input_names(network: Any) -> list[str]:
    """Return the network's input names."""
    return [network.get_input(index).name for index in range(network.num_inputs)]


def inputs_of(case: Any, network: Any) -> dict[str, Any]:
    """Return the case's inputs by name."""
    names = [item.name for item in case.original.graph.input]
    values = dict(zip(names, case.data_sets[0][0], strict=False))
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    return {item.name: _as_parsed(_array(values[item.name]), item) for item in tensors if item.name in values}


def _as_parsed(value: Any, tensor: Any) -> Any:
    """Return a value in the input's type: the parser makes fp32 of float64."""
    is_double = isinstance(value, np.ndarray) and value.dtype == np.float64
    return value.astype(np.float32) if is_double and tensor.dtype.name == "FLOAT" else value


def _array(value: Any) -> Any:
    """Return a case's value as an array."""
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _build(backend: Backend, builder: Any, parsed: tuple[Any, Any], inputs: dict[str, Any]) -> str:
    """Build the network for exactly these inputs; return why it was refused, empty where it was not."""
    network, log = parsed
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    has_profile = False
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        value = np.asarray(inputs[tensor.name])
        if tensor.is_shape_tensor:
            profile.set_shape_input(tensor.name, *[value.reshape(-1).tolist()] * 3)
            has_profile = True
        if -1 in tuple(tensor.shape):
            profile.set_shape(tensor.name, *[value.shape] * 3)
            has_profile = True
    if has_profile:
        config.add_optimization_profile(profile)
    for index in range(network.num_layers):
        layer = backend.typed(network.get_layer(index))
        if hasattr(layer, "attention"):
            layer.attention.decomposable = True
    plan = builder.build_serialized_network(network, config)
    return "" if plan is not None else _short(log.errors[0] if log.errors else "build failed without a message")


def mismatch(case: Any, outputs: list[Any]) -> str:
    """Return how the outputs differ from the expected ones, empty where they agree."""
    for index, (value, want) in enumerate(zip(outputs, case.data_sets[0][1], strict=False)):
        got, wanted = to_array(value), to_array(to_tensor(_array(want), "expected"))
        if "from NonMaxSuppression" in case.rewrites:
            got = _without_padding(got, len(wanted))
        if got.shape != wanted.shape:
            return f"output {index}: shape {list(got.shape)}, expected {list(wanted.shape)}"
        got, wanted = got.astype(np.float64), wanted.astype(np.float64)
        if not np.allclose(got, wanted, rtol=case.rtol, atol=case.atol, equal_nan=True):
            return f"output {index}: differs by {np.nanmax(np.abs(got - wanted)):.3g}"
    return ""


def _without_padding(rows: Any, count: int) -> Any:
    """Return the rows of boxes; all that follow are -1."""
    return rows[:count] if np.all(rows[count:] == -1) else rows


def _rounding_cause(backend: Backend, network: Any, case: Any, inputs: dict[str, Any]) -> str:
    """Return that the executor is nearer to the fp64 result than the case is, empty where it is not.

    Only asked of 16-bit outputs: cases round after every step of their own order, with a tolerance made for fp32.
    """
    own = list(Executor(read_layers(backend, network)).run(inputs).values())
    exact = list(Executor(read_layers(backend, network), Options(widen="fp64")).run(inputs).values())
    expected = [to_array(to_tensor(_array(want), "expected")) for want in case.data_sets[0][1]]
    for value, truth, want in zip(own, exact, expected, strict=False):
        if value.dtype.itemsize != 2 or value.shape != want.shape:
            return ""
        ours, theirs = (np.linalg.norm(item - to_array(truth)) for item in (to_array(value), want))
        if not ours <= theirs < 0.01 * np.linalg.norm(want):
            return ""
    return NEARER


def _short(message: str) -> str:
    """Return the part of a message that says why, without addresses and generated names."""
    line = " ".join(message.split())
    line = re.sub(r"^.*?Error Code \d+: ", "", line)
    line = re.sub(r" In \w+ at /\S+:\d+\)?", "", line)
    line = re.sub(r"node_of_\S+", "node", line)
    return line[:200]
