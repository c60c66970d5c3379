"""A vision model's answer to one picture, by kind of task; each has a JSON form and a line of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trtkit.arrays import Array

_SHOWN = 8


@dataclass(frozen=True)
class Classes:
    """The most likely classes in descending order. scores: probabilities. labels: empty if classes have no names."""

    ids: tuple[int, ...]
    scores: tuple[float, ...]
    labels: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return a list of classes."""
        return {"classes": [_named(*row) for row in zip(self.ids, self.scores, self._labels(), strict=True)]}

    def __str__(self) -> str:
        """Return `Egyptian cat 0.62, tabby cat 0.21`."""
        pairs = zip(self.ids, self.scores, self._labels(), strict=True)
        return ", ".join(f"{label or f'class {number}'} {score:.2f}" for number, score, label in pairs)

    def _labels(self) -> tuple[str, ...]:
        return self.labels or ("",) * len(self.ids)


@dataclass(frozen=True)
class Text:
    """A line of text. score: the mean probability of its characters."""

    text: str
    score: float

    def to_json(self) -> dict[str, object]:
        """Return text and score."""
        return {"text": self.text, "score": round(self.score, 6)}

    def __str__(self) -> str:
        """Return the text and its score."""
        return f"{self.text}  {self.score:.2f}"


@dataclass(frozen=True)
class Box:
    """An object. corners: x1, y1, x2, y2 in pixels of the picture. keypoints: x, y, score of each, for a pose."""

    corners: tuple[float, float, float, float]
    score: float
    class_id: int
    label: str = ""
    keypoints: tuple[tuple[float, float, float], ...] = ()

    @property
    def name(self) -> str:
        """The class's name, or its number if it has none."""
        return self.label or f"class {self.class_id}"

    def to_json(self) -> dict[str, object]:
        """Return the box with its corners as a list."""
        points = {"keypoints": [_rounded(point) for point in self.keypoints]} if self.keypoints else {}
        return {**_named(self.class_id, self.score, self.label), "box": _rounded(self.corners), **points}


@dataclass(frozen=True)
class DetectedBoxes:
    """The objects in a picture, by descending score."""

    boxes: tuple[Box, ...]

    def to_json(self) -> dict[str, object]:
        """Return a list of boxes."""
        return {"boxes": [box.to_json() for box in self.boxes]}

    def __str__(self) -> str:
        """Return `3 boxes: person 0.91, dog 0.80, dog 0.41`."""
        count = len(self.boxes)
        shown = ", ".join(f"{box.name} {box.score:.2f}" for box in self.boxes[:_SHOWN])
        more = f", and {count - _SHOWN} more" if count > _SHOWN else ""
        return f"{count} box{'' if count == 1 else 'es'}{': ' if count else ''}{shown}{more}"


@dataclass(frozen=True, eq=False)
class ClassMap:
    """The class of every pixel [H, W] of the picture. labels: empty if classes have no names."""

    ids: Array
    labels: tuple[str, ...] = ()

    def shares(self) -> list[tuple[int, float]]:
        """Return each class that occurs with its share of the picture, largest first."""
        numbers, counts = np.unique(self.ids, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return [(int(numbers[index]), float(counts[index] / self.ids.size)) for index in order]

    def name(self, class_id: int) -> str:
        """Return a class's name, or its number if it has none."""
        return self.labels[class_id] if self.labels else f"class {class_id}"

    def to_json(self) -> dict[str, object]:
        """Return the shares; the map itself is drawn or saved."""
        return {
            "classes": [
                {"class_id": number, "label": self.name(number), "share": round(share, 6)}
                for number, share in self.shares()
            ]
        }

    def __str__(self) -> str:
        """Return `sky 45.1 %, road 30.0 %`."""
        return ", ".join(f"{self.name(number)} {share:.1%}" for number, share in self.shares()[:_SHOWN])


@dataclass(frozen=True, eq=False)
class DepthMap:
    """A value for every pixel [H, W] of the picture, in whatever unit the model defines."""

    values: Array

    def to_json(self) -> dict[str, object]:
        """Return the range of values; the map itself is drawn or saved."""
        return {"depth": {"min": float(self.values.min()), "max": float(self.values.max())}}

    def __str__(self) -> str:
        """Return the range."""
        return f"depth {self.values.min():.4g} to {self.values.max():.4g}"


@dataclass(frozen=True, eq=False)
class Embedding:
    """A vector [D]."""

    vector: Array

    def to_json(self) -> dict[str, object]:
        """Return all numbers."""
        return {"embedding": [float(value) for value in self.vector]}

    def __str__(self) -> str:
        """Return its length and first numbers."""
        first = ", ".join(f"{value:.3g}" for value in self.vector[:4])
        return f"{len(self.vector)} numbers, norm {np.linalg.norm(self.vector):.4g}: {first}, ..."


@dataclass(frozen=True, eq=False)
class Outputs:
    """The raw outputs of a model whose config has no `task:`."""

    outputs: dict[str, Array]

    def to_json(self) -> dict[str, object]:
        """Return type, shape and range of each output; the numbers themselves are saved."""
        return {
            "outputs": [
                {"name": name, "dtype": value.dtype.name, "shape": list(value.shape), **_range(value)}
                for name, value in self.outputs.items()
            ]
        }

    def __str__(self) -> str:
        """Return `logits float32 [1, 1000]`."""
        return ", ".join(f"{name} {value.dtype.name} {list(value.shape)}" for name, value in self.outputs.items())


Answer = Classes | Text | DetectedBoxes | ClassMap | DepthMap | Embedding | Outputs


def _named(class_id: int, score: float, label: str) -> dict[str, object]:
    return {"class_id": class_id, **({"label": label} if label else {}), "score": round(score, 6)}


def _rounded(values: tuple[float, ...]) -> list[float]:
    return [round(value, 3) for value in values]


def _range(value: Array) -> dict[str, float | None]:
    """Return the smallest and the largest number, each None if it is not finite."""
    if not value.size or value.dtype.kind not in "fiub":
        return {}
    low, high = float(value.min()), float(value.max())
    return {"min": low, "max": high} if np.isfinite([low, high]).all() else {"min": None, "max": None}
