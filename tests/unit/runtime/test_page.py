from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from trtkit.config.task import Preprocess, Resize
from trtkit.runtime.page import PageReader, find_lines, in_reading_order, read_page

READER = PageReader(
    detector=Preprocess(),
    recognizer=Preprocess(resize=Resize(height=48), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
    characters=("", "a", "b", " "),
    widths=(32, 320),
)


def marked(*regions: tuple[int, int, int, int]) -> Any:
    """Return a map [100, 200] with rectangles (left, top, right, bottom) of text."""
    found = np.zeros((100, 200), np.float32)
    for left, top, right, bottom in regions:
        found[top:bottom, left:right] = 0.9
    return found


def test_a_line_reaches_half_of_its_height_beyond_its_core() -> None:
    assert find_lines(marked((20, 40, 90, 50)), (200, 100)) == [(15, 35, 95, 55)]


def test_boxes_are_in_pixels_of_the_page_and_stay_on_it() -> None:
    assert find_lines(marked((0, 2, 200, 12)), (400, 300)) == [(0, 0, 400, 51)]


def test_specks_and_faint_marks_are_no_lines() -> None:
    faint = marked((20, 40, 90, 50)) / 4
    assert find_lines(np.maximum(faint, marked((5, 5, 60, 8))), (200, 100)) == []


def test_a_page_of_a_pixel_has_no_empty_boxes() -> None:
    for box in find_lines(marked((20, 40, 90, 50), (150, 40, 190, 50)), (1, 1)):
        assert box[0] < box[2]
        assert box[1] < box[3]


def test_lines_are_read_by_row_and_then_from_the_left() -> None:
    left, right, below = (0, 12, 50, 30), (60, 10, 100, 28), (0, 40, 100, 60)
    assert in_reading_order([below, right, left]) == [left, right, below]


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 4), max_size=12))
def test_ordering_loses_no_box(found: list[tuple[int, int, int, int]]) -> None:
    boxes = [(left, top, left + width + 1, top + height + 1) for left, top, width, height in found]
    assert sorted(in_reading_order(boxes)) == sorted(boxes)


@pytest.mark.parametrize(
    ("size", "width"), [((200, 48), 200), ((100, 24), 200), ((10, 48), 32), ((4000, 48), 320), ((1, 400), 32)]
)
def test_lines_fit_the_recognizers_profile(size: tuple[int, int], width: int) -> None:
    page = Image.new("RGB", size, "white")
    (line,) = READER.lines(page, [(0, 0, *size)])
    assert line.shape == (1, 3, 48, width)
    assert line[0, 0, 0, 0] == 1.0  # white


def test_behind_a_short_line_stands_grey() -> None:
    (line,) = READER.lines(Image.new("RGB", (10, 48), "white"), [(0, 0, 10, 48)])
    assert line[0, 1, 5].tolist() == [1.0] * 10 + [0.0] * 22


def test_text_score_and_box_of_every_line() -> None:
    def detect(x: Any) -> Any:
        assert x.shape == (1, 3, 100, 200)
        return marked((20, 40, 90, 50), (20, 70, 40, 80))[None, None]

    def recognize(x: Any) -> Any:
        text = [1, 0, 2] if x.shape[3] > 100 else [0, 0, 0]
        return np.eye(4, dtype=np.float32)[text][None] * np.array([0.5, 1.0, 0.75], np.float32)[None, :, None]

    found = read_page(READER, Image.new("RGB", (200, 100)), detect, recognize)
    assert found["text"].tolist() == [b"ab", b""]
    assert found["score"].tolist() == [0.625, 0.0]
    assert found["box"].tolist() == [[15, 35, 95, 55], [15, 65, 45, 85]]
    assert (found["box"].dtype, found["score"].dtype) == (np.int32, np.float32)
