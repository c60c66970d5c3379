from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trtkit.builder.profiles import resolve_profiles
from trtkit.config.schema import DimRange
from trtkit.network.onnx.io import OnnxTensorSpec
from trtkit.verification.corners import corner_shapes


def spec(name: str, *shape: int | str) -> OnnxTensorSpec:
    return OnnxTensorSpec(name, "fp32", shape)


INPUTS = [spec("left", "batch", 3, "height"), spec("right", "batch", "height"), spec("constant", 4, 5)]


@st.composite
def ranges(draw: Any) -> DimRange:
    unit = draw(st.integers(1, 32))
    low, step, more = (draw(st.integers(0, 9)) for _ in range(3))
    sizes = (low + 1, low + 1 + step, low + 1 + step + more)
    return DimRange(min=sizes[0] * unit, opt=sizes[1] * unit, max=sizes[2] * unit, multiple_of=unit)


@st.composite
def profiles(draw: Any) -> list[dict[str, Any]]:
    count = draw(st.integers(1, 3))
    return [{"batch": draw(ranges()), "height": draw(ranges())} for _ in range(count)]


@given(profiles(), st.integers(0, 5))
def test_every_shape_is_inside_its_profile_with_its_multiples_and_equal_symbols(
    asked: list[dict[str, Any]], random_count: int
) -> None:
    resolved, _ = resolve_profiles(INPUTS, asked)
    for name, shapes in corner_shapes(INPUTS, resolved, asked, random_count):
        profile = asked[int(name.split()[1])]
        batch, channels, height = shapes["left"]
        assert (channels, shapes["right"], shapes["constant"]) == (3, (batch, height), (4, 5))
        for symbol, size in (("batch", batch), ("height", height)):
            assert profile[symbol].min <= size <= profile[symbol].max
            assert size % profile[symbol].multiple_of == 0


@given(profiles(), st.integers(0, 5))
def test_no_shape_runs_twice_and_every_corner_is_there(asked: list[dict[str, Any]], random_count: int) -> None:
    resolved, _ = resolve_profiles(INPUTS, asked)
    found = [shapes for _, shapes in corner_shapes(INPUTS, resolved, asked, random_count)]
    assert all(shapes not in found[:index] for index, shapes in enumerate(found))
    for profile in asked:
        for kind in ("min", "opt", "max"):
            batch, height = getattr(profile["batch"], kind), getattr(profile["height"], kind)
            assert {"left": (batch, 3, height), "right": (batch, height), "constant": (4, 5)} in found


def test_random_shapes_are_the_same_in_every_run() -> None:
    asked: list[dict[str, Any]] = [{"batch": DimRange(min=1, opt=8, max=64), "height": DimRange(min=1, opt=9, max=99)}]
    resolved, _ = resolve_profiles(INPUTS, asked)
    once, again = (list(corner_shapes(INPUTS, resolved, asked, 3)) for _ in range(2))
    assert once == again
    assert len({shapes["right"] for _, shapes in once}) == 6


def test_a_multiple_given_by_axis_is_kept() -> None:
    inputs = [spec("x", 1, "x.1")]
    asked = [{"x.1": DimRange(min=32, opt=64, max=320, multiple_of=32)}]
    resolved, _ = resolve_profiles(inputs, asked)
    found = [shapes["x"][1] for _, shapes in corner_shapes(inputs, resolved, asked, 8)]
    assert len(found) > 3
    assert all(size % 32 == 0 for size in found)


def test_a_static_model_has_no_corners() -> None:
    assert list(corner_shapes([spec("x", 2, 3)], [], [], 2)) == []
