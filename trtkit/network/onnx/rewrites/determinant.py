"""Det of matrices up to 4 x 4, by Laplace's expansion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.network.foreign import Refusal
from trtkit.network.onnx.rewrites.rule import Node, Rule, Written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.network.lowering.onnx_value import OnnxValue
    from trtkit.network.onnx.rewrites.writer import Writer

_LARGEST = 4


def det(o: Writer, node: Node) -> Written:
    """Write [..., n, n] -> [...]."""
    x = node.x(0)
    size = x.shape[-1]
    if not 1 <= size <= _LARGEST:
        known = "an unknown size" if size < 0 else f"{size} x {size}"
        raise Refusal(f"matrices of {known}, allowed: 1 x 1 to {_LARGEST} x {_LARGEST}", "compute it before the model")
    rows = [o.split(row, -1) for row in o.split(x, len(x.shape) - 2)]
    return [_expanded(o, rows, range(size))]


def _expanded(o: Writer, rows: Sequence[Sequence[OnnxValue]], columns: Sequence[int]) -> OnnxValue:
    """Expand along the first row of what is left."""
    if len(columns) == 1:
        return rows[0][columns[0]]
    total: OnnxValue | None = None
    for index, column in enumerate(columns):
        rest = [*columns[:index], *columns[index + 1 :]]
        term = rows[0][column] * _expanded(o, rows[1:], rest)
        total = term if total is None else total - term if index % 2 else total + term
    assert total is not None
    return total


RULES = (Rule("", "Det", det),)
