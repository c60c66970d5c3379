from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import models
from trtkit.errors import SourceError
from trtkit.runtime.tasks import ctc_characters, ctc_text, top_classes
from trtkit.runtime.tasks.classes import metadata_labels

if TYPE_CHECKING:
    from pathlib import Path


def probabilities(*rows: list[int], characters: int = 5) -> Any:
    return np.eye(characters, dtype=np.float32)[np.array(rows)]


def test_top_classes_come_largest_first_and_ties_in_order() -> None:
    logits = np.array([[1, 5, 3, 5, -1, 0], [6, 5, 4, 3, 2, 1]], np.float32)
    assert top_classes(logits, 3) == [[1, 3, 2], [0, 1, 2]]
    assert top_classes(logits[:, :2]) == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([1, 1, 2, 2, 2], "ab"),
        ([1, 0, 1, 0, 0], "aa"),
        ([0, 0, 0, 0, 0], ""),
        ([0, 3, 3, 0, 1], "ca"),
        ([1, 4, 1, 1, 2], "a ab"),
    ],
)
def test_ctc_merges_repeats_and_drops_blanks(steps: list[int], text: str) -> None:
    assert ctc_text(probabilities(steps), ["", "a", "b", "c", " "]) == [text]


def test_ctc_decodes_each_item_of_a_batch() -> None:
    assert ctc_text(probabilities([1, 2], [2, 0]), ["", "a", "b", "c", " "]) == ["ab", "b"]


@given(st.text("abc", max_size=20))
def test_ctc_reads_back_any_text_written_with_blanks_between(text: str) -> None:
    steps = [index for letter in text for index in ("abc".index(letter) + 1, 0)] or [0]
    assert ctc_text(probabilities(steps), ["", "a", "b", "c", " "]) == [text]


def test_the_alphabet_stands_in_the_models_metadata(tmp_path: Path) -> None:
    model = models.matmul()
    model.metadata_props.add(key="character", value="x\ny\nz")
    assert ctc_characters(models.save(model, tmp_path / "m.onnx")) == ["", "x", "y", "z", " "]


def test_a_model_without_an_alphabet_is_refused(tmp_path: Path) -> None:
    path = models.save(models.matmul(), tmp_path / "m.onnx")
    with pytest.raises(SourceError) as error:
        ctc_characters(path)
    assert str(error.value) == (
        f"{path}: the model's metadata has no `character` list\nfix: remove `task:` from the config"
    )


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ("{0: 'person', 1: 'traffic light'}", ("person", "traffic light")),
        ('{1: "b", 0: "a"}', ("a", "b")),
        ("{0: 'a', 2: 'b'}", ()),
        ("['a', 'b']", ()),
        ("__import__('os').abort()", ()),
        ("{", ()),
    ],
)
def test_classes_that_a_file_names_as_ultralytics_does(names: str, labels: tuple[str, ...], tmp_path: Path) -> None:
    model = models.detector()
    model.metadata_props.add(key="names", value=names)
    models.save(model, tmp_path / "m.onnx")
    assert metadata_labels(tmp_path / "m.onnx") == labels
