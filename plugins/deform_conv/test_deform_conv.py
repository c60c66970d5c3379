from __future__ import annotations

import pytest
import torch

from trtkit.dtypes import FP32
from trtkit.network.custom_op import find
from trtkit.network.foreign import Fact, ForeignNode, Refusal

torch.set_num_threads(1)
OP = find("DeformConv2d")


def test_without_offsets_it_is_a_convolution() -> None:
    x, weight = torch.randn(2, 4, 9, 7), torch.randn(6, 2, 3, 3)
    attributes = OP.attributes(stride=(2, 1), padding=(1, 1), padding_end=(1, 1), groups=2)
    wanted = torch.nn.functional.conv2d(x, weight, stride=(2, 1), padding=1, groups=2)
    got = OP.part("reference").reference([x, weight, torch.zeros(2, 18, 5, 7), None, None], attributes)[0]
    torch.testing.assert_close(got, wanted)


def _node(op_type: str, **attributes: object) -> ForeignNode:
    names = ("x", "offset", "mask", "weight", "bias") if op_type.startswith("MMCV") else ("x", "w", "offset")
    return ForeignNode("n", op_type, names, ("y",), dict(attributes), [], [], 19)


def _convert(node: ForeignNode) -> object:
    foreign = {foreign.op_type: foreign for foreign in OP.foreign}
    return foreign[node.op_type].convert(node)


def test_mmcv_puts_the_weight_behind_offset_and_mask() -> None:
    node = _node("MMCVModulatedDeformConv2d", stride=[1, 2], padding=[1, 1], dilation=[2, 2], groups=2, deform_groups=4)
    replacement = _convert(node)
    assert replacement.inputs == ("x", "weight", "offset", "bias", "mask")  # type: ignore[attr-defined]
    attributes = replacement.attributes  # type: ignore[attr-defined]
    assert attributes == OP.attributes((1, 2), (1, 1), (1, 1), (2, 2), 2, 4)


def test_mmcvs_first_version_has_no_mask() -> None:
    names = ("x", "offset", "weight")
    attributes = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "bias": 0, "im2col_step": 32}
    node = ForeignNode("n", "MMCVDeformConv2d", names, ("y",), attributes, [], [], 11)
    assert _convert(node).inputs == ("x", "weight", "offset")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("node", "what"),
    [
        (_node("DeformConv", pads=[1, 1]), "attribute `pads` is [1, 1]: 4 numbers are allowed"),
        (
            _node("DeformConv", activation=b"relu"),
            "unknown attribute `activation` = `relu`, known: "
            "dilations, group, kernel_shape, offset_group, pads, strides",
        ),
    ],
)
def test_a_node_that_cannot_be_taken_says_why(node: ForeignNode, what: str) -> None:
    with pytest.raises(Refusal) as refused:
        _convert(node)
    assert refused.value.what == what


def _facts(**shapes: tuple[int, ...]) -> list[Fact | None]:
    known = {"x": (1, 4, 5, 5), "weight": (6, 4, 3, 3), "offset": (1, 18, 5, 5), "bias": (6,), "mask": (1, 9, 5, 5)}
    return [Fact(FP32, shape) for shape in (known | shapes).values()]


@pytest.mark.parametrize(
    ("shapes", "what"),
    [
        ({"x": (1, 3, 5, 5)}, "3 channels of `x`, 4 wanted: channels of `weight` * groups"),
        ({"offset": (1, 9, 5, 5)}, "9 channels of `offset`, 18 wanted: 2 * offset_groups * kernel"),
        ({"mask": (1, 18, 5, 5)}, "18 channels of `mask`, 9 wanted: offset_groups * kernel"),
        ({"offset": (1, 18, 4, 5), "mask": (1, 9, 4, 5)}, "4 height of `offset`, 5 wanted: the output's"),
        ({"weight": (6, 4, 3, -1)}, "input `weight` must have a known shape"),
        ({"bias": (5,)}, "input `bias` of shape [5]: O is 5 here and 6 before"),
        ({"mask": (1, 9, 5)}, "input `mask` of shape [1, 9, 5] has 3 axes, not 4: "
         "[N, offset_groups*Kh*Kw, Ho, Wo]"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit_say_why(shapes: dict[str, tuple[int, ...]], what: str) -> None:
    with pytest.raises(Refusal) as refused:
        OP.check(_facts(**shapes), OP.attributes(padding=(1, 1), padding_end=(1, 1)))
    assert refused.value.what == what


def test_shapes_follow_from_what_is_known() -> None:
    facts = _facts(x=(-1, 4, -1, -1), offset=(-1, 18, 5, -1), mask=(-1, 9, -1, 5))
    outputs = OP.check(facts, OP.attributes(padding=(1, 1), padding_end=(1, 1)))
    assert outputs == [Fact(FP32, (-1, 6, 5, -1))]
