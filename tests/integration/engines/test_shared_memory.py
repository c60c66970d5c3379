"""Tensors of one launch on the same memory, and tensors of size 0: rules 5a, 6a and 6b of the simulated runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.simulated_tensorrt.plans import PlannedNetwork
from tests.support.decoders import rtx
from trtkit.errors import BackendError
from trtkit.network.input_spec import ProfileShapes
from trtkit.reference import read_layers
from trtkit.runtime.loaded_engine import LoadedEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.simulated_tensorrt import Simulated
    from trtkit.runtime.host_device import HostStream

TRT = rtx().trt
CACHE = (2, 1, 8, 4)
SHAPES = {"cache": CACHE, "new": (2, 1, 1, 4)}
WRITTEN = [3, 5]
Network = tuple[Any, dict[str, ProfileShapes]]


def new_network() -> Any:
    return rtx().new_network(TRT.Builder(rtx().logger("ERROR")))


def opened(network: Network, gpu: Simulated, stream: HostStream, folder: Path) -> LoadedEngine:
    (folder / "x.plan").write_bytes(b"a plan")
    gpu.plans.add_network(b"a plan", PlannedNetwork(read_layers(rtx(), network[0]), (network[1],)))
    return LoadedEngine(rtx(), folder / "x.plan", stream)


def output(network: Any, tensor: Any, name: str) -> None:
    tensor.name = name
    network.mark_output(tensor)


def network_of(updates: int = 1) -> Network:
    """Return a network that updates caches, and sums `other` times `mask` over the last axis."""
    network = new_network()
    other, mask = (network.add_input(name, TRT.float32, CACHE) for name in ("other", "mask"))
    at = network.add_input("at", TRT.int32, (2,))
    for index in range(updates):
        cache, new = (network.add_input(f"{name}{index}", TRT.float32, shape) for name, shape in SHAPES.items())
        updated = network.add_kv_cache_update(cache, new, at, TRT.KVCacheMode.LINEAR).get_output(0)
        output(network, updated, f"updated{index}")
    product = network.add_elementwise(other, mask, TRT.ElementWiseOperation.PROD).get_output(0)
    output(network, network.add_reduce(product, TRT.ReduceOperation.SUM, 0b1000, False).get_output(0), "y")
    return network, {}


def memory_of(engine: LoadedEngine, stream: HostStream, same: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Return ones for each tensor, zeros for what is updated with. same: a tensor and the one whose memory it has."""
    memory: dict[str, torch.Tensor] = {}
    for name, tensor in {**engine.inputs, **engine.outputs}.items():
        name_of_memory = same.get(name) or tensor.aliases or name
        if name_of_memory not in memory:
            memory[name_of_memory] = stream.empty(tensor.shape, tensor.dtype)
            memory[name_of_memory].fill_(0 if name.startswith("new") else 1)
        memory[name] = memory[name_of_memory]
    memory["at"].copy_(torch.tensor(WRITTEN))
    return memory


def launched(engine: LoadedEngine, memory: Mapping[str, torch.Tensor]) -> None:
    context = engine.context(0)
    for name, tensor in engine.inputs.items():
        context.set_input(name, tensor.shape, memory[name])
    for name in engine.outputs:
        context.set_address(name, memory[name])
    context.enqueue()
    engine.stream.synchronize()


@pytest.fixture
def stream(gpu: Simulated) -> HostStream:
    return gpu.device.stream()


def test_another_input_on_a_cache_reads_anything_where_the_update_writes(
    gpu: Simulated, stream: HostStream, tmp_path: Path
) -> None:
    engine = opened(network_of(), gpu, stream, tmp_path)
    memory = memory_of(engine, stream, {"other": "cache0"})
    launched(engine, memory)
    y, rows = memory["y"], torch.arange(2)
    assert (y[rows, 0, WRITTEN] > 1e12).all()  # neither 4, as before the update, nor 0, as after it
    assert (memory["cache0"][rows, 0, WRITTEN] == 0).all()
    is_written = torch.zeros(CACHE[:3], dtype=torch.bool)
    is_written[rows, 0, WRITTEN] = True
    assert (y[~is_written] == 4).all()


def test_what_is_masked_there_does_not_depend_on_the_order(gpu: Simulated, stream: HostStream, tmp_path: Path) -> None:
    engine = opened(network_of(), gpu, stream, tmp_path)
    memory = memory_of(engine, stream, {"other": "cache0"})
    memory["mask"][torch.arange(2), 0, WRITTEN] = 0
    launched(engine, memory)
    assert memory["y"][torch.arange(2), 0, WRITTEN].tolist() == [0, 0]
    assert memory["y"].sum() == 4 * (2 * 8 - 2)


def test_two_updates_of_one_cache_are_refused(gpu: Simulated, stream: HostStream, tmp_path: Path) -> None:
    engine = opened(network_of(updates=2), gpu, stream, tmp_path)
    apart = memory_of(engine, stream, {})
    launched(engine, apart)
    both = memory_of(engine, stream, {"cache1": "cache0", "updated1": "cache0"})
    with pytest.raises(BackendError, match="`updated0` is written to memory that `updated1` has, too"):
        launched(engine, both)


def test_an_output_on_an_input_that_it_does_not_update_is_refused(
    gpu: Simulated, stream: HostStream, tmp_path: Path
) -> None:
    engine = opened(network_of(), gpu, stream, tmp_path)
    memory = memory_of(engine, stream, {"y": "mask"})
    with pytest.raises(BackendError, match="`y` is written to memory that `mask` has, too"):
        launched(engine, memory)


def empty_network() -> Network:
    """Return a network of rows that may be none, and of their first channel."""
    network = new_network()
    x = network.add_input("x", TRT.float32, (-1, 4))
    output(network, network.add_unary(x, TRT.UnaryOperation.NEG).get_output(0), "y")
    return network, {"x": ProfileShapes((0, 4), (2, 4), (8, 4))}


@pytest.mark.parametrize("missing", ["x", "y"])
def test_an_input_of_size_0_needs_no_address_but_an_output_does(
    missing: str, gpu: Simulated, stream: HostStream, tmp_path: Path
) -> None:
    context = opened(empty_network(), gpu, stream, tmp_path).context(0)
    some = stream.empty((8, 4), torch.float32)
    set_addresses: dict[str, Callable[[], object]] = {
        "x": lambda: context.set_input("x", (0, 4), torch.empty(0) if missing == "x" else some),
        "y": lambda: context.set_address("y", torch.empty(0) if missing == "y" else some),
    }
    for set_address in set_addresses.values():
        set_address()
    if missing == "x":
        context.enqueue()
        stream.synchronize()
    else:
        with pytest.raises(BackendError, match="the address of `y` is not set, which only an input of size 0 may lack"):
            context.enqueue()
