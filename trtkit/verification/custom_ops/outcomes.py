"""Run the implementations of a custom op and say how far each is from the reference."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import TrtkitError
from trtkit.verification.custom_ops import routes
from trtkit.verification.report import Comparison

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.arrays import Array
    from trtkit.backends import Backend
    from trtkit.verification.custom_ops.trial import Trial

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

    form: of the lowering, "" where there is only one. layers: of the TensorRT network, 0 if there is none.
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
    """Yield the outcome of every implementation that can compute the trial; one that fails says why."""
    yield from _present(_tried(trial, ONNX_RUNTIME, "", lambda: (routes.native_in_onnx_runtime(trial), 0)))
    for form in trial.forms:
        yield from _forms(backend, trial, form)
    if trial.op.has_part("kernel") and importlib.util.find_spec("triton") is not None:
        yield from _present(_tried(trial, KERNEL, "", lambda: (routes.interpreted_kernel(trial), 0)))


def _forms(backend: Backend, trial: Trial, form: str) -> Iterator[Outcome]:
    """Yield the outcomes of a lowering: as a function, there and in TensorRT, and through the network API."""

    def network() -> tuple[list[Array], int]:
        graph = routes.network_of(backend, trial, form)
        return routes.run_network(graph, trial), graph.network.num_layers

    ways: list[tuple[str, Computation]] = [
        (FUNCTION, lambda: (routes.function_in_onnx_runtime(trial, form), 0)),
        (PARSED, lambda: routes.function_in_tensorrt(backend, trial, form)),
        (NETWORK, network),
    ]
    for route, compute in ways:
        yield from _present(_tried(trial, route, form, compute))


def _present(outcome: Outcome | None) -> Iterator[Outcome]:
    if outcome is not None:
        yield outcome


def _tried(trial: Trial, route: str, form: str, compute: Computation) -> Outcome | None:
    """Return how an implementation did: outputs and layers compared; None if it has no answer to give."""
    try:
        outputs, layers = compute()
    except TrtkitError as error:
        return _outcome(trial, route, form, Comparison(math.inf, math.inf, math.inf, 0.0, str(error)))
    return None if outputs is None else _outcome(trial, route, form, trial.compare(outputs), layers)


def _outcome(trial: Trial, route: str, form: str, comparison: Comparison, layers: int = 0) -> Outcome:
    names = (trial.op.name, trial.case.name, trial.dtype.name, route, form)
    return Outcome(*names, comparison.relative_rms_error, trial.dtype.tolerance, layers, comparison.problem)


Computation = Callable[[], tuple["list[Array] | None", int]]
