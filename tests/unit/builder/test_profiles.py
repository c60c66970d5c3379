from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.builder.profiles import DEFAULT_BATCH, opt_dims, opt_shapes, resolve_profiles, with_first_names
from trtkit.config.schema import DimRange, ShapeRange
from trtkit.errors import ConfigError
from trtkit.network.input_spec import ProfileShapes
from trtkit.network.onnx.io import OnnxTensorSpec

RANGES = (
    st.lists(st.integers(0, 4096), min_size=3, max_size=3)
    .map(sorted)
    .map(lambda sizes: DimRange(min=sizes[0], opt=sizes[1], max=sizes[2]))
)
DIMS = st.integers(1, 64) | st.sampled_from(["batch", "height", "width", "tokens"])
INPUTS = st.lists(st.lists(DIMS, max_size=4).map(tuple), min_size=1, max_size=4).map(
    lambda shapes: [OnnxTensorSpec(f"input{index}", "fp32", shape) for index, shape in enumerate(shapes)]
)
IMAGES = OnnxTensorSpec("images", "fp32", ("batch", 3, "height", "width"))


def sized(low: int, opt: int, high: int) -> DimRange:
    return DimRange(min=low, opt=opt, max=high)


def faults(inputs: list[OnnxTensorSpec], *profiles: dict[str, DimRange | ShapeRange]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve_profiles(inputs, profiles)
    return [f"{problem.where}: {problem.what}" for problem in caught.value.problems]


@given(INPUTS, st.data())
def test_every_dynamic_input_gets_its_ranges_and_static_sizes_stay(
    inputs: list[OnnxTensorSpec], data: st.DataObject
) -> None:
    symbols = sorted({dim for spec in inputs for dim in spec.shape if isinstance(dim, str)})
    profile = {symbol: data.draw(RANGES, label=symbol) for symbol in symbols}
    resolved, _ = resolve_profiles(inputs, [profile])
    assert len(resolved) == (1 if symbols else 0)
    for spec in inputs:
        if not spec.is_dynamic:
            assert not resolved or spec.name not in resolved[0]
            continue
        shape = resolved[0][spec.name]
        for axis, dim in enumerate(spec.shape):
            wanted = profile[dim] if isinstance(dim, str) else sized(dim, dim, dim)
            assert (shape.min[axis], shape.opt[axis], shape.max[axis]) == (wanted.min, wanted.opt, wanted.max)


@given(RANGES, RANGES, RANGES)
def test_whole_shapes_say_the_same_as_their_dimensions(batch: DimRange, height: DimRange, width: DimRange) -> None:
    by_dims = {"batch": batch, "images.2": height, "width": width}
    whole = ShapeRange(
        min=(batch.min, 3, height.min, width.min),
        opt=(batch.opt, 3, height.opt, width.opt),
        max=(batch.max, 3, height.max, width.max),
    )
    assert resolve_profiles([IMAGES], [by_dims])[0] == resolve_profiles([IMAGES], [{"images": whole}])[0]
    assert opt_shapes([IMAGES], [{"images": whole}]) == {"images": whole.opt}


def test_batch_may_be_left_out_and_the_assumption_is_told() -> None:
    spec = OnnxTensorSpec("x", "fp32", ("n", 3))
    resolved, said = resolve_profiles([spec], [])
    assert resolved[0]["x"] == ProfileShapes(min=(1, 3), opt=(1, 3), max=(8, 3))
    assert said == "1 profile; n not given: [1, 1, 8] assumed"
    assert sized(1, 1, 8) == DEFAULT_BATCH


def test_static_model_needs_no_profile() -> None:
    specs = [OnnxTensorSpec("x", "fp32", (2, 3)), OnnxTensorSpec("scale", "fp32", ())]
    assert resolve_profiles(specs, []) == ([], "static shapes, no profile needed")
    assert opt_shapes(specs, []) == {"x": (2, 3), "scale": ()}


def test_one_symbol_in_two_inputs_has_one_range() -> None:
    specs = [OnnxTensorSpec("ids", "int64", ("batch", "tokens")), OnnxTensorSpec("mask", "fp32", ("batch", "tokens"))]
    resolved, _ = resolve_profiles(specs, [{"batch": sized(1, 2, 4), "mask.1": sized(1, 5, 9)}])
    assert resolved[0]["ids"] == resolved[0]["mask"] == ProfileShapes(min=(1, 1), opt=(2, 5), max=(4, 9))


def test_ranges_that_contradict_each_other_are_refused() -> None:
    specs = [OnnxTensorSpec("ids", "int64", ("batch",)), OnnxTensorSpec("mask", "fp32", ("batch",))]
    assert faults(specs, {"ids.0": sized(1, 2, 4), "mask.0": sized(1, 2, 8)}) == [
        "profiles.0: dimension `batch` has different ranges: `ids.0` [1, 2, 4], `mask.0` [1, 2, 8]"
    ]
    agreeing = {"ids.0": sized(1, 2, 4), "mask.0": sized(1, 2, 4)}
    assert resolve_profiles(specs, [agreeing])[0][0]["ids"] == ProfileShapes(min=(1,), opt=(2,), max=(4,))


def test_the_shapes_of_one_input_size_the_dimensions_that_it_shares() -> None:
    kind = OnnxTensorSpec("kind", "int64", ("batch",))
    whole = ShapeRange(min=(2, 3, 8, 8), opt=(4, 3, 8, 8), max=(16, 3, 8, 8))
    resolved, note = resolve_profiles([kind, IMAGES], [{"images": whole}])
    assert (resolved[0]["kind"], note) == (ProfileShapes(min=(2,), opt=(4,), max=(16,)), "1 profile")
    assert faults([kind, IMAGES], {"images": whole, "kind": ShapeRange(min=(2,), opt=(2,), max=(16,))}) == [
        "profiles.0: dimension `batch` has different ranges: `kind[0]` [2, 2, 16], `images[0]` [2, 4, 16]"
    ]
    stepped = DimRange(min=2, opt=4, max=16, multiple_of=2)
    assert resolve_profiles([kind, IMAGES], [{"images": whole, "batch": stepped}])[0] == resolved


def test_faults_of_all_profiles_are_found_at_once() -> None:
    first = {"batch": sized(1, 1, 1), "height": sized(1, 1, 1), "width": sized(1, 1, 1), "depth": sized(1, 1, 1)}
    second = {"images": ShapeRange(min=(1, 3, 8), opt=(1, 3, 8), max=(1, 3, 8))}
    third = {"images": ShapeRange(min=(1, 1, 8, 8), opt=(1, 3, 8, 8), max=(1, 3, 8, 8)), "pictures": second["images"]}
    assert faults([IMAGES], first, second, third, {"images": sized(1, 2, 3)}) == [
        "profiles.0.depth: unknown input or dimension `depth`",
        "profiles.1.images: `images` has rank 4, the shapes have rank 3",
        "profiles.2.images: dimension 1 of `images` is static: its size is 3, the profile says 1..3",
        "profiles.2.pictures: unknown input `pictures`",
        "profiles.3.images: `images` is an input; its range has three shapes, not three sizes",
        "profiles.3: dimension `height` (axis 2 of `images`) has no range",
        "profiles.3: dimension `width` (axis 3 of `images`) has no range",
    ]


def test_typical_sizes_for_tracing_come_from_the_first_profile() -> None:
    whole = ShapeRange(min=(1,), opt=(2,), max=(3,))
    assert opt_dims([{"batch": sized(1, 8, 32), "x": whole}, {"batch": sized(1, 1, 1)}]) == {"batch": 8}
    assert opt_dims([]) == {}


def test_other_names_of_a_dimension_become_its_first_one() -> None:
    aliases = {"columns": "width", "x": "width"}
    profiles = [{"columns": sized(1, 2, 3), "height": sized(4, 5, 6)}, {"x": sized(1, 2, 3), "width": sized(1, 2, 3)}]
    width = {"width": sized(1, 2, 3)}
    assert with_first_names(profiles, aliases) == [{**width, "height": sized(4, 5, 6)}, width]


@pytest.mark.parametrize("names", [("width", "columns"), ("columns", "width")])
def test_a_dimension_with_two_ranges_by_two_names_is_refused(names: tuple[str, str]) -> None:
    profile = dict(zip(names, (sized(1, 2, 3), sized(1, 2, 4)), strict=True))
    with pytest.raises(ConfigError) as error:
        with_first_names([{}, profile], {"columns": "width"})
    assert [(problem.where, problem.fix) for problem in error.value.problems] == [
        (f"profiles.1.{names[1]}", "give both one range, or remove one")
    ]
    assert error.value.problems[0].what == "dimension `width` has different ranges under its different names"
