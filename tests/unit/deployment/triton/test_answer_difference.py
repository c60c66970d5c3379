from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from trtkit.deployment.triton.check import answer_difference

if TYPE_CHECKING:
    from trtkit.arrays import Array


def text(*items: bytes) -> Array:
    return np.array(items, dtype=object)


@pytest.mark.parametrize("scale", [1.0, 1.0 + 5e-4])
def test_floats_within_the_tolerance_are_right(scale: float) -> None:
    known = np.array([[1.0, -2.0, 3.0]], np.float32)
    assert answer_difference((known * scale).astype(np.float32), known, 1e-3, is_stream=False) == ""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (np.array([1.02, 2.04], np.float32), "is off by 0.02 relative RMS error; 0.001 is allowed"),
        (np.array([1.0, np.nan], np.float32), "is not the known answer: 1 of 2 values are not finite"),
        (np.array([[1.0, 2.0]], np.float32), "is not the known answer: shape [1, 2] is not the reference's [2]"),
        (None, "was not answered"),
    ],
)
def test_floats_that_are_wrong(answer: Array | None, said: str) -> None:
    assert answer_difference(answer, np.array([1.0, 2.0], np.float32), 1e-3, is_stream=False).startswith(said)


@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_other_numbers_are_equal_or_not(dtype: type) -> None:
    known = np.array([0, 1, 1], dtype)
    assert answer_difference(known.copy(), known, 1.0, is_stream=False) == ""
    wrong = np.array([0, 0, 0], dtype)
    assert answer_difference(wrong, known, 1.0, is_stream=False) == "differs from the known answer in 2 of 3 values"
    assert answer_difference(known[:2], known, 1.0, is_stream=False) == "is [2], the known answer [3]"


def test_text() -> None:
    assert answer_difference(text(b"cat"), text(b"cat"), 0.0, is_stream=False) == ""
    said = answer_difference(text(b"dog", b"\xff"), text(b"cat", b"ox"), 0.0, is_stream=False)
    assert said == "is 'dog', '�', the known answer 'cat', 'ox'"
    long = answer_difference(text(b"a" * 500), text(b"cat"), 0.0, is_stream=False)
    assert len(long) < 160


def test_pieces_of_a_stream_stand_for_the_whole() -> None:
    assert answer_difference(text(b"to", b"get", b"her"), text(b"together"), 0.0, is_stream=True) == ""
    assert answer_difference(text(b"to", b"day"), text(b"together"), 0.0, is_stream=True) == (
        "is 'today', the known answer 'together'"
    )
    tokens = np.array([[3], [4]], np.int32)
    assert answer_difference(np.array([3, 4], np.int32), tokens, 0.0, is_stream=True) == ""
