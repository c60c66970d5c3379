"""The job that compares the networks in a bundle, which run, with those written from its source, which are verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.backends import load_backend
from trtkit.builder.hybrids import open_hybrid
from trtkit.builder.stages import bundle_stages
from trtkit.bundle.bundle import open_bundle
from trtkit.jobs.events import Progress
from trtkit.llm.execution.network import written_head_network, written_network
from trtkit.network.layer_difference import first_difference
from trtkit.resolve import resolve
from trtkit.runtime.stages import stage_layers
from trtkit.verification.report import BundleNetwork, BundleNetworks

if TYPE_CHECKING:
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.job import JobContext
    from trtkit.network.layer_graph import LayerGraph
    from trtkit.verification.jobs import NetworksRequest


def compare_networks(request: NetworksRequest, context: JobContext) -> BundleNetworks:
    """Compare each stage's network of each rank. Raises BundleError for files that have changed or cannot be read."""
    bundle = open_bundle(request.bundle)
    ranks = [(stage.name, rank) for stage in bundle.manifest.stages for rank in range(len(stage.networks))]
    networks = []
    for index, (stage, rank) in enumerate(ranks):
        context.report(Progress("compare the bundle's networks", index, len(ranks)))
        networks.append(_compared(bundle, stage, rank))
    return BundleNetworks(tuple(networks))


def _compared(bundle: Bundle, stage: str, rank: int) -> BundleNetwork:
    """Compare one network; that of a stage with plugins is not in the bundle as layers."""
    held = bundle.layers(stage, rank)
    if held is None:
        return BundleNetwork(stage, rank, is_held=False)
    difference = first_difference(held, written_layers(bundle, stage, rank))
    if difference is None:
        return BundleNetwork(stage, rank)
    return BundleNetwork(stage, rank, layer=difference.layer, difference=difference.what)


def written_layers(bundle: Bundle, name: str, rank: int) -> LayerGraph:
    """Return the layers that a build writes of a stage and rank: parsed from the bundle's ONNX file, or of its source.

    Raises BundleError if the source has changed.
    """
    stage = next(stage for stage in bundle_stages(bundle) if stage.name == name)
    if stage.writer == "decoder":
        return written_network(bundle, rank).layers
    if stage.writer == "speculator":
        return written_head_network(bundle).layers
    opened = None if stage.writer == "parser" else open_hybrid(resolve(bundle.manifest.config))
    return stage_layers(load_backend(bundle.manifest.backend.name), stage, opened)[0]
