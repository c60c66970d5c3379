"""ONNX files exported by Ultralytics, whose metadata state the task, the picture size and the classes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.config.schema import DimRange
from trtkit.config.task import Boxes, Preprocess, Resize, Task
from trtkit.errors import SourceError
from trtkit.sources.onnx_file import class_names, metadata, read_graph

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from onnx import ValueInfoProto

    from trtkit.arrays import HeightWidth
    from trtkit.config.schema import Profile

_KEYS = {"task", "imgsz", "names", "stride"}
_LETTERBOXED = {"detect", "segment", "pose", "obb"}
_OBJECT = 4
"""Numbers of a box: its center and size."""
_FIRST_PLAIN_CLASSIFIERS = (8, 1)
"""Version whose classifiers scale, crop, and no longer normalize."""


@dataclass(frozen=True)
class UltralyticsExport:
    """Metadata of an exported file. size: (height, width); classes: their number; keypoints: numbers per pose.

    input_name, input_shape, outputs: of the graph; a dimension is a size or a symbol. ends_in_nms: whether, by the
    metadata, the network leaves one box per object.
    """

    task: str
    size: HeightWidth
    classes: int
    keypoints: int
    version: tuple[int, ...]
    input_name: str
    input_shape: tuple[int | str, ...]
    outputs: tuple[tuple[int | str, ...], ...]
    ends_in_nms: bool

    @property
    def trtkit_task(self) -> Task | None:
        """How the outputs are read; None for a task that trtkit lacks, and for other output layouts."""
        if self.task == "classify":
            return Task(kind="classification") if [len(shape) for shape in self.outputs] == [2] else None
        layout = self._box_layout()
        if layout is None or self.task not in {"detect", "pose"}:
            return None
        kind = "detection" if self.task == "detect" else "pose"
        return Task.model_validate({"kind": kind, "boxes": Boxes.model_validate({"layout": layout})})

    @property
    def preprocess(self) -> Preprocess | None:
        """The preprocessing of Ultralytics' own predictor; None if it is unknown."""
        height, width = self.size
        if self.task in _LETTERBOXED:
            if self.task == "detect" and self.trtkit_task is None:  # RT-DETR, whose pictures are stretched
                return None
            return Preprocess(resize=Resize(letterbox=self.size))
        if self.task != "classify" or self.version < _FIRST_PLAIN_CLASSIFIERS:
            return None
        if height == width:
            return Preprocess(resize=Resize(shortest_edge=height), crop=self.size)
        return Preprocess(resize=Resize(exact=self.size))

    def profiles(self, stated: Sequence[Profile], size: HeightWidth) -> tuple[Profile, ...]:
        """Return profiles in which every dynamic height and width has a range: the stated one, or the picture size."""
        edges = {2: size[0], 3: size[1]}
        missing = {axis: edge for axis, edge in edges.items() if isinstance(self.input_shape[axis], str)}
        if not missing:
            return tuple(stated)
        return tuple(self._completed(profile, missing) for profile in stated or [{}])

    def _completed(self, profile: Profile, missing: Mapping[int, int]) -> Profile:
        ranges: Profile = {}
        for axis, edge in missing.items():
            key = f"{self.input_name}.{axis}"
            if not profile.keys() & {key, self.input_name, self.input_shape[axis]}:
                ranges[key] = DimRange(min=edge, opt=edge, max=edge)
        return profile | ranges

    def _box_layout(self) -> str | None:
        """Return the layout of boxes: one row per box, sorted by rank, or one column per box before NMS."""
        if len(self.outputs) != 1 or len(self.outputs[0]) != 3 or not self.classes:
            return None
        if self.task == "pose" and (self.classes != 1 or not self.keypoints or self.keypoints % 3):
            return None
        row, last = self.outputs[0][1:]
        scored = _OBJECT + self.classes + self.keypoints
        if last == 6 + self.keypoints and (self.ends_in_nms or last != scored):
            return "suppressed"
        return "channels-first" if row == scored and last != scored else None


def read_export(path: Path) -> UltralyticsExport | None:
    """Return the metadata that Ultralytics wrote to an ONNX file; None for other or unreadable files."""
    entries = metadata(path)
    if not entries.keys() >= _KEYS:
        return None
    try:
        model = read_graph(path)
    except SourceError:  # reported where the model is read
        return None
    sizes = [size for size in _numbers(entries["imgsz"]) if size > 0]
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    shape = _shape(inputs[0]) if len(inputs) == 1 else ()
    if len(sizes) not in {1, 2} or len(shape) != 4 or shape[1] != 3:
        return None
    height, width = (
        dim if isinstance(dim, int) else size for dim, size in zip(shape[2:], (sizes[0], sizes[-1]), strict=True)
    )
    version = tuple(int(number) for number in entries.get("version", "").split(".")[:2] if number.isdecimal())
    points = _numbers(entries.get("kpt_shape", "")) if entries["task"] == "pose" else []
    return UltralyticsExport(
        entries["task"], (height, width), len(class_names(entries["names"])),
        points[0] * points[1] if len(points) == 2 and points[1] == 3 else 0, version, inputs[0].name, shape,
        tuple(_shape(value) for value in model.graph.output), _ends_in_nms(entries),
    )  # fmt: skip


def _ends_in_nms(entries: Mapping[str, str]) -> bool:
    return entries.get("end2end") == "True" or "'nms': True" in entries.get("args", "")


def _shape(value: ValueInfoProto) -> tuple[int | str, ...]:
    """Return the dimensions of an input or output; an unknown one is an empty symbol."""
    return tuple(dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim)


def _numbers(text: str) -> list[int]:
    """Return the integers of `[320, 320]` or `320`; an empty list for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    values: Iterable[object] = value if isinstance(value, list) else [value]
    return [number for number in values if isinstance(number, int) and not isinstance(number, bool)]
