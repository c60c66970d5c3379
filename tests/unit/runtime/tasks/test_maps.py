"""Maps of pixels against torch's interpolation, as transformers' image processors use it."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import SegformerImageProcessorPil

from trtkit.config.task import Preprocess, Resize
from trtkit.inputs.images import placement
from trtkit.runtime.tasks import maps

EXACT = Preprocess(resize=Resize(exact=(64, 96)))


@pytest.mark.parametrize("size", [(200, 100), (31, 77), (96, 64)])
@pytest.mark.parametrize("at_once", [1, 1 << 25])
def test_classes_are_those_of_transformers(
    size: tuple[int, int], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "_AT_ONCE", at_once)
    logits = np.random.default_rng(0).normal(size=(6, 16, 24)).astype(np.float32)
    ours = maps.class_map(logits, placement(size, EXACT), (96, 64))
    outputs = SimpleNamespace(logits=torch.from_numpy(logits[None]))
    (theirs,) = SegformerImageProcessorPil().post_process_semantic_segmentation(outputs, [size[::-1]])
    assert ours.shape == size[::-1]
    assert (ours == theirs.numpy()).mean() > 0.999  # two classes may be equal but for rounding


@pytest.mark.parametrize("size", [(200, 100), (31, 77)])
def test_depths_are_those_of_torch(size: tuple[int, int]) -> None:
    depths = np.random.default_rng(0).normal(size=(16, 24)).astype(np.float32)
    theirs = torch.nn.functional.interpolate(
        torch.from_numpy(depths[None, None]), size=size[::-1], mode="bilinear", align_corners=False
    )
    assert np.allclose(maps.depth_map(depths, placement(size, EXACT), (96, 64)), theirs[0, 0].numpy(), atol=1e-5)


def test_bars_of_a_letterbox_are_not_on_the_picture() -> None:
    """A picture of 100 x 50 in 64 x 64 has bars of 16 rows: the map there is another class."""
    logits = np.zeros((2, 64, 64), np.float32)
    logits[0, 16:48] = 1
    logits[1, :16] = logits[1, 48:] = 1
    placed = placement((100, 50), Preprocess(resize=Resize(letterbox=(64, 64))))
    assert (maps.class_map(logits, placed, (64, 64)) == 0).all()
