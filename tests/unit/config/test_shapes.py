from __future__ import annotations

import pytest

from trtkit.config.shapes import shapes_override
from trtkit.errors import ConfigError


@pytest.mark.parametrize(
    ("texts", "profile"),
    [
        (["x:1x3x8x8"], {"x": [[1, 3, 8, 8]] * 3}),
        (["x:1x8,2x8,4x8"], {"x": [[1, 8], [2, 8], [4, 8]]}),
        (["x:1,2,4"], {"x": [[1], [2], [4]]}),
        (["ids:1x8,1x16,1x32,mask:1x1"], {"ids": [[1, 8], [1, 16], [1, 32]], "mask": [[1, 1]] * 3}),
        (["ids:1x8", "mask:1x1"], {"ids": [[1, 8]] * 3, "mask": [[1, 1]] * 3}),
        (["serving_default_x:0:1x4,2x4,3x4"], {"serving_default_x:0": [[1, 4], [2, 4], [3, 4]]}),
    ],
)
def test_shapes_become_one_profile(texts: list[str], profile: dict[str, list[list[int]]]) -> None:
    override = shapes_override(texts)
    assert (override.key_path, override.value) == (("profiles",), [profile])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1x3x8x8", "no input is named"),
        (":1x3", "no input is named"),
        ("", "no input is named"),
        ("x:", "`` is not a shape: sizes with `x` between them"),
        ("x:1x?x8", "`1x?x8` is not a shape: sizes with `x` between them"),
        ("x:1x-1", "`1x-1` is not a shape: sizes with `x` between them"),
        ("x:1x2,2x2", "`x` has 2 shapes: give one, or min, opt and max"),
        ("x:1,x:2", "`x` is named twice"),
    ],
)
def test_what_is_no_shape_is_refused_by_the_option(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shapes_override([text])
    (problem,) = caught.value.problems
    assert (problem.what, problem.where) == (what, f"--shapes {text}")
    assert problem.fix.startswith("write INPUT:SHAPE or INPUT:MIN,OPT,MAX")
