"""Builds a language model with a bare script, for comparison: map weights, write the network, build, stream the plan.

Usage: python -m benchmarks.bare_llm_build FOLDER PRECISION OUT.plan
"""

import json
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtkit.backends import load_backend
from trtkit.dtypes import dtype_of
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import build_decoder
from trtkit.network.decoder_options import DecoderOptions
from trtkit.network.graph import Graph
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.sources.decoder_source import open_hf_folder
from trtkit.sources.safetensors_file import read_folder

folder, precision, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
backend = load_backend("tensorrt_rtx")
trt = backend.trt
started = time.perf_counter()
spec = decoder_spec(json.loads((folder / "config.json").read_text()))
graph = Graph(backend)
if precision == "int4":
    stored = read_folder(folder)[0]
    weights: Mapping[str, Any] = {
        name: QuantizedMatrix("int4", array.read(), stored[f"{name}_scale"].read())
        if f"{name}_scale" in stored
        else array.read()
        for name, array in stored.items()
        if not name.endswith("_scale")
    }
else:
    weights = find_weights(spec, open_hf_folder(folder).checkpoint)
build_decoder(graph, spec, weights, DecoderOptions(dtype_of(precision.replace("int4", "fp16")), 2048))
config = graph.builder.create_builder_config()
for new_tokens in (512, 1):
    profile = graph.builder.create_optimization_profile()
    for index in range(graph.network.num_inputs):
        tensor = graph.network.get_input(index)
        for_sizes = []
        for batch, new in ((1, 1), (4, max(1, new_tokens // 2)), (8, new_tokens)):
            sizes = iter((batch, new))
            for_sizes.append([next(sizes) if size < 0 else size for size in tensor.shape])
        profile.set_shape(tensor.name, *for_sizes)
    config.add_optimization_profile(profile)


class Writer(trt.IStreamWriter):  # type: ignore[misc, name-defined]
    """Writes a plan to a file as TensorRT streams it."""

    def write(self, data: bytes) -> int:
        return file.write(data)


with out.open("wb") as file:
    if not graph.builder.build_serialized_network_to_stream(graph.network, config, writer := Writer()):
        sys.exit("TensorRT cannot build it")
work_s = time.perf_counter() - started
peak_memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"work_s": work_s, "peak_memory_mib": peak_memory_mib}))
