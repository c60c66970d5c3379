"""Parts become one network: parsed first, written after; tensors that are not what their ports say are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tests.support.decoders import rtx
from trtkit.dtypes import FP16, FP32
from trtkit.errors import NetworkError
from trtkit.models.hybrids.spec import HybridSpec, NetworkPart, OnnxPart, PartPort, Seam
from trtkit.network.hybrid import Material, StageNetwork, write_stage
from trtkit.network.onnx.io import merged, prefixed
from trtkit.reference import Executor, read_layers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from trtkit.network.blocks.weights import Weights
    from trtkit.network.graph import Tensor

X = PartPort("x", ("batch", 3), "fp32")
MAP = PartPort("map", ("batch", 3))
DOUBLE = OnnxPart("double", (X,), (MAP,), "nowhere:make")
ADD = NetworkPart("add", (MAP,), (PartPort("y", ("batch", 3), "fp32"),), f"{__name__}:write_add", 10.0)
SPEC = HybridSpec("tiny", (DOUBLE, ADD), (Seam("double.map", "add.map"),), ("add.y",))


def write_add(_weights: Weights, model: Any, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Add a number."""
    return {} if model is None else {"y": inputs["map"] + model}


def doubling(given: str, made: str, shape: tuple[int | str, ...] = ("batch", 3), kind: int = TensorProto.FLOAT) -> Any:
    """Return an ONNX model that doubles, with a weight whose name others use too."""
    two = helper.make_tensor("weight", kind, [1], [2])
    node = helper.make_node("Mul", [given, "weight"], [made], name="mul")
    values = [helper.make_tensor_value_info(name, kind, shape) for name in (given, made)]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [two])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def write(spec: HybridSpec, names: list[str], model: Any, folder: Path, dtype: Any = FP32) -> StageNetwork:
    path = folder / "m.onnx"
    if model is not None:
        onnx.save(model, str(path))
    return write_stage(rtx(), spec, names, Material(dtype, {}, path if model is not None else None))


def run(stage: StageNetwork, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    return Executor(read_layers(rtx(), stage.graph.network)).run(inputs)


def test_network_api_goes_on_where_the_parser_ended(tmp_path: Path) -> None:
    stage = write(SPEC, ["double", "add"], doubling("x", "double.map"), tmp_path)
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(run(stage, x=x)["y"], 2 * x + 10)
    assert stage.parts["double"] + stage.parts["add"] == stage.graph.network.num_layers


def test_seam_casts_to_the_type_that_the_part_computes_in(tmp_path: Path) -> None:
    stage = write(SPEC, ["double", "add"], doubling("x", "double.map"), tmp_path, FP16)
    y = run(stage, x=torch.tensor([[0.1, 1.0, 3.0]]))["y"]
    assert y.dtype == torch.float32
    assert torch.equal(y, (torch.tensor([[0.2, 2.0, 6.0]]).half() + 10).float())


def test_parts_in_networks_of_their_own_hand_on_by_name(tmp_path: Path) -> None:
    first = write(SPEC, ["double"], doubling("x", "double.map"), tmp_path, FP16)
    second = write(SPEC, ["add"], None, tmp_path, FP16)
    between = run(first, x=torch.ones(2, 3))
    assert between["double.map"].dtype == torch.float16
    assert torch.equal(run(second, **between)["y"], torch.full((2, 3), 12.0))


def test_two_exported_parts_are_parsed_as_one_model(tmp_path: Path) -> None:
    again = OnnxPart("again", (MAP,), (PartPort("map", ("batch", 3)),), "nowhere:make")
    seams = (Seam("double.map", "again.map"), Seam("again.map", "add.map"))
    spec = replace(SPEC, parts=(DOUBLE, again, ADD), seams=seams, outputs=("add.y", "double.map"))
    models = [
        prefixed(doubling("x", "double.map"), "double/"),
        prefixed(doubling("double.map", "again.map"), "again/"),
    ]
    stage = write(spec, ["double", "again", "add"], merged(models), tmp_path)
    found = run(stage, x=torch.ones(2, 3))
    assert torch.equal(found["y"], torch.full((2, 3), 14.0))
    assert torch.equal(found["map"], torch.full((2, 3), 2.0))


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (("batch", 4), "axis 1 is 4; expected 3: the tensor is [?, 4], the port says [batch, 3]"),
        ((2, 3), "the batch is 2; expected `batch`: the tensor is [2, 3], the port says [batch, 3]"),
        (("batch", 3, 1), "got rank 3; expected rank 2: the tensor is [?, 3, 1], the port says [batch, 3]"),
    ],
)
def test_tensor_of_another_shape_than_its_port_is_refused(
    shape: tuple[int | str, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(NetworkError) as caught:
        write(SPEC, ["double", "add"], doubling("x", "double.map", shape), tmp_path)
    assert str(caught.value) == (
        f"seam `double.map -> add.map`: {said}\n"
        "fix: give the part inputs of the size that the model was described for, or change the port"
    )


def test_tensor_of_another_type_than_its_port_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NetworkError) as caught:
        write(SPEC, ["double", "add"], doubling("x", "double.map", kind=TensorProto.INT32), tmp_path)
    assert str(caught.value) == (
        "seam `double.map -> add.map`: type int32 is given, the port says fp32\n"
        "fix: change the port: only floating-point types are cast"
    )


def test_output_that_the_parsed_model_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(NetworkError) as caught:
        write(SPEC, ["double", "add"], doubling("x", "double.other"), tmp_path)
    assert str(caught.value) == (
        "seam `double.map -> add.map`: the parsed model does not give it\nfix: export the part with its ports' names"
    )


def test_output_that_the_writer_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(NetworkError) as caught:
        write(
            replace(SPEC, parts=(DOUBLE, replace(ADD, model=None))),
            ["double", "add"],
            doubling("x", "double.map"),
            tmp_path,
        )
    assert str(caught.value) == "part `add`: the writer gives no output `y`"


def test_exported_part_behind_a_written_one_asks_to_be_chained(tmp_path: Path) -> None:
    add = replace(ADD, inputs=(PartPort("map", ("batch", 3), "fp32"),))
    last = OnnxPart("double", (PartPort("y", ("batch", 3)),), (MAP,), "nowhere:make")
    spec = HybridSpec("tiny", (add, last), (Seam("add.y", "double.y"),), ("double.map",))
    with pytest.raises(NetworkError) as caught:
        write(spec, ["add", "double"], None, tmp_path)
    assert str(caught.value) == (
        "seam `add.y -> double.y`: ONNX part `double` follows one that the network API writes: "
        "it cannot be parsed after it\nfix: set `compose: chained`, which gives each part an engine"
    )
    first, second = (
        write(spec, ["add"], None, tmp_path),
        write(spec, ["double"], doubling("add.y", "double.map"), tmp_path),
    )
    assert torch.equal(run(second, **run(first, map=torch.ones(2, 3)))["map"], torch.full((2, 3), 22.0))
