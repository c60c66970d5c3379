"""Compute ops of the network API with the reference executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from trtkit.backends import Backend, load_backend
from trtkit.dtypes import DTYPES, DType, dtype_of
from trtkit.network.graph import Graph, Tensor
from trtkit.reference import Executor, read_layers

if TYPE_CHECKING:
    from collections.abc import Callable

torch.set_num_threads(1)
_generator = torch.Generator().manual_seed(0)


def random(*shape: int, dtype: str = "fp32") -> torch.Tensor:
    """Return normal values."""
    return torch.randn(shape, generator=_generator).to(getattr(torch, dtype_of(dtype).torch))


def evaluate(build: Callable[..., Tensor | list[Tensor]], *inputs: torch.Tensor, dynamic: bool = True) -> Any:
    """Return what `build` computes of inputs, whose first two axes are dynamic; the output's axes must be known."""
    graph = Graph(backend())
    given = [graph.input(f"x{index}", trt_dtype(x), _shape(x, dynamic)) for index, x in enumerate(inputs)]
    made = build(*given)
    outputs = made if isinstance(made, list) else [made]
    for index, tensor in enumerate(outputs):
        graph.output(tensor, f"y{index}")
    executor = Executor(read_layers(graph.backend, graph.network, graph.constants))
    values = executor.run({f"x{index}": x for index, x in enumerate(inputs)})
    for tensor, value in zip(outputs, values.values(), strict=True):
        assert all(want in (-1, have) for want, have in zip(tensor.shape, value.shape, strict=True))
        assert trt_dtype(value) == tensor.dtype
    found = list(values.values())
    return found if isinstance(made, list) else found[0]


def backend() -> Backend:
    return load_backend("tensorrt_rtx")


def trt_dtype(x: torch.Tensor) -> DType:
    return next(dtype for dtype in DTYPES.values() if f"torch.{dtype.torch}" == str(x.dtype))


def assert_close(got: torch.Tensor, want: torch.Tensor, dtype: str = "fp32") -> None:
    """Compare with the tolerance of one op in `dtype`; NaN never passes."""
    assert got.shape == want.shape
    error = torch.linalg.norm(got.double() - want.double()) / torch.linalg.norm(want.double())
    assert float(error) <= dtype_of(dtype).tolerance


def _shape(x: torch.Tensor, dynamic: bool) -> tuple[int, ...]:
    return tuple(-1 if dynamic and axis < 2 and x.dim() > 2 else size for axis, size in enumerate(x.shape))
