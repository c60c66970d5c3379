from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

from trtkit.dtypes import FP32
from trtkit.errors import UnsupportedOperatorsError
from trtkit.network.aot import load_kernels
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact, ForeignNode, NotYetKnownError, Refusal
from trtkit.network.onnx import custom_ops
from trtkit.network.plugin import refusal

torch.set_num_threads(1)
OP = find("Nms")


def _model(boxes: list[Any], scores: list[Any], numbers: dict[str, Any], **attributes: Any) -> Any:
    names = ["boxes", "scores", *numbers]
    node = helper.make_node("NonMaxSuppression", names, ["selected"], "nms", **attributes)
    inputs = [helper.make_tensor_value_info(name, 1, shape) for name, shape in (("boxes", boxes), ("scores", scores))]
    output = helper.make_tensor_value_info("selected", 7, ["n", 3])
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()]
    graph = helper.make_graph([node], "g", inputs, [output], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


_NUMBERS = {"most": np.int64(6), "iou": np.float32(0.4), "score": np.float32(0.1)}


def _run(model: Any, feeds: dict[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


@pytest.mark.parametrize("is_centered", [0, 1])
@pytest.mark.parametrize("seed", range(4))
def test_its_first_rows_are_those_of_onnx_runtime(is_centered: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    boxes = np.sort(generator.random((2, 60, 4)), -1).astype(np.float32)
    scores = generator.random((2, 3, 60)).astype(np.float32)
    model = _model(["b", "s", 4], ["b", 3, "s"], _NUMBERS, center_point_box=is_centered)
    wanted = _run(model, {"boxes": boxes, "scores": scores})
    lowered, summary = custom_ops.lower(model)
    assert summary == "1 Nms from NonMaxSuppression"
    rows = _run(lowered, {"boxes": boxes, "scores": scores})
    assert rows.shape == (2 * 3 * 6, 3)
    np.testing.assert_array_equal(rows[: len(wanted)], wanted)
    assert (rows[len(wanted) :] == -1).all()


def _node(**attributes: object) -> ForeignNode:
    facts = [Fact(FP32, (1, 9, 4)), Fact(FP32, (1, 2, 9))]
    return ForeignNode("n", "NonMaxSuppression", ("b", "s", "m"), ("y",), dict(attributes), facts, [None] * 3, 11)


def test_it_selects_no_more_than_there_are() -> None:
    node = _node()
    node.constants = [None, None, np.array([100])]
    replacement = OP.foreign[0].convert(node)
    assert replacement is not None
    assert replacement.attributes == OP.attributes(9)
    assert replacement.outputs == ("y", "y/count")


def test_a_number_of_boxes_that_is_computed() -> None:
    with pytest.raises(NotYetKnownError, match=r"input 2 \(`max_output_boxes_per_class`\) must be a constant"):
        OP.foreign[0].convert(_node())


def test_attributes_that_cannot_be_taken() -> None:
    with pytest.raises(Refusal) as refused:
        OP.foreign[0].convert(_node(center_point_box=2))
    assert refused.value.what == "attribute `center_point_box` is `2`, allowed: `0`, `1`"


def test_too_many_boxes() -> None:
    numbers = _NUMBERS | {"most": np.int64(5000)}
    with pytest.raises(UnsupportedOperatorsError) as refused:
        custom_ops.lower(_model([1, "s", 4], [1, 3, "s"], numbers))
    assert str(refused.value) == (
        "trtkit cannot take 1 node\n"
        "  NonMaxSuppression `nms`: input 2 (`max_output_boxes_per_class`) is 5000, allowed: 1 to 3840"
    )


def test_the_kernel_looks_at_boxes_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = load_kernels(OP, interpreted=True)
    monkeypatch.setattr(kernels, "MOST_AT_ONCE", 16)
    generator = torch.Generator().manual_seed(0)
    boxes, scores = torch.rand(2, 45, 4, generator=generator), torch.rand(2, 2, 45, generator=generator)
    scores[:, :, 20:30] = 0.75  # ties go to the lower box number
    attributes = OP.attributes(20, 0.3, 0.1)
    wanted = OP.part("reference").reference([boxes, scores], attributes)
    for output, want in zip(kernels.launch([boxes, scores], attributes), wanted, strict=True):
        torch.testing.assert_close(output, want)


def test_more_rows_than_one_program_should_select_stay_with_the_lowering() -> None:
    facts = [Fact(FP32, (-1, 8400, 4)), Fact(FP32, (-1, 80, 8400))]
    assert refusal(OP, facts, OP.attributes(100)) == ""
    assert refusal(OP, facts, OP.attributes(500)) == "40000 rows may be selected, its plugin takes 32768"
