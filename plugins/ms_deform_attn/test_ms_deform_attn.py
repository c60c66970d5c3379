from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from transformers.models.deformable_detr.modeling_deformable_detr import MultiScaleDeformableAttention
from transformers.models.rt_detr_v2.modeling_rt_detr_v2 import multi_scale_deformable_attention_v2

from trtkit.backends import load_backend
from trtkit.dtypes import FP32
from trtkit.errors import UnsupportedOperatorsError
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact, Refusal
from trtkit.network.graph import Graph
from trtkit.network.lowering.sampling import FeatureLevels, deformable_attention
from trtkit.network.lowering.trt_ops import TrtOps
from trtkit.network.onnx import custom_ops
from trtkit.reference import Executor, read_layers

torch.set_num_threads(1)
OP = find("MsDeformAttn")
BACKEND = load_backend("tensorrt_rtx")


SIZES = ((9, 11), (5, 6), (3, 3))


def _inputs(points: int) -> list[torch.Tensor]:
    """Return value, locations [B, Q, M, points, 2] (some of them outside) and weights."""
    generator = torch.Generator().manual_seed(1)
    value = torch.randn(2, sum(h * w for h, w in SIZES), 4, 8, generator=generator)
    locations = torch.rand(2, 7, 4, points, 2, generator=generator) * 1.2 - 0.1
    return [value, locations, torch.rand(2, 7, 4, points, generator=generator).softmax(-1)]


def test_the_reference_is_what_deformable_detr_computes() -> None:
    value, locations, weights = _inputs(12)
    samples = (locations.reshape(2, 7, 4, 3, 4, 2), weights.reshape(2, 7, 4, 3, 4))
    want = MultiScaleDeformableAttention()(value, torch.tensor(SIZES), SIZES, torch.tensor([0]), *samples, 64)
    attributes = OP.attributes(tuple(size for pair in SIZES for size in pair))
    torch.testing.assert_close(OP.part("reference").reference([value, *samples], attributes)[0], want)


@pytest.mark.parametrize("is_discrete", [False, True])
@pytest.mark.parametrize("form", OP.forms)
def test_the_function_is_what_rt_detr_v2_computes(form: str, is_discrete: bool) -> None:
    inputs = _inputs(9)
    points = (4, 2, 3) if not is_discrete else (3, 3, 3)
    method = "discrete" if is_discrete else "default"
    grouped = [inputs[0], inputs[1], inputs[2]]
    want = multi_scale_deformable_attention_v2(grouped[0], SIZES, grouped[1], grouped[2], list(points), method)
    graph = Graph(BACKEND)
    value, locations, weights = (graph.input(f"x{index}", FP32, (-1, *x.shape[1:])) for index, x in enumerate(inputs))
    levels = FeatureLevels(SIZES, points, is_discrete)
    graph.output(deformable_attention(TrtOps(graph), value, locations, weights, levels, form), "y")
    output = Executor(read_layers(BACKEND, graph.network)).run({f"x{index}": x for index, x in enumerate(inputs)})["y"]
    torch.testing.assert_close(output, want, atol=1e-5, rtol=1e-5)


def _mmcv_model(*, is_constant: bool) -> onnx.ModelProto:
    """Return a model with mmcv's node. is_constant: its spatial shapes are constant; else they depend on an input's."""
    shapes = np.array(SIZES, np.int64)
    nodes = [] if is_constant else [helper.make_node("Shape", ["s"], ["shapes_1d"], "shape")]
    weights = [numpy_helper.from_array(shapes, "shapes")] if is_constant else []
    if not is_constant:
        weights.append(numpy_helper.from_array(np.array([-1, 2]), "pairs"))
        nodes.append(helper.make_node("Reshape", ["shapes_1d", "pairs"], ["shapes"], "reshape"))
    weights.append(numpy_helper.from_array(np.array([0, 99, 129]), "starts"))
    names = ["value", "shapes", "starts", "locations", "weights"]
    nodes.append(
        helper.make_node("MMCVMultiScaleDeformableAttention", names, ["y"], "cross", domain="mmcv", im2col_step=64)
    )
    sizes: dict[str, list[str | int | None]] = {
        "value": ["B", 138, 4, 8],
        "locations": ["B", 7, 4, 3, 4, 2],
        "weights": ["B", 7, 4, 3, 4],
    }
    if not is_constant:
        sizes["s"] = [9, 11, 5, 6, 3, 3]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in sizes.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", 7, 32])]
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("mmcv", 1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def test_mmcv_becomes_a_function_that_computes_the_same() -> None:
    value, locations, weights = _inputs(12)
    samples = (locations.reshape(2, 7, 4, 3, 4, 2), weights.reshape(2, 7, 4, 3, 4))
    want = MultiScaleDeformableAttention()(value, torch.tensor(SIZES), SIZES, torch.tensor([0]), *samples, 64)
    model, summary = custom_ops.replace(_mmcv_model(is_constant=True))
    assert summary == "1 MsDeformAttn from mmcv::MMCVMultiScaleDeformableAttention"
    feed = {"value": value.numpy(), "locations": samples[0].numpy(), "weights": samples[1].numpy()}
    output = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    np.testing.assert_allclose(output, want.numpy(), atol=1e-5)


def test_shapes_that_are_computed_wait_for_folding_and_are_then_refused() -> None:
    model = _mmcv_model(is_constant=False)
    assert custom_ops.replace(model, is_final=False) == (model, "none")
    with pytest.raises(UnsupportedOperatorsError) as refused:
        custom_ops.replace(model)
    assert str(refused.value) == (
        "trtkit cannot take 1 node\n"
        "  mmcv::MMCVMultiScaleDeformableAttention `cross`: input 1 (`value_spatial_shapes`) must be a constant\n"
        "    fix: export it with fixed sizes"
    )


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        ([(1, 98, 4, 8), (1, 7, 4, 1, 2, 2), (1, 7, 4, 1, 2)],
         "98 elements of `value`, 99 wanted: those of all levels"),
        ([(1, 99, 4, 8), (1, 7, 4, 2, 2, 2), (1, 7, 4, 2, 2)],
         "`weights` of shape [1, 7, 4, 2, 2]: 1 levels and a known number of points wanted"),
        ([(1, 99, 4, 8), (1, 7, 3, 1, 2, 2), (1, 7, 4, 1, 2)],
         "input `locations` of shape [1, 7, 3, 1, 2, 2]: M is 3 here and 4 before"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_say_why(shapes: list[tuple[int, ...]], what: str) -> None:
    with pytest.raises(Refusal) as refused:
        OP.check([Fact(FP32, shape) for shape in shapes], OP.attributes((9, 11)))
    assert refused.value.what == what
