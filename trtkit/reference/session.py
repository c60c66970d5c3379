"""ONNX Runtime on convolutional networks, which its kernels compute faster than torch's do layer by layer."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from trtkit.dtypes import BOOL, FP32, INT32, INT64
from trtkit.errors import ExecutionError, ProblemsError
from trtkit.sources.safetensors_file import release

if TYPE_CHECKING:
    import onnxruntime

    from trtkit.network.layer_graph import LayerGraph

Run = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]
"""From inputs to outputs by name."""

_TYPES = (FP32, INT64, INT32, BOOL)
"""Types that ONNX Runtime computes in on a CPU. It computes fp16 in fp32, 8 bits in kernels that round elsewhere."""


def onnx_runtime_run(graph: LayerGraph) -> Run | None:
    """Return a function that computes a network in ONNX Runtime, or None to leave it to torch.

    Torch keeps networks with more matrix products than convolutions, which gain nothing; types and layers for which
    ONNX Runtime has no kernels; and networks with assertions, which ONNX cannot express.
    """
    if find_spec("onnxruntime") is None or find_spec("onnx") is None:
        return None
    count = Counter(node.kind for node in graph.nodes)
    if count["CONVOLUTION"] <= count["MATRIX_MULTIPLY"] or count["ASSERTION"]:
        return None
    if any(spec is not None and spec.dtype not in _TYPES for spec in graph.specs):
        return None
    session = _session(graph)
    if session is None:
        return None
    for held in (held for node in graph.nodes for held in node.weights.values()):
        release(held.raw)
    inputs, outputs = ([value.name for value in values] for values in (session.get_inputs(), session.get_outputs()))

    def run(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        feed = {name: tensors[name].contiguous().numpy() for name in inputs}
        try:
            arrays = session.run(outputs, feed)
        except Exception as error:  # ONNX Runtime's own classes have no common base
            raise ExecutionError(f"ONNX Runtime: {error}", fix="runtime `reference` names the layer") from None
        return {name: torch.from_numpy(array) for name, array in zip(outputs, arrays, strict=True)}

    return run


def _session(graph: LayerGraph) -> onnxruntime.InferenceSession | None:
    """Return a session on the network, or None if ONNX or ONNX Runtime lacks one of its layers."""
    import onnxruntime

    from trtkit.network.onnx.from_layers import write_onnx

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, torch.get_num_threads()
    with tempfile.TemporaryDirectory(prefix="trtkit-") as folder:
        try:
            files = write_onnx(graph, Path(folder) / "network.onnx", inline_bytes=0)  # which would hold weights twice
        except ProblemsError:
            return None
        try:
            return onnxruntime.InferenceSession(str(files[0]), options, providers=["CPUExecutionProvider"])
        except Exception:  # ONNX Runtime's own classes have no common base; torch computes what it refuses
            return None
