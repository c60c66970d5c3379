"""A hybrid's parts and seams: those that fit, and what is said of those that do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trtkit.errors import ProblemsError, SourceError
from trtkit.models.hybrids.registry import HYBRIDS, HybridOptions, hybrid_spec
from trtkit.models.hybrids.spec import HybridSpec, NetworkPart, OnnxPart, PartPort, Seam, check_spec

PIXELS = PartPort("pixel_values", ("batch", 3, 8, 8), "fp32")
MAP = PartPort("map", ("batch", 4, 2, 2))
BACKBONE = OnnxPart("backbone", (PIXELS,), (MAP,), "torch.nn:Conv2d")
HEAD = NetworkPart("head", (MAP,), (PartPort("logits", ("batch", 5), "fp32"),), "nowhere:write", None)
SPEC = HybridSpec("tiny", (BACKBONE, HEAD), (Seam("backbone.map", "head.map"),), ("head.logits",))


def problems(spec: HybridSpec) -> str:
    with pytest.raises(ProblemsError) as caught:
        check_spec(spec)
    return str(caught.value).removeprefix("the parts of `tiny` do not fit together\n")


def with_head_input(port: PartPort) -> HybridSpec:
    return replace(SPEC, parts=(BACKBONE, replace(HEAD, inputs=(port,))))


def test_inputs_that_no_seam_feeds_are_the_models_own() -> None:
    assert check_spec(SPEC) is SPEC
    assert SPEC.inputs == (PIXELS,)
    assert SPEC.source_of("head", "map") == "backbone.map"


def test_input_of_two_parts_is_one_input() -> None:
    both = replace(SPEC, parts=(BACKBONE, replace(HEAD, inputs=(MAP, PIXELS))))
    assert check_spec(both).inputs == (PIXELS,)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (("batch", 4, 2), "got rank 4; expected rank 3"),
        (("batch", 4, 2, 3), "axis 3 is 2; expected 3"),
        (("6*batch", 4, 2, 2), "the batch is `batch`; expected `6*batch`"),
        ((1, 4, 2, 2), "the batch is `batch`; expected 1"),
    ],
)
def test_seam_between_other_shapes_is_refused(shape: tuple[int | str, ...], said: str) -> None:
    wanted = f"[{', '.join(str(dim) for dim in shape)}]"
    assert problems(with_head_input(PartPort("map", shape))) == (
        f"  seam `backbone.map -> head.map`: {said}: `backbone.map` gives [batch, 4, 2, 2], "
        f"`head.map` expects {wanted}\n"
        "    fix: change one of the two ports"
    )


def test_seam_between_floats_casts_and_between_other_types_is_refused() -> None:
    check_spec(with_head_input(PartPort("map", MAP.shape, "fp32")))
    assert problems(with_head_input(PartPort("map", MAP.shape, "int32"))) == (
        "  seam `backbone.map -> head.map`: got type fp32; expected int32\n"
        "    fix: change one of the two ports: a seam casts between floating-point types only"
    )


def test_missing_parts_ports_and_outputs_are_named_all_at_once() -> None:
    broken = replace(
        SPEC, seams=(Seam("neck.map", "head.map"), Seam("backbone.maps", "head.mask")), outputs=("head.boxes",)
    )
    assert problems(broken).splitlines() == [
        "  seam `neck.map -> head.map`: there is no part `neck`",
        "    fix: the parts are backbone, head",
        "  seam `backbone.maps -> head.mask`: part `backbone` has no output `maps`",
        "    fix: its outputs are map",
        "  seam `backbone.maps -> head.mask`: part `head` has no input `mask`",
        "    fix: its inputs are map",
        "  no part gives output `head.boxes`",
        "    fix: known: backbone.map, head.logits",
    ]


def test_seam_that_runs_backwards_is_refused() -> None:
    assert "runs backwards" in problems(replace(SPEC, parts=(HEAD, BACKBONE)))


def test_two_parts_of_one_name_are_refused() -> None:
    assert "2 parts are called `head`" in problems(replace(SPEC, parts=(BACKBONE, HEAD, HEAD)))


def test_two_seams_into_one_input_are_refused() -> None:
    assert "several seams feed `head.map`" in problems(replace(SPEC, seams=SPEC.seams * 2))


def test_input_that_two_parts_describe_differently_is_refused() -> None:
    other = PartPort("pixel_values", ("batch", 3, 16, 16), "fp32")
    assert problems(replace(SPEC, parts=(BACKBONE, replace(HEAD, inputs=(MAP, other))))) == (
        "  part `head`: input `pixel_values` is [batch, 3, 8, 8] fp32 and [batch, 3, 16, 16] fp32\n"
        "    fix: describe it the same in both parts, or feed it by a seam"
    )


def test_unknown_family_names_the_known_ones() -> None:
    with pytest.raises(SourceError) as caught:
        hybrid_spec({"model_type": "alexnet"})
    assert "`alexnet` is not a hybrid family" in str(caught.value)
    assert all(name in str(caught.value) for name in HYBRIDS)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (None, "`image_size` is not set"),
        (
            (640, 650),
            "image size 640 x 650 is not a multiple of the coarsest stride, 32\nfix: use for example 640 x 640",
        ),
    ],
)
def test_detector_asks_for_an_image_size_that_fits(size: tuple[int, int] | None, said: str) -> None:
    with pytest.raises(SourceError) as caught:
        hybrid_spec({"model_type": "rt_detr_v2"}, options=HybridOptions(size))
    assert said in str(caught.value)


@pytest.mark.parametrize(("size", "better"), [((28, 30), 28), ((0, 14), 14)])
def test_image_size_is_a_multiple_of_the_patch_size(size: tuple[int, int], better: int) -> None:
    fields = {"model_type": "dinov2", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1}
    with pytest.raises(SourceError) as caught:
        hybrid_spec(fields, options=HybridOptions(size))
    said = (
        f"image size {size[0]} x {size[1]} is not a multiple of the patch size, 14 x 14\nfix: use for example {better}"
    )
    assert said in str(caught.value)
