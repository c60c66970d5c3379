"""The pictures that a model is verified on, with the boxes drawn by a detector and by its reference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trtkit.inputs.images import input_size, placement, read_image
from trtkit.inputs.samples import sample_pictures
from trtkit.runtime.tasks.answers import DetectedBoxes
from trtkit.runtime.tasks.reader import TaskReader
from trtkit.verification.report import ComparedPicture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Arrays
    from trtkit.config.schema import ModelConfig
    from trtkit.inputs.samples import Sample
    from trtkit.runtime.tasks.answers import Box

_MOST, _MOST_BOXES = 24, 100
"""Limits on pictures per report and boxes per picture."""


def compared_pictures(
    config: ModelConfig,
    paths: Sequence[str],
    samples: Sequence[Sample],
    outputs: Sequence[tuple[Arrays, Arrays]],
    labels: Sequence[str],
) -> tuple[ComparedPicture, ...]:
    """Return the pictures among the samples. outputs: ours and the reference's, per sample."""
    if config.preprocess is None:
        return ()
    files = sample_pictures(paths or config.verify.inputs, config)
    chosen = [pair for pair in zip(samples, outputs, strict=True) if pair[0].name in files][:_MOST]
    pictures = []
    for sample, pair in chosen:
        path = files[sample.name]
        boxes: list[tuple[Box, ...]] = [(), ()]
        if config.task is not None and config.task.boxes is not None:
            placed = placement(read_image(path).size, config.preprocess)
            size = input_size(next(iter(sample.inputs.values())), config.preprocess)
            arrays = [{name: np.nan_to_num(value.astype(np.float32)) for name, value in one.items()} for one in pair]
            answers = [TaskReader(config.task).read(one, [placed], size)[0] for one in arrays]
            names = ("text",) if config.task.boxes.layout == "text-map" else labels
            boxes = [_named(answer.boxes, names) for answer in answers if isinstance(answer, DetectedBoxes)]
        pictures.append(ComparedPicture(sample.name, str(path), *boxes))
    return tuple(pictures)


def _named(boxes: Sequence[Box], labels: Sequence[str]) -> tuple[Box, ...]:
    """Return the highest-scoring boxes with the names of their classes, if those have names."""
    return tuple(
        replace(box, label=labels[box.class_id]) if 0 <= box.class_id < len(labels) else box
        for box in boxes[:_MOST_BOXES]
    )
