"""The job that quantizes a vision model into a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.builder.jobs import PrepareRequest, QuantizedVision
from trtkit.builder.prepare import prepare
from trtkit.network.onnx.quantize import counts
from trtkit.quantization.vision.onnx_model import recorded_loss
from trtkit.sources import onnx_file

if TYPE_CHECKING:
    from trtkit.jobs.job import JobContext
    from trtkit.quantization.jobs import QuantizeRequest


def quantize_vision(request: QuantizeRequest, context: JobContext) -> QuantizedVision:
    """Write the model of a config, quantized as its `quantize` section asks, to `folder`/model.onnx.

    It is the very file that a build of the config would give to TensorRT, but for NMS, which that build appends.
    Raises TrtkitError.
    """
    assert request.config.quantize is not None
    prepared = prepare(PrepareRequest(request.config.with_host_nms(), request.folder), context)
    for path in (request.folder / "network").iterdir():
        path.rename(request.folder / path.name)
    (request.folder / "network").rmdir()
    model = onnx_file.read_model(request.folder / "model.onnx")
    quantized, loss = counts(model), recorded_loss(model)
    return QuantizedVision(prepared.steps, len(model.graph.node), quantized.activations, quantized.weights, loss)
