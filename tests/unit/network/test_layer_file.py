"""A network's layers, written to a file and read from it, are the same layers; damaged files are refused.

That they compute the same is tested with every family: `support.decoders.Runner` runs what it has read from a file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.support.decoders import rtx, through_a_file
from trtkit.dtypes import BF16, FP4, FP8, FP16, FP32, INT4, DType
from trtkit.errors import BundleError
from trtkit.network.graph import Graph
from trtkit.network.layer_file import LayerFiles, drop_pages, load_layers, save_layers
from trtkit.reference import Executor
from trtkit.sources.safetensors_file import read_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.network.layer_graph import LayerGraph

BYTES = np.random.default_rng(0).integers(0, 120, 96).astype(np.uint8)


def constants(dtype: DType) -> LayerGraph:
    """Return a network that gives a constant of `dtype`, once as it is and once more."""
    graph = Graph(rtx())
    count = BYTES.size * 8 // dtype.bits
    constant = graph.packed(BYTES, dtype, (count // 8, 8), "table")
    graph.output(constant, "y")
    return graph.layers()


@pytest.mark.parametrize("dtype", [FP32, FP16, BF16, FP8, INT4, FP4], ids=str)
def test_weights_of_every_type_are_those_that_were_written(dtype: DType) -> None:
    layers = constants(dtype)
    again = through_a_file(layers)
    (held,) = (node.weights["weights"] for node in again.nodes if node.weights)
    assert (held.dtype, bytes(held.raw)) == (dtype, bytes(BYTES))
    one, other = (Executor(each).run({})["y"] for each in (layers, again))
    assert torch.equal(one.float().nan_to_num(7), other.float().nan_to_num(7))


def resident_kib(path: Path) -> int:
    """Return how much of a mapped file this process has in memory."""
    maps = Path("/proc/self/smaps").read_text().split(str(path))[1:]
    return sum(int(text.split("Rss:")[1].split()[0]) for text in maps)


def test_memory_of_mapped_weights_is_given_back_and_read_again(tmp_path: Path) -> None:
    values = np.random.default_rng(2).integers(0, 120, 1 << 22).astype(np.uint8)
    graph = Graph(rtx())
    graph.output(graph.packed(values, FP32, (1 << 10, 1 << 10), "table"), "y")
    files = LayerFiles(tmp_path / "n.layers.json", ())
    save_layers(graph.layers(), files)
    layers, _ = load_layers(files)
    (held,) = (node.weights["weights"] for node in layers.nodes if node.weights)
    assert bytes(held.raw) == bytes(values)
    assert resident_kib(files.weights) >= 4096
    drop_pages(layers)
    assert resident_kib(files.weights) == 0
    assert bytes(held.raw) == bytes(values)
    drop_pages(graph.layers())  # memory of its own stays


def test_layers_are_those_that_were_read_from_tensorrt() -> None:
    graph = Graph(rtx())
    x = graph.input("x", FP32, (-1, 3, 8, 8))
    kernel = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    layer = graph.network.add_convolution_nd(x.trt, 4, (3, 3), kernel, np.zeros(4, np.float32))
    layer.padding_nd, layer.stride_nd = (1, 1), (2, 2)
    graph.output(graph.add(layer, "conv"), "y")
    layers = graph.layers()
    again = through_a_file(layers)
    for one, other in zip(layers.nodes, again.nodes, strict=True):
        assert (one.kind, one.name, one.inputs, one.outputs) == (other.kind, other.name, other.inputs, other.outputs)
        assert one.attributes == other.attributes
    assert [vars(spec) for spec in layers.specs if spec] == [vars(spec) for spec in again.specs if spec]
    assert (layers.inputs, layers.outputs, layers.library) == (again.inputs, again.outputs, again.library)
    pixels = torch.randn(2, 3, 8, 8)
    wanted = torch.nn.functional.conv2d(pixels, torch.from_numpy(kernel), padding=1, stride=2)
    assert torch.equal(Executor(again).run({"x": pixels})["y"], wanted)


def test_weights_of_the_sources_stay_there(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    source = tmp_path / "model.safetensors"
    table = np.arange(64, dtype=np.float32).reshape(8, 8)
    save_file({"other": table + 1, "table": table}, source)
    graph = Graph(rtx())
    read = read_folder(tmp_path)[0]
    graph.output(
        graph.constant(read["table"].read(), "kept") + graph.constant(read["other"].read() * 2, "changed"), "y"
    )
    files = LayerFiles(tmp_path / "m.layers.json", [tmp_path / "absent", source])
    assert save_layers(graph.layers(), files) == (1,)
    assert files.weights.stat().st_size == table.nbytes
    layers, holding = load_layers(files)
    assert holding == {1}
    assert Executor(layers).run({})["y"].numpy() == pytest.approx(table + (table + 1) * 2)


DAMAGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "version": lambda data: data.update(version=99),
    "weights outside": lambda data: data["layers"][0][5].update(weights=["fp32", 1 << 40, -1, 0]),
    "an offset below zero": lambda data: data["layers"][0][5].update(weights=["fp32", 2, -1, -8]),
    "an unknown type": lambda data: data["layers"][0][5].update(weights=["fp5", 2, -1, 0]),
    "a source that there is not": lambda data: data["layers"][0][5].update(weights=["fp32", 2, 7, 0]),
    "a tensor that there is not": lambda data: data["layers"][0][3].append(1000),
    "no layers": lambda data: data.pop("layers"),
    "a layer without a name": lambda data: data["layers"].append(["CONSTANT"]),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_files_are_refused(damage: str, tmp_path: Path) -> None:
    files = LayerFiles(tmp_path / "m.layers.json", ())
    save_layers(constants(FP32), files)
    data = json.loads(files.layers.read_text())
    DAMAGED[damage](data)
    files.layers.write_text(json.dumps(data))
    with pytest.raises(BundleError, match=r"m\.layers\.json: (the network's layers|unsupported version)"):
        load_layers(files)


def test_absent_weights_are_named(tmp_path: Path) -> None:
    files = LayerFiles(tmp_path / "m.layers.json", ())
    save_layers(constants(FP32), files)
    files.weights.unlink()
    with pytest.raises(BundleError, match=r"m\.weights: .*No such file"):
        load_layers(files)
