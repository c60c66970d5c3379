"""Read a model's outputs as answers: classes or text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Array = np.ndarray[Any, Any]
_LABELS = "give a JSON list of names, or a text file with a name a line, in the order of the classes"


def top_classes(logits: Array, count: int = 5) -> list[list[int]]:
    """Return the indices of the `count` largest logits [N, classes] of each item, largest first."""
    order = np.argsort(-logits.astype(np.float64), axis=-1, kind="stable")
    return [[int(index) for index in row[:count]] for row in order]


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


def ctc_text(probabilities: Array, characters: Sequence[str]) -> list[str]:
    """Decode [N, steps, characters] greedily: repeats merge, index 0 is the blank (Graves et al., 2006)."""
    best = probabilities.argmax(axis=-1)
    texts = []
    for row in best:
        kept = [int(now) for before, now in zip([0, *row], row, strict=False) if now and now != before]
        texts.append("".join(characters[index] for index in kept))
    return texts


def ctc_scores(probabilities: Array) -> list[float]:
    """Return for each item of [N, steps, characters] the mean of its steps' best probabilities, but for blanks."""
    best, is_text = probabilities.max(axis=-1), probabilities.argmax(axis=-1) != 0
    return [float(row[mask].mean()) if mask.any() else 0.0 for row, mask in zip(best, is_text, strict=True)]


def ctc_characters(path: Path) -> list[str]:
    """Return the alphabet of a PaddleOCR recognizer: blank, the `character` list of its metadata, space."""
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    characters = next((entry.value for entry in model.metadata_props if entry.key == "character"), None)
    if characters is None:
        raise SourceError("the model's metadata has no `character` list", str(path), "remove `task:` from the config")
    return ["", *characters.splitlines(), " "]
