"""Where the layers of a network are drawn: below all that they read from, near it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def layered(reads: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return a column and a row for each node, no two alike. reads: the nodes, all earlier, that each one reads."""
    rows = _rows(reads)
    in_row: dict[int, list[int]] = {}
    for node, row in enumerate(rows):
        in_row.setdefault(row, []).append(node)
    columns = [0] * len(reads)
    for row in sorted(in_row):
        wanted = {node: round(_mean([columns[source] for source in reads[node]])) for node in in_row[row]}
        last = None
        # Nodes that read nothing are to the right of the others.
        for node in sorted(in_row[row], key=lambda each: (not reads[each], wanted[each], each)):
            columns[node] = wanted[node] if last is None else max(last + 1, wanted[node])
            last = columns[node]
    return list(zip(columns, rows, strict=True))


def _rows(reads: Sequence[Sequence[int]]) -> list[int]:
    """Return each node's row: right below the last that it reads; right above its first reader if it reads nothing."""
    rows: list[int] = []
    for sources in reads:
        rows.append(1 + max((rows[source] for source in sources), default=-1))
    readers: dict[int, int] = {}
    for row, sources in zip(rows, reads, strict=True):
        for source in sources:
            readers[source] = min(row, readers.get(source, row))
    return [
        row if sources else readers.get(node, 1) - 1
        for node, (row, sources) in enumerate(zip(rows, reads, strict=True))
    ]


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0
