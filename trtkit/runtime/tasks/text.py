"""Read a recognizer's probabilities as text, by greedy CTC decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.sources.onnx_file import metadata_value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.arrays import Array


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
    characters = metadata_value(path, "character")
    if characters is None:
        raise SourceError("the model's metadata has no `character` list", str(path), "remove `task:` from the config")
    return ["", *characters.splitlines(), " "]
