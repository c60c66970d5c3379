from __future__ import annotations

import pytest

from trtkit.report.models import profiles_text, weights_text
from trtkit.report.tables import count_text, shape_text, size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (97.7 * 2**20, "97.7 MiB"), (5 * 2**40, "5.0 TiB")],
)
def test_sizes_have_binary_prefixes(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 "), (999, "999 "), (8.18e9, "8.2 G"), (4e15, "4000.0 T")])
def test_counts_have_decimal_prefixes(count: float, text: str) -> None:
    assert count_text(count) == text


def test_unknown_sizes_are_question_marks() -> None:
    assert shape_text((-1, 3, 0)) == "[?, 3, 0]"
    assert shape_text(()) == "[]"


def test_profiles_show_min_opt_max_of_every_input() -> None:
    shapes = {"min": [1, 3], "opt": [2, 3], "max": [4, 3]}
    assert profiles_text([{"x": shapes, "y": shapes}, {"x": shapes}]) == (
        "x: 1x3 | 2x3 | 4x3\ny: 1x3 | 2x3 | 4x3\nx: 1x3 | 2x3 | 4x3"
    )
    assert profiles_text([]) == "static shapes"


def test_weights_come_largest_first() -> None:
    assert weights_text({"int64": 16, "fp16": 2**21}) == "fp16 2.0 MiB, int64 16 B"
    assert weights_text({}) == "none"
