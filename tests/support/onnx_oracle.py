"""ONNX Runtime as a second reference, for networks written as ONNX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import torch

from tests.support.decoders import relative_rms
from trtkit.network.onnx.from_layers import onnx_model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trtkit.network.layer_graph import LayerGraph


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session that runs the model without fusions."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Oracle:
    """A network in ONNX Runtime, with every computed fp32 tensor as an output. names: of these tensors."""

    def __init__(self, layers: LayerGraph) -> None:
        model, _ = onnx_model(layers)
        onnx.checker.check_model(model, full_check=True)
        computed = {name for node in model.graph.node for name in node.output}
        own = {value.name for value in model.graph.output}
        inner = [value for value in model.graph.value_info if value.name in computed - own]
        model.graph.output.extend(
            value for value in inner if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        )
        self._session = session(model)
        self.names = [value.name for value in self._session.get_outputs()]

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Return all tensors by name."""
        arrays = self._session.run(None, {name: value.numpy() for name, value in inputs.items()})
        return dict(zip(self.names, arrays, strict=True))

    def worst(self, inputs: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> tuple[float, str, int]:
        """Return the largest relative RMS error of any fp32 tensor, its name, and how many were compared."""
        arrays = self.run(inputs)
        errors = {
            name: error_of(torch.from_numpy(np.array(arrays[name])), value)
            for name, value in wanted.items()
            if name in arrays and value.dtype == torch.float32
        }
        name = max(errors, key=errors.__getitem__)
        return errors[name], name, len(errors)


def error_of(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return the relative RMS error of finite elements; infinite if the others are not at the same positions."""
    finite = torch.isfinite(want)
    if got.shape != want.shape or not torch.equal(torch.isfinite(got), finite):
        return float("inf")
    return relative_rms(got[finite], want[finite]) if bool((want[finite] != 0).any()) else float(got[finite].norm())
