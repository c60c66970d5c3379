"""The job that compares the networks in a bundle, which run, with the verified ones, written from its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trtkit.backends import load_backend
from trtkit.builder.decoders import open_decoder
from trtkit.builder.hybrids import open_hybrid
from trtkit.builder.stages import bundle_stages
from trtkit.bundle.bundle import open_bundle
from trtkit.jobs.events import Progress, Verdict
from trtkit.llm.execution import decoder_network
from trtkit.llm.execution.embeddings import bundle_embeddings
from trtkit.llm.execution.network import speculator_network
from trtkit.network.layer_file import MappedFiles
from trtkit.network.layer_graph import MISSING
from trtkit.resolve import resolve
from trtkit.runtime.stages import stage_layers
from trtkit.sources.digest import digest_model
from trtkit.verification.report import BundleNetwork, BundleNetworks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from trtkit.builder.decoders import OpenedDecoder
    from trtkit.builder.hybrids import OpenedHybrid
    from trtkit.bundle.bundle import Bundle
    from trtkit.jobs.job import JobContext
    from trtkit.network.layer_graph import Bytes, LayerGraph, LayerNode, LayerWeights, TensorSpec
    from trtkit.verification.jobs import NetworksRequest
    from trtkit.verification.report import Report


def with_networks(
    report: Report, folder: Path | None, context: JobContext, decoder: LayerGraph | None = None
) -> Report:
    """Return the report with the comparison of the networks in the bundle `folder`; it passes only if they are equal.

    If this fails, the report so far remains valid. decoder: the layers of its language model, if already written.
    """
    if folder is None:
        return report
    context.report(Verdict(report))
    return report.with_networks(_networks(folder, context, decoder))


def compare_networks(request: NetworksRequest, context: JobContext) -> BundleNetworks:
    """Compare the network of each stage and rank. Raises BundleError for files that have changed or cannot be read."""
    return BundleNetworks(_networks(request.bundle, context))


def _networks(folder: Path, context: JobContext, decoder: LayerGraph | None = None) -> tuple[BundleNetwork, ...]:
    bundle = open_bundle(folder)
    written = _WrittenNetworks(bundle, decoder)
    ranks = [(stage.name, rank) for stage in bundle.manifest.stages for rank in range(len(stage.networks))]
    networks = []
    for index, (stage, rank) in enumerate(ranks):
        context.report(Progress("compare the bundle's networks", index, len(ranks)))
        networks.append(_compared(bundle, written, stage, rank))
    return tuple(networks)


def _compared(bundle: Bundle, written: _WrittenNetworks, stage: str, rank: int) -> BundleNetwork:
    """Compare one network; for a stage with plugins the bundle does not hold layers to compare."""
    held = bundle.layers(stage, rank)
    if held is None:
        return BundleNetwork(stage, rank, is_held=False)
    difference = first_difference(held, written.layers(stage, rank))
    if difference is None:
        return BundleNetwork(stage, rank)
    return BundleNetwork(stage, rank, layer=difference.layer, difference=difference.what)


class _WrittenNetworks:
    """The layers that a build writes for a bundle's stages, parsed from its ONNX files or written from its source.

    The source is opened once. decoder_layers: those of a single-rank decoder, if already written. Raises BundleError if
    the source has changed.
    """

    def __init__(self, bundle: Bundle, decoder_layers: LayerGraph | None) -> None:
        self._bundle, self._backend = bundle, load_backend(bundle.manifest.backend.name)
        self._decoder_layers = decoder_layers
        self._stages = {stage.name: stage for stage in bundle_stages(bundle)}

    def layers(self, name: str, rank: int) -> LayerGraph:
        """Return the layers of one stage and rank."""
        stage = self._stages[name]
        if stage.writer == "decoder" and self._decoder_layers is not None:
            return self._decoder_layers
        if stage.writer == "decoder":
            decoder, embeddings = replace(self._decoder, rank=rank), bundle_embeddings(self._bundle.path)
            return decoder_network(self._backend, decoder, embeddings=embeddings).layers
        if stage.writer == "speculator":
            return speculator_network(self._backend, self._decoder).layers
        return stage_layers(self._backend, stage, None if stage.writer == "parser" else self._hybrid)[0]

    @cached_property
    def _decoder(self) -> OpenedDecoder:
        config = self._bundle.manifest.config
        self._bundle.check_sources({file.sha256 for file in digest_model(config)})
        return open_decoder(resolve(config), self._bundle.quantized_path)

    @cached_property
    def _hybrid(self) -> OpenedHybrid:
        return open_hybrid(resolve(self._bundle.manifest.config))


_CHUNK = 64 << 20  # bytes compared at a time


@dataclass(frozen=True)
class LayerDifference:
    """The first difference between two networks. layer: its name; for a network's inputs and outputs, their names."""

    layer: str
    what: str


class _Tensors(NamedTuple):
    """A network's tensors, by slot."""

    graph: LayerGraph
    slots: Sequence[int]


def first_difference(ours: LayerGraph, theirs: LayerGraph) -> LayerDifference | None:
    """Return the first layer of `ours` that differs from `theirs`; None if equal data computes equal bits.

    Constants that both map from the same bytes of a file are equal without being read.
    """
    if (
        what := _tensors_differ("network's inputs", _Tensors(ours, ours.inputs), _Tensors(theirs, theirs.inputs))
    ) is not None:
        return LayerDifference(_first_name(ours, ours.inputs), what)
    mapped = MappedFiles()
    for one, other in zip(ours.nodes, theirs.nodes, strict=False):
        if (one.kind, one.name) != (other.kind, other.name):
            return _other_layer(ours, theirs, one, other)
        if (what := _layers_differ(ours, one, theirs, other, mapped)) is not None:
            return LayerDifference(one.name, what)
    count = len(theirs.nodes)
    if len(ours.nodes) > count:
        return LayerDifference(ours.nodes[count].name, "the layer was added")
    if len(ours.nodes) < count:
        return LayerDifference(theirs.nodes[len(ours.nodes)].name, "the layer is missing")
    what = _tensors_differ("network's outputs", _Tensors(ours, ours.outputs), _Tensors(theirs, theirs.outputs))
    return None if what is None else LayerDifference(_first_name(ours, ours.outputs), what)


def _other_layer(ours: LayerGraph, theirs: LayerGraph, one: LayerNode, other: LayerNode) -> LayerDifference:
    """Describe the mismatch if a different layer is expected."""
    if one.name == other.name:
        return LayerDifference(one.name, f"the layer is {one.kind}, expected {other.kind}")
    if other.name not in {node.name for node in ours.nodes}:
        return LayerDifference(other.name, "the layer is missing")
    if one.name not in {node.name for node in theirs.nodes}:
        return LayerDifference(one.name, "the layer was added")
    return LayerDifference(one.name, f"the layer is where `{other.name}` is expected")


def _layers_differ(
    ours: LayerGraph, one: LayerNode, theirs: LayerGraph, other: LayerNode, mapped: MappedFiles
) -> str | None:
    """Describe how two layers of the same kind and name differ; None if they are equal."""
    for side in ("inputs", "outputs"):
        tensors = _Tensors(ours, getattr(one, side)), _Tensors(theirs, getattr(other, side))
        if (what := _tensors_differ(side, *tensors)) is not None:
            return what
    if one.construct != other.construct:
        return f"part of loop or conditional {one.construct}, expected {other.construct}"
    for name in {**one.attributes, **other.attributes}:
        mine, expected = (repr(node.attributes.get(name)) for node in (one, other))  # tells 0.0 from -0.0; nan is nan
        if mine != expected or (name in one.attributes) != (name in other.attributes):
            return f"attribute `{name}` is {mine}, expected {expected}"
    for name in {**one.weights, **other.weights}:
        what = _weights_differ(one.weights.get(name), other.weights.get(name), mapped)
        if what is not None:
            return f"constant `{name}`: {what}"
    return None


def _tensors_differ(side: str, ours: _Tensors, theirs: _Tensors) -> str | None:
    """Describe how the tensors of two lists of slots differ: in number, name, type or shape."""
    mine, expected = ([_facts(tensors.graph, slot) for slot in tensors.slots] for tensors in (ours, theirs))
    if mine == expected:
        return None if tuple(ours.slots) == tuple(theirs.slots) else f"{side}: other tensors of the same names"
    if len(mine) != len(expected):
        return f"{len(mine)} {side}, expected {len(expected)}"
    one, other = next(pair for pair in zip(mine, expected, strict=True) if pair[0] != pair[1])
    return f"{side}: {one}, expected {other}"


def _facts(graph: LayerGraph, slot: int) -> str:
    """Return a tensor's spec as text."""
    if slot == MISSING:
        return "none"
    spec: TensorSpec = graph.spec(slot)
    shape = "of unknown rank" if spec.shape is None else list(spec.shape)
    return f"`{spec.name}` {spec.dtype}{' shape tensor' if spec.is_shape else ''} {shape}"


def _first_name(graph: LayerGraph, slots: Sequence[int]) -> str:
    return ", ".join(graph.spec(slot).name for slot in slots)


def _weights_differ(one: LayerWeights | None, other: LayerWeights | None, mapped: MappedFiles) -> str | None:
    """Describe how two constants differ."""
    if one is None or other is None:
        return "missing" if one is None else "added"
    if (one.dtype, one.count) != (other.dtype, other.count):
        return f"{one.count} {one.dtype}, expected {other.count} {other.dtype}"
    span = mapped.find(one.raw)
    if span is not None and span == mapped.find(other.raw):
        return None
    count = _different_bytes(one.raw, other.raw)
    return f"{count} of {other.raw.size} bytes differ" if count else None


def _different_bytes(one: Bytes, other: Bytes) -> int:
    """Count the bytes that differ between two arrays of the same size."""
    starts = range(0, other.size, _CHUNK)
    return sum(int(np.count_nonzero(one[at : at + _CHUNK] != other[at : at + _CHUNK])) for at in starts)
