"""Write the draft head of a language model as a network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.builder.decoder_stage import resolved_model
from trtkit.builder.decoders import decoder_profiles, llm_options, open_decoder
from trtkit.builder.room import BuildLoad, check_room
from trtkit.builder.speculators import speculator_size
from trtkit.builder.stages import WrittenNetwork
from trtkit.dtypes import dtype_of
from trtkit.jobs.events import Phase, Steps
from trtkit.network.graph import Graph

if TYPE_CHECKING:
    from trtkit.backends import Backend
    from trtkit.builder.stages import StageRequest
    from trtkit.jobs.job import JobContext


def write_speculator(request: StageRequest, backend: Backend, context: JobContext) -> WrittenNetwork:
    """Read the draft head and the embedding that it shares with its model; write its network."""
    steps = Steps(context.report)
    context.report(Phase("read speculator"))
    opened = open_decoder(resolved_model(request), request.quantized)
    speculator = opened.speculator
    assert speculator is not None
    size = speculator_size(opened.config, speculator)
    steps.add("speculator", f"{size.parameters / 1e6:.1f} M parameters, {speculator.spec.description}")
    dtype = dtype_of(opened.config.precision)
    converted = sum(array.size for array in speculator.arrays.values() if array.dtype.name != dtype.numpy)
    check_room(BuildLoad(size.weight_bytes, layer_bytes=dtype.size_bytes(converted)), request.folder)
    graph = opened.write_speculator(Graph(backend, severity=context.severity))
    profiles = decoder_profiles(graph.inputs, llm_options(opened.config))
    return replace(WrittenNetwork.of_decoder(graph, request.stage, profiles, size), steps=tuple(steps.done))
