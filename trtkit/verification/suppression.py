"""Checks of NMS inside a network: its input rows are compared with the reference's, and its selection is replayed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trtkit.network.onnx.nms import NMS_OUTPUTS, ROWS_KEY
from trtkit.reference import to_array
from trtkit.runtime.stages import ReferenceStage, StagesExecution
from trtkit.runtime.tasks.boxes import iou, read_rows, read_selected
from trtkit.verification.report import Suppression

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx
    import torch

    from trtkit.arrays import Array, Arrays
    from trtkit.config.task import Boxes
    from trtkit.runtime.tasks.boxes import Detections

_SAME_OBJECT = 0.5
_FAR = 10.0
# For numbers that are copied, and for those rounded to an output's own type.
_ROUNDING = {"float32": 1e-6, "float16": 2**-10}
_COARSEST = 2**-7


@dataclass(frozen=True, eq=False)
class RowsExecution(StagesExecution):
    """A network with NMS that returns the rows before NMS; its selection is checked in every run.

    selections: the check of each run. selected: the network's own outputs in the last run.
    """

    options: Boxes
    selections: list[Suppression] = field(default_factory=list)
    selected: dict[str, torch.Tensor] = field(default_factory=dict)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """Return the rows by name."""
        (stage,) = self.stages
        assert isinstance(stage, ReferenceStage)
        self.selected.update(stage.run(inputs))
        (rows,) = stage.seams.values()
        outputs = {name: to_array(value) for name, value in self.selected.items()}
        self.selections.append(check_selection(to_array(rows), outputs, self.options))
        return {self.output_names[0]: rows}

    def summary(self) -> Suppression:
        """Return the checks of all runs combined."""
        problems = [selection.problem for selection in self.selections if selection.problem]
        boxes = sum(selection.boxes for selection in self.selections)
        return Suppression(boxes, len(self.selections), not problems, problems[0] if problems else "")


def before_nms(execution: StagesExecution, graph: onnx.ModelProto, options: Boxes) -> RowsExecution:
    """Return the network with its rows as the output. graph: the parsed model, whose metadata names the rows."""
    rows = rows_of(graph)
    for stage in execution.stages:
        assert isinstance(stage, ReferenceStage)
        stage.tensors, stage.keeps_seams = {rows: rows}, True
    return RowsExecution(execution.stages, (rows,), options)


def rows_of(graph: onnx.ModelProto) -> str:
    """Return the name of the rows that the network's NMS reads."""
    return next(entry.value for entry in graph.metadata_props if entry.key == ROWS_KEY)


def check_selection(rows: Array, outputs: Arrays, options: Boxes) -> Suppression:
    """Replay greedy suppression on a batch's rows and compare the selection: each box, the order, and where it ends."""
    selected = read_selected(*(outputs[name] for name in NMS_OUTPUTS))
    rounding = _ROUNDING.get(outputs[NMS_OUTPUTS[1]].dtype.name, _COARSEST)
    candidates = read_rows(rows.astype(np.float32), options.layout)
    if len(selected) != len(candidates):
        return Suppression(0, 1, False, f"{len(selected)} images selected of {len(candidates)}")
    problems = [_replay(*pair, options, rounding) for pair in zip(candidates, selected, strict=True)]
    problem = next((f"image {image}, {text}" for image, text in enumerate(problems) if text), "")
    return Suppression(sum(len(selection.scores) for selection in selected), 1, not problem, problem)


def _replay(rows: Detections, selected: Detections, options: Boxes, rounding: float) -> str:
    """Describe the first box that is not the best remaining one; empty if all are.

    Equal scores may come in any order.
    """
    left = rows.scores >= options.min_score
    for index, (box, score, kind) in enumerate(zip(selected.boxes, selected.scores, selected.classes, strict=True)):
        is_best = left & (rows.scores >= rows.scores[left].max(initial=0) * (1 - 1e-6))
        is_alike = (rows.classes == kind) & np.isclose(rows.scores, score, rounding, rounding)
        row = _first(is_best & is_alike & np.isclose(rows.boxes, box, rounding, rounding).all(-1))
        if row is None:
            best = _first(is_best)
            expected = "no box" if best is None else _described(rows, best)
            return f"box {index}: {_described(selected, index)} was selected; {expected} comes next"
        left &= (rows.classes != kind) | (iou(rows.boxes[row], rows.boxes) <= options.max_iou)
        left[row] = False
    row = _first(left) if len(selected.scores) < options.max_boxes else None
    return "" if row is None else f"{_described(rows, row)} was not selected"


def _first(mask: Array) -> int | None:
    indices = np.flatnonzero(mask)
    return int(indices[0]) if len(indices) else None


def _described(detections: Detections, row: int) -> str:
    return f"class {detections.classes[row]} with score {detections.scores[row]:.6f}"


def matched(ours: Arrays, theirs: Arrays, tolerance: float) -> tuple[Arrays, Arrays, float]:
    """Return the boxes and scores that two runs share, in one order, and the share of boxes that only one has.

    A pair has the same class and an IoU of at least 0.5. Near ties in score resolve differently in other arithmetic, so
    that another box represents the object: pairs more than ten times the tolerance apart count as unshared.
    """
    sides = [read_selected(*(side[name] for name in NMS_OUTPUTS)) for side in (ours, theirs)]
    pairs = [
        (_numbers(one, mine), _numbers(other, its))
        for one, other in zip(*sides, strict=True)
        for mine, its in _pairs(one, other)
    ]
    near = [(a, b) for a, b in pairs if np.linalg.norm(a - b) <= _FAR * tolerance * np.linalg.norm(b)]
    total = sum(len(selection.scores) for side in sides for selection in side)
    tables = [np.array([pair[side] for pair in near]).reshape(-1, 5) for side in (0, 1)]
    own_outputs, other = ({NMS_OUTPUTS[1]: table[:, :4], NMS_OUTPUTS[2]: table[:, 4]} for table in tables)
    return own_outputs, other, 1 - 2 * len(near) / total if total else 0.0


def _numbers(detections: Detections, row: int) -> Array:
    return np.append(detections.boxes[row], detections.scores[row]).astype(np.float64)


def _pairs(one: Detections, other: Detections) -> list[tuple[int, int]]:
    """Return the pairs of boxes in one image that are the same object, by descending score."""
    pairs, free = [], np.ones(len(other.scores), bool)
    for row in range(len(one.scores)):
        overlap = np.where(free & (other.classes == one.classes[row]), iou(one.boxes[row], other.boxes), 0)
        if len(overlap) and overlap.max() >= _SAME_OBJECT:
            pairs.append((row, int(overlap.argmax())))
            free[overlap.argmax()] = False
    return pairs
