"""What a described network leaves out of a quantized one: caches in eight bits, and inputs in fp4."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.dtypes import DType
    from trtkit.network.record import LayerRecord, NetworkRecord, TensorRecord


def as_quantized(record: NetworkRecord, cache: str | None) -> NetworkRecord:
    """Return the record with caches in the type `cache`, where it has one, and with products by fp4 in fp4.

    The network with caches in eight bits attends to new keys behind the cached ones, which is no more work: here its
    caches hold both, as all others do. fp4 inputs were written as fp8: see `LayerForm.matrix`.
    """
    types = dict.fromkeys(_fp4_inputs(record), "fp4")
    if cache is not None:
        types |= dict.fromkeys(_caches(record), cache)
    layers = tuple(_layer(layer, types, cache) for layer in record.layers)
    inputs, outputs = (_typed(tensors, types) for tensors in (record.inputs, record.outputs))
    return replace(record, inputs=inputs, outputs=outputs, layers=layers)


def read_bytes(record: NetworkRecord, dtype: DType) -> list[int]:
    """Return, by layer, the bytes of keys and values that attention reads in `dtype`: made of caches in few bits."""
    caches = _caches(record)
    return [
        sum(dtype.size_bytes(math.prod(tensor.shape)) for tensor in layer.inputs if tensor.name in caches)
        if layer.type == "ATTENTION_INPUT"
        else 0
        for layer in record.layers
    ]


def _caches(record: NetworkRecord) -> set[str]:
    """Return the names of caches before and after their updates."""
    updates = [layer for layer in record.layers if layer.type == "KV_CACHE_UPDATE"]
    return {tensor.name for layer in updates for tensor in (layer.inputs[0], *layer.outputs)}


def _fp4_inputs(record: NetworkRecord) -> set[str]:
    """Return the quantized inputs of products with matrices in fp4."""
    codes = {layer.outputs[0].name: layer.inputs[0] for layer in record.layers if layer.type == "DEQUANTIZE"}
    pairs = [
        [codes.get(tensor.name) for tensor in layer.inputs[:2]]
        for layer in record.layers
        if layer.type == "MATRIX_MULTIPLY"
    ]
    return {x.name for x, weight in pairs if x is not None and weight is not None and weight.dtype == "fp4"}


def _layer(layer: LayerRecord, types: Mapping[str, str], cache: str | None) -> LayerRecord:
    """Return a layer with tensors in other types; what is written to a cache in the cache's."""
    own = dict(types)
    if cache is not None and layer.type == "KV_CACHE_UPDATE":
        own[layer.inputs[1].name] = cache
    return replace(layer, inputs=_typed(layer.inputs, own), outputs=_typed(layer.outputs, own))


def _typed(tensors: tuple[TensorRecord, ...], types: Mapping[str, str]) -> tuple[TensorRecord, ...]:
    return tuple(replace(each, dtype=types.get(each.name, each.dtype)) for each in tensors)
