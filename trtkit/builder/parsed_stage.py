"""Write the network of a stage that is one ONNX file, with TensorRT's parser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.builder.plugins import register_plugins
from trtkit.builder.stages import WrittenNetwork
from trtkit.jobs.events import Phase
from trtkit.network.onnx.parse import check_grid_samples, parse_onnx

if TYPE_CHECKING:
    from trtkit.backends import Backend
    from trtkit.builder.stages import StageRequest
    from trtkit.jobs.job import JobContext


def write_parsed(request: StageRequest, backend: Backend, context: JobContext) -> WrittenNetwork:
    """Parse the stage's ONNX file and check the network against the file."""
    stage, onnx = request.stage, request.stage.onnx
    assert onnx is not None
    context.report(Phase("parse"))
    register_plugins(backend, onnx.plugins, request.options.compute_capabilities)
    network = parse_onnx(backend, onnx.parsed, context.severity or "WARNING")
    check_grid_samples(backend, network, onnx.grid_samples)
    return WrittenNetwork(
        network.definition,
        network.builder,
        stage.profiles,
        stage.opt_shapes,
        {stage.part_names[0]: network.definition.num_layers},
        weight_bytes=onnx.parsed.stat().st_size,
        held=(network,),
    )
