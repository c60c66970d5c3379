from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import models
from trtkit.config.task import Task
from trtkit.verification.answers import agreement

NO_FILE = Path("unread.onnx")


def logits(*rows: list[float]) -> dict[str, Any]:
    return {"logits": np.array(rows, np.float32)}


def test_top_1_and_top_5_are_compared_item_by_item() -> None:
    ours = logits([9, 8, 7, 6, 5, 0], [0, 1, 2, 3, 4, 5])
    theirs = logits([9, 8, 7, 6, 0, 5], [0, 1, 2, 3, 5, 4])
    found = agreement(Task(kind="classification"), NO_FILE, [(ours, theirs)])
    assert (found.measure, found.agreement, found.answers) == ("top-1", 0.5, ((0, 0), (5, 4)))
    assert found.top_5 == pytest.approx((4 / 5 + 5 / 5) / 2)
    assert not found.passed


def test_top_5_of_five_classes_is_not_reported() -> None:
    """All of them always are among the first five."""
    found = agreement(Task(kind="classification"), NO_FILE, [(logits([9, 8, 7, 6, 5]), logits([9, 8, 7, 6, 5]))])
    assert (found.agreement, found.top_5) == (1.0, None)


def test_scores_may_have_axes_of_one_after_the_classes() -> None:
    ours, theirs = (np.array(row, np.float32).reshape(1, 3, 1, 1) for row in ([1, 5, 2], [1, 5, 2]))
    found = agreement(Task(kind="classification"), NO_FILE, [({"y": ours}, {"y": theirs})])
    assert found.answers == ((1, 1),)


@pytest.mark.parametrize(("required", "passed"), [(0.5, True), (0.51, False)])
def test_the_share_that_must_agree_is_the_tasks(required: float, passed: bool) -> None:
    pairs = [(logits([1, 0]), logits([1, 0])), (logits([1, 0]), logits([0, 1]))]
    assert agreement(Task(kind="classification", min_agreement=required), NO_FILE, pairs).passed is passed


@pytest.mark.parametrize(("asked", "passed"), [(None, True), (0.51, False)])
def test_a_share_is_asked_for_where_the_task_says_none(asked: float | None, passed: bool) -> None:
    pairs = [(logits([1, 0]), logits([1, 0])), (logits([1, 0]), logits([0, 1]))]
    assert agreement(Task(kind="classification", min_agreement=asked), NO_FILE, pairs, 0.5).passed is passed


def test_text_is_read_with_the_alphabet_of_the_model(tmp_path: Path) -> None:
    model = models.matmul()
    model.metadata_props.add(key="character", value="a\nb")
    path = models.save(model, tmp_path / "m.onnx")
    ours, theirs = ({"p": np.eye(4)[np.array([steps])]} for steps in ([1, 0, 2], [1, 0, 1]))
    found = agreement(Task(kind="ctc-text"), path, [(ours, ours), (ours, theirs)])
    assert (found.measure, found.agreement, found.answers) == ("text", 0.5, (("ab", "ab"), ("ab", "aa")))


def test_without_a_task_nothing_is_required() -> None:
    found = agreement(None, NO_FILE, [(logits([1]), logits([2]))])
    assert (found.measure, found.passed) == ("", True)
