"""In which type pages are copied."""

from __future__ import annotations

import pytest

from trtkit.backends import load_backend
from trtkit.dtypes import FP16, INT32
from trtkit.network.graph import Graph
from trtkit.network.input_spec import Axis, InputSpec
from trtkit.network.ops.kv_cache import CacheIndex, append_quantized


@pytest.mark.parametrize(("held", "copied"), [("int8", "int8"), ("fp8", "fp16")])
def test_pages_are_copied_in_8_bits_where_tensorrt_gathers_them(held: str, copied: str) -> None:
    """int8 pages are dequantized after they are gathered, fp8 ones before: TensorRT gathers no fp8."""
    graph = Graph(load_backend("tensorrt_rtx"))
    heads, size = Axis("key_value_heads", 2), Axis("head_dim", 8)
    pool = graph.take(InputSpec("pool", held, (Axis("pages"), heads, Axis("page_tokens", 16), size), "cache"))
    new = graph.take(InputSpec("new", FP16.name, (Axis("batch"), heads, Axis("new_tokens"), size), "user"))
    tables = graph.take(InputSpec("tables", INT32.name, (Axis("batch"), heads, Axis("row_pages")), "scheduler"))
    window = graph.take(InputSpec("window", INT32.name, (Axis("kv_window"),), "scheduler"))
    append_quantized(pool, CacheIndex(tables), new, 0.5, window)
    layers = [graph.network.get_layer(index) for index in range(graph.network.num_layers)]
    kind = graph.backend.trt.LayerType.GATHER
    gathered = {
        layer.get_output(0).dtype for layer in layers if layer.type == kind and layer.get_output(0).shape[-1] == 8
    }
    assert gathered == {getattr(graph.backend.trt.DataType, {"int8": "INT8", "fp16": "HALF"}[copied])}
