"""Pair the rows of outputs that come in no order of their own, such as a detector's queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from trtkit.arrays import Arrays

# Of the tolerance: rows that are farther from each other than this are not the same proposal.
_FAR = 10.0


def paired_rows(ours: Arrays, theirs: Arrays) -> Arrays:
    """Return `ours` with the rows of every image in the reference's order: [B, Q, ...], the same rows in all outputs.

    Each row of the reference takes the nearest that is left. Rows that have no partner show as errors, as they should.
    """
    order = [_order(_rows(ours, image), _rows(theirs, image)) for image in range(len(next(iter(ours.values()))))]
    return {name: np.stack([value[image][rows] for image, rows in enumerate(order)]) for name, value in ours.items()}


def partners(ours: Arrays, theirs: Arrays, tolerance: float) -> tuple[Arrays, Arrays, float]:
    """Return paired rows of both sides, one below the other, without those that have no partner; and their share.

    A detector proposes its best places; near the cut-off, scores are so alike that rounding chooses others. Such a row
    is far from every row of the other side: ten times the tolerance, in the relative distance of all outputs together.
    """
    count = len(next(iter(theirs.values())))
    near = np.stack([_is_near(_rows(ours, image), _rows(theirs, image), tolerance) for image in range(count)])
    near |= ~np.stack([_is_finite(ours, image) for image in range(count)])  # these show as errors
    kept = [{name: value[near] for name, value in side.items()} for side in (ours, theirs)]
    return kept[0], kept[1], float(1 - near.mean())


def _is_near(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], tolerance: float) -> np.ndarray[Any, Any]:
    """Return which rows are the same, [Q]."""
    distance = np.linalg.norm(ours - theirs, axis=1)
    is_near: np.ndarray[Any, Any] = distance <= _FAR * tolerance * np.linalg.norm(theirs, axis=1)
    return is_near


def _is_finite(arrays: Arrays, image: int) -> np.ndarray[Any, Any]:
    """Return which rows of an image hold numbers only, [Q]."""
    parts = [np.isfinite(value[image]).reshape(value.shape[1], -1).all(axis=1) for value in arrays.values()]
    return np.asarray(np.stack(parts).all(axis=0))


def _rows(arrays: Arrays, image: int) -> np.ndarray[Any, Any]:
    """Return all outputs of an image side by side: [Q, F], each output of unit size."""
    flat = [np.nan_to_num(value[image].astype(np.float64)).reshape(value.shape[1], -1) for value in arrays.values()]
    return np.concatenate([part / (np.linalg.norm(part) or 1.0) for part in flat], axis=1)


def _order(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> list[int]:
    """Return for each row of the reference the row of ours that it is paired with."""
    distances = ((theirs**2).sum(1)[:, None] + (ours**2).sum(1)[None] - 2 * theirs @ ours.T).clip(0)
    order = np.full(len(theirs), -1)
    for _ in range(len(theirs)):
        row, column = np.unravel_index(np.argmin(distances), distances.shape)
        order[row] = column
        distances[row, :], distances[:, column] = np.inf, np.inf
    return [int(column) for column in order]
