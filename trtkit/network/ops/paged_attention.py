"""Attention that reads pages in place, as the custom op PagedAttention, and custom ops as layers of a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import NetworkError
from trtkit.network.custom_op import DOMAIN, find
from trtkit.network.foreign import Fact, Refusal
from trtkit.network.lowering.trt_ops import TrtOps
from trtkit.network.ops.arithmetic import cast
from trtkit.network.ops.attention import merged_attention
from trtkit.network.plugin import Plugin, attributes_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trtkit.network.custom_op import CustomOp
    from trtkit.network.graph import Graph, Tensor


@dataclass(frozen=True, eq=False)
class PageRows:
    """A call's sequences. table: [B, n], the pages of each, in order.

    lengths, counts: [B], tokens in the pages, and new ones.
    """

    table: Tensor
    lengths: Tensor
    counts: Tensor


@dataclass(frozen=True, eq=False)
class Pages:
    """The pages that a layer reads in place. keys, values: pools [P, K, page, H]. attributes: the op's, by name."""

    rows: PageRows
    keys: Tensor
    values: Tensor
    attributes: Mapping[str, float | str]


def paged_attention(
    q: Tensor, new_keys: Tensor, new_values: Tensor, pages: Pages, sinks: Tensor | None = None
) -> Tensor:
    """Attend from q [B, N, S, H], already scaled, to cached tokens and new ones, causally; rows of padding are zero.

    new_keys, new_values: of the new tokens [B, K, S, H], in the type of the pools. sinks: [N], see
    `attention_from_primitives`.
    """
    op, rows = find("PagedAttention"), pages.rows
    inputs = (q, pages.keys, pages.values, new_keys, new_values, rows.table, rows.lengths, rows.counts, sinks)
    attributes = op.attributes(**pages.attributes)
    (y,) = add_op(q.graph, op, inputs, attributes)
    has_parts = q.graph.plugins is not None and attributes.parts > 1
    return cast(merged_attention(y), q.dtype) if has_parts else y


def add_op(graph: Graph, op: CustomOp, inputs: Sequence[Tensor | None], attributes: object) -> list[Tensor]:
    """Add a custom op: a plugin layer if `graph.plugins` is set, else its lowering. Raises NetworkError.

    inputs: None if an optional one is missing. A plugin takes all of its inputs, with defaults for missing ones.
    """
    try:
        op.check([None if x is None else Fact(x.dtype, x.shape) for x in inputs], attributes)
    except Refusal as refusal:
        raise NetworkError(f"`{op.name}`: {refusal.what}", graph.path(), refusal.fix) from refusal
    with graph.scope(op.name):
        if graph.plugins is None:
            return op.lower(TrtOps(graph), inputs, attributes, op.form(None))
        present = [x for x in inputs if x is not None]
        return _plugin_layer(graph, op, [*present, *_missing(op, present)], attributes_for(op, attributes))


def _missing(op: CustomOp, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Add constants for the last inputs of the op's plugin if they are missing."""
    plugin: Plugin = op.part("plugin").PLUGIN
    arrays = plugin.missing([Fact(x.dtype, x.shape) for x in inputs])
    names, data = plugin.inputs[len(inputs) :], inputs[plugin.data]
    return [data.graph.constant(array, name, data.dtype) for name, array in zip(names, arrays, strict=True)]


def _plugin_layer(
    graph: Graph, op: CustomOp, inputs: Sequence[Tensor], attributes: Mapping[str, object]
) -> list[Tensor]:
    """Add the plugin with its kernel compiled ahead of time. The op must be registered with `graph.plugins`."""
    plugin = getattr(getattr(graph.plugins.op, DOMAIN), op.name)
    call = plugin(*(x.trt for x in inputs), **attributes)
    layer = graph.network.add_plugin(call, aot=True)
    first = graph.add(layer, "plugin")
    others = [layer.get_output(index) for index in range(1, len(op.outputs))]
    for port, tensor in zip(op.outputs[1:], others, strict=True):
        tensor.name = f"{first.name}/{port.name}"
    return [first, *map(graph.tensor, others)]
