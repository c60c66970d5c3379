"""Small TensorRT networks, computed by the reference executor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trtkit.backends import Backend, load_backend
from trtkit.reference import Executor, Options, read_layers

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

torch.set_num_threads(1)


@dataclass
class Net:
    """A network under construction. feed: values of the inputs created with `given`."""

    backend: Backend
    network: Any
    builder: Any
    feed: dict[str, Any] = field(default_factory=dict)
    held: list[Any] = field(default_factory=list)

    @property
    def trt(self) -> Any:
        return self.backend.trt

    def given(self, value: Any, shape: tuple[int, ...] | None = None) -> Any:
        """Add an input that is fed with an array or tensor. shape: with -1 for dynamic sizes."""
        name = f"input{len(self.feed)}"
        self.feed[name] = value
        names = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}
        dtype = str(value.dtype).removeprefix("torch.")
        trt_type = getattr(self.trt.DataType, names.get(dtype, dtype.upper()))
        return self.network.add_input(name, trt_type, shape or tuple(value.shape))

    def constant(self, value: Any) -> Any:
        """Add a constant."""
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        self.held.append(array)
        return self.network.add_constant(array.shape, self.trt.Weights(array)).get_output(0)

    def opaque(self, raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """Add a constant of a type that NumPy lacks, from raw bytes."""
        self.held.append(raw)
        weights = self.trt.Weights(getattr(self.trt.DataType, dtype), raw.ctypes.data, int(np.prod(shape)))
        return self.network.add_constant(shape, weights).get_output(0)

    def executor(self, *outputs: Any, constants: Any = None, **options: Any) -> Executor:
        """Mark outputs and compile."""
        for tensor in outputs:
            self.network.mark_output(tensor)
        return Executor(read_layers(self.backend, self.network, constants), Options(**options))

    def run(self, *outputs: Any, **options: Any) -> Any:
        """Return one output or a list of them, computed layer by layer; checks that the fast path agrees."""
        plain = self.executor(*outputs, **options)
        tensors = list(plain.run(self.feed).values())
        if not options.get("in_place_caches") and plain.layers.inputs:
            fast = Executor(plain.layers, Options(is_fast=True, **options))
            for name, tensor in fast.run(self.feed).items():
                assert_same(tensor, tensors[plain.output_names.index(name)])
        return tensors[0] if len(tensors) == 1 else tensors


def assert_same(got: torch.Tensor, want: torch.Tensor) -> None:
    """Assert that two tensors differ by at most one rounding of their type; fp32 sums may differ in order."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if not want.is_floating_point() or want.dtype.itemsize == 1:
        assert torch.equal(got, want)
        return
    tolerance = max(torch.finfo(want.dtype).eps, 1e-6)
    largest = want[torch.isfinite(want)].abs().max().item() if torch.isfinite(want).any() else 0.0
    assert_close(got, want, rtol=tolerance, atol=tolerance * largest, equal_nan=True)


@pytest.fixture(scope="session")
def backend() -> Backend:
    return load_backend("tensorrt_rtx")


@pytest.fixture(scope="session")
def logger(backend: Backend) -> Any:
    return backend.logger("ERROR")


@pytest.fixture
def net(backend: Backend, logger: Any) -> Net:
    builder = backend.trt.Builder(logger)
    return Net(backend, builder.create_network(0), builder)


@pytest.fixture
def parse(backend: Backend, logger: Any) -> Callable[[onnx.ModelProto], Any]:
    """Parse an ONNX model into a network."""

    def parse(model: onnx.ModelProto) -> Any:
        network = backend.trt.Builder(logger).create_network(0)
        parser = backend.trt.OnnxParser(network, logger)
        assert parser.parse(model.SerializeToString()), parser.get_error(0).desc()
        return network

    return parse


@pytest.fixture
def random() -> Callable[..., torch.Tensor]:
    """Return seeded normal values of a shape and type."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape, dtype=torch.float32: torch.randn(shape, generator=generator).to(dtype)
