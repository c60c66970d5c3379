"""Read logits as classes, and the names of classes from a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.sources.onnx_file import class_names, metadata_value

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.arrays import Array

_LABELS = "give a JSON list of names, or a text file with a name a line, in the order of the classes"


def top_classes(logits: Array, count: int = 5) -> list[list[int]]:
    """Return the indices of the `count` largest logits [N, classes] of each item, largest first."""
    order = np.argsort(-logits.astype(np.float64), axis=-1, kind="stable")
    return [[int(index) for index in row[:count]] for row in order]


def softmax(logits: Array) -> Array:
    """Return the softmax over the last axis, in fp64."""
    shifted = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def read_labels(path: Path) -> list[str]:
    """Return the names of classes in a file: a JSON list, or a line each. Raises SourceError where it holds none."""
    try:
        text = path.read_text(encoding="utf-8")
        labels = json.loads(text) if path.suffix == ".json" else text.splitlines()
    except (OSError, ValueError) as error:
        raise SourceError(f"cannot be read: {error}", str(path), _LABELS) from None
    if not isinstance(labels, list) or not labels or not all(isinstance(name, str) for name in labels):
        raise SourceError("holds no list of names", str(path), _LABELS)
    return labels


def metadata_labels(path: Path) -> tuple[str, ...]:
    """Return the classes under `names` in an ONNX file's metadata, a Python dict by number; empty if it has none."""
    return class_names(metadata_value(path, "names") or "")
