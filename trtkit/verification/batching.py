"""Whether requests may share a batch: what a server's batcher takes for granted, and few networks say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.arrays import Arrays
    from trtkit.network.onnx.io import OnnxTensorSpec
    from trtkit.network.profile import ResolvedProfile


def two_rows(
    inputs: Sequence[OnnxTensorSpec], profiles: Sequence[ResolvedProfile]
) -> dict[str, tuple[int, ...]] | None:
    """Return the first profile's opt shapes with two rows; None if its axis 0 does not go from one row to two."""
    shapes = profiles[0] if profiles else {}
    if not inputs or any(spec.name not in shapes for spec in inputs):
        return None
    if any(not ranges.min or ranges.min[0] > 1 or ranges.max[0] < 2 for ranges in shapes.values()):
        return None
    return {name: (2, *ranges.opt[1:]) for name, ranges in shapes.items()}


def row_by_row(run: Callable[[Arrays], Arrays], inputs: Arrays) -> tuple[Arrays, Arrays] | None:
    """Return the outputs of two rows together, and of each alone, joined.

    None if an output does not grow with the rows, as the list of what a detector found in all of them.
    """
    together = run(inputs)
    alone = [run({name: value[row : row + 1] for name, value in inputs.items()}) for row in range(2)]
    for name, value in together.items():
        if any(row[name].shape != (1, *value.shape[1:]) for row in alone) or value.shape[:1] != (2,):
            return None
    return together, {name: np.concatenate([row[name] for row in alone]) for name in together}
