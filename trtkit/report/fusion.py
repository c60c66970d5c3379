"""The fusion of a bundle's networks as an HTML page: tables of kernels, and each network as a graph."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from trtkit.report.fusion_tables import fusion_tables
from trtkit.report.page import page, section

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.network.fusion import Fusion
    from trtkit.network.record import LayerRecord, NetworkRecord
    from trtkit.report.page import PageOrigin, PagePart


_NUMBERED = re.compile(r"\blayers\.\d+\b")
_HALF = re.compile(r"_Attention(Input|Output)$")


@dataclass(frozen=True)
class LayerMeasurements:
    """Measurements of layers by other commands, by layer name: relative RMS errors, and the time in one call."""

    errors: Mapping[str, float] = field(default_factory=dict)
    times_ms: Mapping[str, float] = field(default_factory=dict)

    def error(self, layer: str) -> float | None:
        """Return a layer's error, None if it was not measured."""
        return self.errors.get(layer)

    def time_ms(self, layer: str) -> float | None:
        """Return a layer's time, None if it was not measured.

        Repeated layers, and the halves of attention, share one.
        """
        stated = self.times_ms.get(layer)
        return stated if stated is not None else self.times_ms.get(_HALF.sub("", _NUMBERED.sub("layers.*", layer)))

    def knows(self, layer: str) -> bool:
        """Whether there is any measurement of a layer."""
        return self.error(layer) is not None or self.time_ms(layer) is not None


Position = tuple[int, int]
"""Column and row of a layer in the figure."""


@dataclass(frozen=True)
class _Node:
    """A layer as drawn by graph.js, in column x and row y. kernels: their numbers. output: types and shapes."""

    x: int
    y: int
    kernels: list[int]
    name: str
    type: str
    precision: str
    output: str
    bytes: int
    flops: int
    error: float | None
    ms: float | None


def fusion_page(
    name: str,
    fusions: Sequence[tuple[Fusion, NetworkRecord]],
    measured: Sequence[LayerMeasurements],
    origin: PageOrigin,
) -> str:
    """Return a self-contained page. measured: for each fusion."""
    parts: list[PagePart] = []
    for (fusion, network), measurements in zip(fusions, measured, strict=True):
        summary, kernels = fusion_tables(fusion)
        parts += section(_title(fusion), summary, _graph(fusion, network, measurements), kernels)
    code = Path(__file__).with_name("graph.js").read_text(encoding="utf-8")
    return page(f"kernels of {name}", [*parts, Markup("<script>{}</script>").format(Markup(code))], origin)


def _title(fusion: Fusion) -> str:
    """Return the stage with the shapes of its inputs, except caches."""
    shapes = (f"{name} {list(shape)}" for name, shape in fusion.shapes.items() if not name.startswith("past_"))
    return f"{fusion.title}: {', '.join(shapes)}" if fusion.shapes else fusion.title


def _graph(fusion: Fusion, network: NetworkRecord, measured: LayerMeasurements) -> Markup:
    """Return a network as a figure drawn by graph.js, without constants."""
    kernels: dict[str, list[int]] = {}
    for number, kernel in enumerate(fusion.kernels):
        for layer in kernel.layers:
            kernels.setdefault(layer, []).append(number)
    layers = [layer for layer in network.layers if layer.type != "CONSTANT"]
    makers = {tensor.name: index for index, layer in enumerate(layers) for tensor in layer.outputs}
    reads = [sorted({makers[t.name] for t in layer.inputs if makers.get(t.name, index) < index})
             for index, layer in enumerate(layers)]  # fmt: skip
    nodes = [
        _node(layer, position, kernels.get(layer.name, []), measured)
        for layer, position in zip(layers, layered(reads), strict=True)
    ]
    edges = [[source, index] for index, sources in enumerate(reads) for source in sources]
    named = [{"name": kernel.name, "kind": kernel.kind} for kernel in fusion.kernels]
    text = json.dumps({"nodes": [asdict(node) for node in nodes], "edges": edges, "kernels": named}).replace(
        "<", "\\u003c"
    )
    options = Markup("").join(Markup("<option value='{}'>{}</option>").format(*pair) for pair in _color_keys(nodes))
    return Markup(_FIGURE).format(options, Markup(text))


_FIGURE = (
    "<figure class='graph'><div><label>Color by <select>{}</select></label> "
    "<input type='search' placeholder='Search layers'> <span class='note found'></span></div>"
    "<canvas tabindex='0'></canvas><script type='application/json'>{}</script><pre class='note'></pre>"
    "<figcaption>A box is a layer: drag to move, scroll or pinch to zoom, click for details. Layers of one kernel have "
    "one color; gray ones are in no kernel, or were not measured.</figcaption></figure>"
)


def _node(layer: LayerRecord, position: Position, kernels: list[int], measured: LayerMeasurements) -> _Node:
    return _Node(
        *position,
        kernels,
        layer.name,
        layer.type.lower(),
        layer.outputs[0].dtype if layer.outputs else "",
        ", ".join(f"{tensor.dtype} {list(tensor.shape)}" for tensor in layer.outputs),
        layer.bytes_moved,
        layer.flops,
        measured.error(layer.name),
        measured.time_ms(layer.name),
    )


def _color_keys(nodes: Sequence[_Node]) -> Iterator[tuple[str, str]]:
    """Yield the properties by which layers can be colored; measurements only if there are any."""
    yield from (("kernel", "kernel"), ("type", "type"), ("precision", "precision"), ("bytes", "bytes"))
    yield ("flops", "operations")
    if any(node.ms is not None for node in nodes):
        yield "ms", "time"
    if any(node.error is not None for node in nodes):
        yield "error", "error"


def layered(reads: Sequence[Sequence[int]]) -> list[Position]:
    """Return a unique column and row for each node. reads: for each node, the earlier nodes that it reads."""
    rows = _rows(reads)
    in_row: dict[int, list[int]] = {}
    for node, row in enumerate(rows):
        in_row.setdefault(row, []).append(node)
    columns = [0] * len(reads)
    for row in sorted(in_row):
        wanted = {node: round(_mean([columns[source] for source in reads[node]])) for node in in_row[row]}
        last = None
        # Nodes that read nothing are to the right of the others.
        for node in sorted(in_row[row], key=lambda candidate: (not reads[candidate], wanted[candidate], candidate)):
            columns[node] = wanted[node] if last is None else max(last + 1, wanted[node])
            last = columns[node]
    return list(zip(columns, rows, strict=True))


def _rows(reads: Sequence[Sequence[int]]) -> list[int]:
    """Return each node's row: just below the last that it reads, or just above its first reader if it reads nothing."""
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
