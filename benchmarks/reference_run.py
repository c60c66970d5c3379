"""Runs one model in one runtime and prints seconds and peak memory; a separate process, so that memory is its own.

Usage: python -m benchmarks.reference_run RUNTIME MODEL.onnx SHAPE_JSON CONFIG_JSON
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.measure import own_peak_memory_mib, seconds

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS, WARMUPS, REPEATS = 2, 2, 5

Array = np.ndarray[Any, Any]


def trtkit(onnx: Path, _config: Any, *, is_fast: bool = True) -> Callable[[Array], Any]:
    """Return the reference executor on the network of TensorRT-RTX's parser, as in `trtkit run`."""
    import torch

    from trtkit.backends import load_backend
    from trtkit.network.onnx.parse import parse_onnx
    from trtkit.reference import Executor, Options, read_layers

    torch.set_num_threads(THREADS)
    backend = load_backend("tensorrt_rtx")
    network = parse_onnx(backend, onnx)
    executor = Executor(read_layers(backend, network.definition), Options(is_fast=is_fast))
    name = executor.inputs[0].name
    return lambda x: executor.run({name: x})


def torch_eager(_onnx: Path, config: Any) -> Callable[[Array], Any]:
    """Return the source's torch module."""
    import torch

    from trtkit.config.schema import TorchSource
    from trtkit.sources.torch.export import make_module

    torch.set_num_threads(THREADS)
    module = make_module(TorchSource.model_validate(config))

    def run(x: Array) -> Any:
        with torch.inference_mode():
            return module(torch.from_numpy(x))

    return run


def onnxruntime(onnx: Path, _config: Any) -> Callable[[Array], Any]:
    """Return ONNX Runtime on the CPU with its default optimizations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(onnx), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x})


def layer_by_layer(onnx: Path, config: Any) -> Callable[[Array], Any]:
    """Return the reference executor as in `trtkit verify`."""
    return trtkit(onnx, config, is_fast=False)


RUNTIMES: dict[str, Callable[[Path, Any], Callable[[Array], Any]]] = {
    "trtkit": trtkit,
    "layer_by_layer": layer_by_layer,
    "torch": torch_eager,
    "onnxruntime": onnxruntime,
}


def main(runtime: str, onnx: str, shape: str, config: str) -> None:
    """Print the median seconds of a few runs, and the process's time and peak memory."""
    x = np.random.default_rng(0).standard_normal(json.loads(shape)).astype(np.float32)
    run = RUNTIMES[runtime](Path(onnx), json.loads(config))
    loaded_mib = own_peak_memory_mib()
    timed = [seconds(lambda: run(x)) for _ in range(WARMUPS + REPEATS)][WARMUPS:]
    figures = {"run_s": statistics.median(timed), "loaded_mib": loaded_mib, "peak_memory_mib": own_peak_memory_mib()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
