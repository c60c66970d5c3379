"""What one would write around the network API: map the weights, write the network, build, stream the plan.

Usage: python -m benchmarks.bare_llm_build FOLDER PRECISION OUT.plan
"""

import json
import resource
import sys
import time
from pathlib import Path

from trtkit.backends import load_backend
from trtkit.dtypes import dtype_of
from trtkit.models.registry import decoder_spec
from trtkit.models.weights import find_weights
from trtkit.network.decoder import DecoderOptions, build_decoder
from trtkit.network.graph import Graph
from trtkit.sources.decoder_source import open_hf_folder

folder, precision, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
started = time.perf_counter()
backend = load_backend("tensorrt_rtx")
trt = backend.trt
opened = open_hf_folder(folder)
spec = decoder_spec(opened.config)
graph = Graph(backend)
build_decoder(graph, spec, find_weights(spec, opened.checkpoint), DecoderOptions(dtype_of(precision), 2048))
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
    """Write what comes."""

    def write(self, data: bytes) -> int:
        return file.write(data)


with out.open("wb") as file:
    if not graph.builder.build_serialized_network_to_stream(graph.network, config, writer := Writer()):
        sys.exit("TensorRT cannot build it")
work_s = time.perf_counter() - started
peak_memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"work_s": work_s, "peak_memory_mib": peak_memory_mib}))
