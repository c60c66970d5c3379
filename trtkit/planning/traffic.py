"""Computation and memory traffic of a described network: by group of layers, and at best as a whole.

A layer on its own moves its operands and its result. A perfectly fused network moves only its weights, its inputs and
outputs, and the cache rows that are read and written.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.dtypes import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.network.record import LayerRecord, NetworkRecord

# Layers that compute on tensor cores.
PRODUCTS = {"MATRIX_MULTIPLY", "CONVOLUTION", "DECONVOLUTION", "EINSUM", "ATTENTION_INPUT"}
# Layers that read only the rows of their first operand that they return.
_PICK = {"GATHER", "SLICE"}
# Layers whose constants are tables, and constants that are positions, axes or sizes: neither count as weights.
_UNWEIGHTED = {*_PICK, "ROTARY_EMBEDDING"}
_INDICES = {"int32", "int64", "bool"}


@dataclass
class GroupCost:
    """Layers of one kind. products: tensor core operations by type. weight_bytes: as stored; included in `bytes`."""

    layers: int = 0
    flops: int = 0
    products: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    bytes: int = 0
    weight_bytes: int = 0


@dataclass
class NetworkCost:
    """A whole network at the shapes it was described at.

    fused_bytes: the fewest bytes it must move. cache_bytes: the part of these that is read from caches. alive_bytes:
    live results while each layer runs, excluding caches and weights, without fusion.
    """

    groups: dict[str, GroupCost]
    fused_bytes: int
    cache_bytes: int
    alive_bytes: list[int]


def network_cost(record: NetworkRecord, group_of: Callable[[str, str], str]) -> NetworkCost:
    """Return the cost of a described network. group_of: maps a layer's name and type to its group."""
    stored = _stored_bytes(record.layers)
    sources = _quantized_sources(record.layers)
    groups: dict[str, GroupCost] = defaultdict(GroupCost)
    for layer in record.layers:
        if not all(tensor.name in stored for tensor in layer.outputs):
            _add(groups[group_of(layer.name, layer.type)], layer, stored, sources)
    read, cache = _fused_bytes(record, stored)
    return NetworkCost(dict(groups), read, cache, _alive_bytes(record, stored))


def repeated(few: NetworkCost, more: NetworkCost, times: int) -> NetworkCost:
    """Return the cost of a network that adds `times` more of the difference between `more` and `few`."""

    def grown(small: int, large: int) -> int:
        return large + times * (large - small)

    groups: dict[str, GroupCost] = {}
    for name, large in more.groups.items():
        small = few.groups.get(name, GroupCost())
        products = {dtype: grown(small.products.get(dtype, 0), flops) for dtype, flops in large.products.items()}
        sums = {
            key: grown(getattr(small, key), getattr(large, key)) for key in ("layers", "flops", "bytes", "weight_bytes")
        }
        groups[name] = GroupCost(products=products, **sums)
    fused, cache = grown(few.fused_bytes, more.fused_bytes), grown(few.cache_bytes, more.cache_bytes)
    return NetworkCost(groups, fused, cache, more.alive_bytes)


def _add(group: GroupCost, layer: LayerRecord, stored: dict[str, int], sources: dict[str, str]) -> None:
    """Add a layer that runs to its group."""
    group.layers += 1
    group.flops += layer.flops
    if layer.type in PRODUCTS:
        group.products[_product_type(layer, sources)] += layer.flops
    if layer.type not in _UNWEIGHTED:
        group.weight_bytes += sum(stored.get(t.name, 0) for t in layer.inputs if t.dtype not in _INDICES)
    group.weight_bytes += sum(layer.weight_bytes.values())
    group.bytes += _least_bytes(layer, stored)


def _stored_bytes(layers: Sequence[LayerRecord]) -> dict[str, int]:
    """Return the stored bytes of every tensor that depends on constants only, which TensorRT folds.

    A dequantized constant is read in its stored form.
    """
    stored: dict[str, int] = {}
    for layer in layers:
        if layer.type == "CONSTANT":
            stored[layer.outputs[0].name] = layer.outputs[0].size_bytes
        elif layer.inputs and all(tensor.name in stored for tensor in layer.inputs):
            read = sum(stored[tensor.name] for tensor in layer.inputs)
            for tensor in layer.outputs:
                stored[tensor.name] = read if layer.type == "DEQUANTIZE" else tensor.size_bytes
    return stored


def _quantized_sources(layers: Sequence[LayerRecord]) -> dict[str, str]:
    """Return, by dequantized tensor, its type before dequantization."""
    return {layer.outputs[0].name: layer.inputs[0].dtype for layer in layers if layer.type == "DEQUANTIZE"}


def _product_type(layer: LayerRecord, sources: dict[str, str]) -> str:
    """Return the type of a product: the narrow one if both operands were dequantized, which TensorRT fuses."""
    operands = [sources.get(tensor.name, tensor.dtype) for tensor in layer.inputs[:2]]
    if len(operands) == 2 and any(tensor.name not in sources for tensor in layer.inputs[:2]):
        return layer.inputs[0].dtype
    return max(operands, key=lambda name: DTYPES[name].bits)


def _least_bytes(layer: LayerRecord, stored: dict[str, int]) -> int:
    """Return the bytes that a layer must move: operands, weights and result; of large tables only the rows it takes."""
    result = sum(tensor.size_bytes for tensor in layer.outputs)
    if layer.type == "KV_CACHE_UPDATE":  # in place: new rows are read and written
        return 2 * layer.inputs[1].size_bytes
    if layer.type in _PICK:
        return 2 * result + sum(tensor.size_bytes for tensor in layer.inputs[1:])
    if layer.type == "ROTARY_EMBEDDING":
        return layer.inputs[0].size_bytes + result
    if layer.type == "ATTENTION_INPUT":  # its output represents the operands, the next layer's for the result
        result = 0
    if layer.type == "ATTENTION_OUTPUT":
        return result
    operands = sum(stored.get(tensor.name, tensor.size_bytes) for tensor in layer.inputs)
    return operands + result + sum(layer.weight_bytes.values())


def _fused_bytes(record: NetworkRecord, stored: dict[str, int]) -> tuple[int, int]:
    """Return the fewest bytes of the whole network, and how many of these are read from caches."""
    running = [layer for layer in record.layers if not all(tensor.name in stored for tensor in layer.outputs)]
    weights: dict[str, int] = {}
    picked = written = 0
    for layer in running:
        if layer.type in _PICK and layer.inputs[0].name in stored:
            picked += sum(tensor.size_bytes for tensor in layer.outputs)
        elif layer.type == "KV_CACHE_UPDATE":
            written += layer.inputs[1].size_bytes
        elif layer.type != "ROTARY_EMBEDDING":
            weights |= {tensor.name: stored[tensor.name] for tensor in layer.inputs if tensor.name in stored}
        picked += sum(layer.weight_bytes.values())
    caches = _cache_names(running)
    edges = {tensor.name: tensor for layer in running for tensor in (*layer.inputs, *layer.outputs)}
    cache = sum(edges[name].size_bytes for name in caches)
    names = [tensor.name for tensor in (*record.inputs, *record.outputs)]
    ends = [edges[name].size_bytes for name in names if name in edges and name not in caches]
    updated = _updated(running)
    present = sum(edges[tensor.name].size_bytes for tensor in record.outputs if tensor.name in updated)
    return sum(weights.values()) + picked + written + cache + sum(ends) - present, cache


def _cache_names(layers: Sequence[LayerRecord]) -> set[str]:
    """Return the caches that layers update in place."""
    return {layer.inputs[0].name for layer in layers if layer.type == "KV_CACHE_UPDATE"}


def _updated(layers: Sequence[LayerRecord]) -> set[str]:
    """Return the same caches under their names after the updates."""
    return {layer.outputs[0].name for layer in layers if layer.type == "KV_CACHE_UPDATE"}


def _alive_bytes(record: NetworkRecord, stored: dict[str, int]) -> list[int]:
    """Return, by layer, the bytes of live results while it runs, each from its producer to its last consumer."""
    skipped = {*stored, *_updated(record.layers), *(tensor.name for tensor in record.inputs)}
    last = {tensor.name: index for index, layer in enumerate(record.layers) for tensor in layer.inputs}
    ends: dict[int, int] = defaultdict(int)
    alive, alive_by_layer = 0, []
    for index, layer in enumerate(record.layers):
        results = [] if layer.type == "ATTENTION_INPUT" else [t for t in layer.outputs if t.name not in skipped]
        alive += sum(tensor.size_bytes for tensor in results)
        alive_by_layer.append(alive)
        for tensor in results:
            ends[max(index, last.get(tensor.name, index))] += tensor.size_bytes
        alive -= ends.pop(index, 0)
    return alive_by_layer
