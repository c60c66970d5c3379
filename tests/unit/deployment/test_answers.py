"""Answers as tensors: maps and vectors are those that the reader reads."""

from __future__ import annotations

import numpy as np
import pytest

from trtkit.config.task import Preprocess, Resize, Task
from trtkit.deployment.answers import answer_tensors, placement_row, reader_from, reader_settings
from trtkit.errors import SourceError
from trtkit.inputs.images import placement
from trtkit.runtime.tasks.answers import ClassMap, DepthMap, Embedding
from trtkit.runtime.tasks.reader import TaskReader

LETTERBOX = Preprocess(resize=Resize(letterbox=(32, 32)))
SIZE = (32, 32)


def placements(*sizes: tuple[int, int]) -> np.ndarray:
    return np.array([placement_row(placement(size, LETTERBOX), SIZE) for size in sizes], np.float32)


def reader(kind: str) -> TaskReader:
    """Return a reader as it comes back from a version's settings."""
    return reader_from(reader_settings(TaskReader(Task.model_validate({"kind": kind}))))


@pytest.mark.parametrize(("kind", "name", "channels"), [("segmentation", "class_id", 5), ("depth", "depth", 1)])
def test_maps_have_the_size_of_the_picture(kind: str, name: str, channels: int) -> None:
    values = np.random.default_rng(0).standard_normal((2, channels, 8, 8)).astype(np.float32)
    sizes = [(50, 20), (50, 20)]
    tensors = answer_tensors(reader(kind), {"y": values}, placements(*sizes))
    assert list(tensors) == [name]
    assert tensors[name].shape == (2, 20, 50)
    answers = reader(kind).read({"y": values}, [placement(size, LETTERBOX) for size in sizes], SIZE)
    for row, answer in enumerate(answers):
        assert isinstance(answer, (ClassMap, DepthMap))
        expected = answer.ids if isinstance(answer, ClassMap) else answer.values
        np.testing.assert_allclose(tensors[name][row], expected, atol=1e-4)
    assert tensors[name].dtype == (np.int32 if kind == "segmentation" else np.float32)


def test_maps_of_several_sizes_are_refused() -> None:
    values = np.zeros((2, 1, 8, 8), np.float32)
    with pytest.raises(SourceError, match="maps of one request have the sizes of its images: 20x50, 50x20"):
        answer_tensors(reader("depth"), {"y": values}, placements((50, 20), (20, 50)))


def test_vectors_are_served_in_fp32() -> None:
    values = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float16)
    tensors = answer_tensors(reader("embedding"), {"y": values})
    np.testing.assert_array_equal(tensors["embedding"], values.astype(np.float32))
    assert tensors["embedding"].dtype == np.float32
    (answer, *_) = reader("embedding").read({"y": values}, [placement((9, 9), LETTERBOX)] * 3, SIZE)
    assert isinstance(answer, Embedding)
