"""Data-dependent output sizes and shape tensors, neither of which TensorRT-RTX builds here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.gpu.language import decoder
from tests.gpu.place import SIMULATED, Place
from tests.simulated_tensorrt.plans import PlannedNetwork
from tests.support.decoders import rtx
from trtkit.network.input_spec import ProfileShapes
from trtkit.reference import Executor, LayerGraph, Options, read_layers
from trtkit.runtime.loaded_engine import EngineExecution

if TYPE_CHECKING:
    from collections.abc import Mapping
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


class Copies(TorchDispatchMode):
    """Notes what is copied between devices."""

    def __init__(self) -> None:
        super().__init__()
        self.between: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if isinstance(result, torch.Tensor):
            others = {str(each.device) for each in tensors} - {str(result.device)}
            self.between += [f"{func}: {each} to {result.device}, {list(result.shape)}" for each in others]
        return result


def copies_of_a_run(layers: LayerGraph, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Run layers on torch's device for shapes; return what was copied between it and the host."""
    executor = Executor(layers, Options(device="meta", in_place_caches=True))
    types = {spec.name: getattr(torch, spec.dtype.torch) for spec in executor.inputs}
    inputs = {name: torch.empty(shapes[name], dtype=dtype, device="meta") for name, dtype in types.items()}
    with Copies() as copies:
        executor.run(inputs)
    return copies.between


def test_at_known_shapes_nothing_is_copied_to_a_device() -> None:
    builder = TRT.Builder(rtx().logger("ERROR"))
    network = rtx().new_network(builder)
    x = network.add_input("x", TRT.DataType.INT64, (-1,))
    ramp = network.add_fill((1,), TRT.FillOperation.LINSPACE, TRT.DataType.INT64)
    start, step = network.add_constant((), np.array(0)), network.add_constant((1,), np.array([1]))
    for index, layer in enumerate((network.add_shape(x), start, step)):
        ramp.set_input(index, layer.get_output(0))
    total = network.add_elementwise(x, ramp.get_output(0), TRT.ElementWiseOperation.SUM)
    network.mark_output(total.get_output(0))
    layers = read_layers(rtx(), network)
    assert copies_of_a_run(layers, {"x": (5,)}) == ["aten.to.dtype_layout: cpu to meta, [5]"]
    known = PlannedNetwork(layers, ()).at({"x": (5,)})
    assert copies_of_a_run(known, {"x": (5,)}) == []
    (sums,) = Executor(known).run({"x": torch.arange(5)}).values()
    assert sums.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("kv_window", ["full", "used"])
def test_a_decoder_on_a_device_copies_nothing_from_or_to_the_host(
    kv_window: str, gpu: Simulated, tmp_path: Path
) -> None:
    place = Place(SIMULATED, gpu.device, rtx(), tmp_path, gpu)
    bundle = decoder(place, "tiny", "fp16", kv_window)[1]
    layers = bundle.layers()
    assert layers is not None
    for profile in bundle.manifest.stages[-1].profiles:
        shapes = {spec.name: spec.shape or () for spec in map(layers.spec, layers.inputs)}
        shapes |= {name: shape.opt for name, shape in profile.items()}
        planned = PlannedNetwork(layers, ())
        known = planned.at(shapes)
        assert copies_of_a_run(known, shapes) == []
        # the sizes of a run on zeros are those of a run without values
        assert planned.output_shapes(shapes) == {spec.name: spec.shape for spec in map(known.spec, known.outputs)}
