"""Write decoders with the plugin of PagedAttention, as for a TensorRT that has plugins; print what was added.

All other layers are TensorRT-RTX's. Plugins are created by TensorRT's own Python code, and queries stand for what they
compute. `python -m tests.tensorrt_plugin.decoder FOLDER`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.support.decoders import rtx
from tests.support.engine_decoders import config_of
from tests.support.generation import case_of
from tests.tensorrt_plugin.bindings import load
from trtkit.builder.decoder_stage import use_plugin
from trtkit.builder.decoders import open_decoder
from trtkit.config.schema import CustomOpOptions
from trtkit.network.graph import Graph
from trtkit.quantized_matrix import KvQuantization, scales_of_pairs
from trtkit.resolve import resolve

if TYPE_CHECKING:
    from trtkit.dtypes import Precision
    from trtkit.quantization_methods import CacheFormat

CASES: tuple[tuple[str, Precision, CacheFormat | None, int], ...] = (
    ("llama", "fp16", None, 32),
    ("gemma2", "bf16", "int8", 32),
    ("gemma3n_text", "fp16", None, 32),
    ("gpt_oss", "fp16", "fp8", 32),
    ("qwen3", "bf16", None, 5008),
)
"""Families, types, formats of caches in 8 bits, and lengths of slots."""
SCALES = (0.02, 0.03)


class Network:
    """A network of TensorRT-RTX to which plugins are added as TensorRT adds them. added: the plugins, as data."""

    def __init__(self, trt: Any, trt_of_rtx: Any, network: Any) -> None:
        self._trt, self._trt_of_rtx, self._network = trt, trt_of_rtx, network
        self.added: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def add_plugin(self, create: Any, aot: bool) -> Any:
        assert aot
        inputs, shape_inputs, plugin = create(self._trt.QuickPluginCreationRequest.STRICT_AOT)
        assert shape_inputs == []
        types = [getattr(self._trt.DataType, tensor.dtype.name) for tensor in inputs]
        outputs = plugin.get_output_data_types(types, [len(tensor.shape) for tensor in inputs])
        self.added.append(
            {
                "inputs": [[tensor.name, tensor.dtype.name, list(tensor.shape)] for tensor in inputs],
                "outputs": [kind.name for kind in outputs],
                "attributes": plugin.attrs,
            }
        )
        return self._like(inputs[0], plugin.attrs["parts"])

    def _like(self, q: Any, parts: int) -> Any:
        """Return a layer whose output has the shape and type of the plugin's."""
        if parts == 1:
            return self._network.add_identity(q)
        size = q.shape[-1]
        wider = self._network.add_constant((1, 1, size, size + 2), np.zeros((1, 1, size, size + 2), np.float32))
        exact = self._network.add_cast(q, wider.get_output(0).dtype).get_output(0)
        none = self._trt_of_rtx.MatrixOperation.NONE
        product = self._network.add_matrix_multiply(exact, none, wider.get_output(0), none).get_output(0)
        axes = self._network.add_constant((1,), np.zeros(1, np.int64)).get_output(0)
        one = self._network.add_unsqueeze(product, axes).get_output(0)
        layer = self._network.add_concatenation([one] * parts)
        layer.axis = 0
        return layer


def written(trt: Any, case: tuple[str, Precision, CacheFormat | None, int], folder: Path) -> dict[str, Any]:
    """Write a family's decoder as a build does; return its inputs and plugins, and what the build says."""
    model_type, precision, kv_format, length = case
    config = config_of(case_of(model_type), folder, precision, kv="paged", max_sequence_length=length)
    path = folder / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_position_embeddings": max(64, length)}))
    config = config.model_copy(update={"custom_ops": CustomOpOptions(plugins="always")})
    opened, graph = open_decoder(resolve(config)), Graph(replace(rtx(), name="tensorrt"))
    if kv_format is not None:
        opened = replace(
            opened, source=replace(opened.source, kv_cache=KvQuantization(kv_format, scales_of_pairs(SCALES, SCALES)))
        )
    network = graph.network = Network(trt, graph.backend.trt, graph.network)
    detail = use_plugin(graph, opened, (90,))
    opened.write(graph, opened.weights())
    names = [spec.name for spec in graph.inputs]
    return {"model_type": model_type, "detail": detail, "inputs": names, "plugins": network.added}


def main() -> None:
    full_rtx, folder = rtx(), Path(sys.argv[1])  # its library before the others, which only look like TensorRT's
    trt, _ = load(folder)
    trt.ITensor = full_rtx.trt.ITensor
    for case in CASES:
        print(json.dumps(written(trt, case, folder / case[0])))


if __name__ == "__main__":
    main()
