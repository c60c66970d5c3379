"""Outputs whose sizes follow from data, and inputs that sizes are worked out from: TensorRT-RTX builds neither here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.decoders import rtx
from tests.simulated_tensorrt.plans import PlannedNetwork
from trtkit.network.profile import ProfileShapes
from trtkit.reference import read_layers
from trtkit.runtime.engine_execution import EngineExecution

if TYPE_CHECKING:
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated

TRT = rtx().trt


def opened(network: Any, profile: dict[str, ProfileShapes], gpu: Simulated, folder: Path) -> EngineExecution:
    """Return the network as an engine with CUDA graphs, which it cannot have."""
    (folder / "x.plan").write_bytes(b"a plan")
    gpu.plans.add_network(b"a plan", PlannedNetwork(read_layers(rtx(), network), (profile,)))
    return EngineExecution(rtx(), folder / "x.plan", gpu.device.stream(), has_cuda_graphs=True)


@pytest.mark.parametrize("count", [0, 1, 5, 12])
def test_places_that_are_not_zero(count: int, gpu: Simulated, tmp_path: Path) -> None:
    builder = TRT.Builder(rtx().logger("ERROR"))
    network = rtx().new_network(builder)
    x = network.add_input("x", TRT.DataType.FLOAT, (-1, 4))
    places = network.add_non_zero(x, TRT.DataType.INT64).get_output(0)
    places.name = "places"
    network.mark_output(places)
    engine = opened(network, {"x": ProfileShapes((1, 4), (3, 4), (8, 4))}, gpu, tmp_path)
    values = np.zeros(12, np.float32)
    values[:count] = 1
    values = np.random.default_rng(count).permutation(values).reshape(3, 4)
    for _ in range(2):  # each time into memory of its own
        assert np.array_equal(engine.run({"x": values})["places"].numpy(), np.stack(values.nonzero()))


def test_a_shape_is_read_on_the_host(gpu: Simulated, tmp_path: Path) -> None:
    builder = TRT.Builder(rtx().logger("ERROR"))
    network = rtx().new_network(builder)
    x = network.add_input("x", TRT.DataType.FLOAT, (-1,))
    shape = network.add_input("shape", TRT.DataType.INT64, (2,))
    layer = network.add_shuffle(x)
    layer.set_input(1, shape)
    layer.get_output(0).name = "y"
    network.mark_output(layer.get_output(0))
    engine = opened(network, {"x": ProfileShapes((1,), (6,), (12,))}, gpu, tmp_path)
    assert gpu.runtimes[-1].engines[-1].is_shape_inference_io("shape")
    for sizes in ((2, 3), (6, 1)):
        outputs = engine.run({"x": torch.arange(6.0), "shape": torch.tensor(sizes)})
        gpu.device.streams[1].synchronize()
        assert torch.equal(outputs["y"], torch.arange(6.0).view(sizes))
