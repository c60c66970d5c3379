"""Run the implementations of a custom op and say how far each is from the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.verify.custom_ops import routes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.backends import Backend
    from trtkit.verify.custom_ops.trial import Array, Trial

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
    """How one implementation did in one trial.

    form: of the lowering, "" where there is only one. layers: of the TensorRT network, 0 where there is none.
    relative_rms_error: infinite where values or shapes are wrong. problem: in words.
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
    """Yield the outcome of every implementation that can compute the trial."""
    own = routes.native_in_onnx_runtime(trial)
    if own is not None:
        yield _outcome(trial, (ONNX_RUNTIME, ""), own)
    for form in trial.forms:
        yield _outcome(trial, (FUNCTION, form), routes.function_in_onnx_runtime(trial, form))
        parsed, layers = routes.function_in_tensorrt(backend, trial, form)
        yield _outcome(trial, (PARSED, form), parsed, layers)
        graph = routes.network_of(backend, trial, form)
        yield _outcome(trial, (NETWORK, form), routes.run_network(graph, trial), graph.network.num_layers)
    if trial.op.has_part("kernel"):
        yield _outcome(trial, (KERNEL, ""), routes.interpreted_kernel(trial))


def _outcome(trial: Trial, way: tuple[str, str], outputs: list[Array], layers: int = 0) -> Outcome:
    found = trial.compare(outputs)
    return Outcome(
        trial.op.name,
        trial.case.name,
        trial.dtype.name,
        *way,
        found.relative_rms_error,
        trial.dtype.tolerance,
        layers,
        found.problem,
    )
