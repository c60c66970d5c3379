"""Builds an ONNX file without trtkit (parse, build, write), for comparison. Prints seconds and peak memory.

Usage: python benchmarks/bare_build.py MODEL.onnx OUT.plan PROFILES_JSON
"""

import json
import resource
import sys
import time
from pathlib import Path

import tensorrt_rtx as trt

model, out, profiles = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
started = time.perf_counter()
logger = trt.Logger(trt.Logger.WARNING)
builder = trt.Builder(logger)
network = builder.create_network(0)
parser = trt.OnnxParser(network, logger)
if not parser.parse_from_file(model):
    sys.exit("the model does not parse")
config = builder.create_builder_config()
for shapes in profiles:
    profile = builder.create_optimization_profile()
    for name, shape in shapes.items():
        profile.set_shape(name, shape["min"], shape["opt"], shape["max"])
    config.add_optimization_profile(profile)
out.write_bytes(builder.build_serialized_network(network, config))
work_s = time.perf_counter() - started
peak_memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"work_s": work_s, "peak_memory_mib": peak_memory_mib}))
