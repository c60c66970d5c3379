"""The job that quantizes a vision model into a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.config.schema import ModelConfig
from trtkit.engine.prepare import prepare
from trtkit.network.onnx.quantize import counts
from trtkit.sources import onnx_file

if TYPE_CHECKING:
    from trtkit.jobs.job import Context

Json = dict[str, Any]


def quantize_vision(arguments: Json, context: Context) -> Json:
    """Write the model of `config`, quantized as its `quantize` section asks, to `folder`/model.onnx.

    It is the very file that a build of `config` would give to TensorRT. Returns steps and counts. Raises TrtkitError.
    """
    assert ModelConfig.model_validate(arguments["config"]).quantize is not None
    made = prepare(arguments, context)
    model = onnx_file.read_model(Path(arguments["folder"]) / "model.onnx")
    found = counts(model)
    return {
        "steps": made["steps"],
        "nodes": len(model.graph.node),
        "activations": found.activations,
        "weights": found.weights,
    }
