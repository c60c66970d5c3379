"""Counting of a network from ONNX, or of a hybrid: parsed by TensorRT and described at two batch sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trtkit.builder.build_inputs import gather_inputs
from trtkit.builder.model_record import joint_network
from trtkit.builder.stages import bundle_stages
from trtkit.builder.write_stages import prepare_stages, run_stage, stage_request, write_stages
from trtkit.jobs.events import Phase
from trtkit.planning.counts import NetworkCounts, counts_of, fit_batch
from trtkit.planning.traffic import network_cost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trtkit.builder.stages import Shape, StageRequest
    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.runner import Runner
    from trtkit.network.input_spec import ProfileShapes, ResolvedProfile
    from trtkit.network.record import NetworkRecord

_GROUPS = {
    "CONVOLUTION": "convolutions", "DECONVOLUTION": "convolutions", "MATRIX_MULTIPLY": "matrix products",
    "EINSUM": "matrix products", "ATTENTION_INPUT": "attention", "ATTENTION_OUTPUT": "attention",
    "POOLING": "pooling", "REDUCE": "norms and reductions", "NORMALIZATION": "norms and reductions",
    "SOFTMAX": "norms and reductions", "GRID_SAMPLE": "sampling", "RESIZE": "sampling", "GATHER": "moves",
    "SLICE": "moves", "SHUFFLE": "moves", "CONCATENATION": "moves", "CAST": "moves", "PADDING": "moves",
}  # fmt: skip

_ATTENTION_ENDS = re.compile(r"_Attention(Input|Output)$")


@dataclass(frozen=True)
class CountedNetwork:
    """A network's counts as functions of the batch. batches: the smallest and largest in its first profile."""

    counts: NetworkCounts
    batches: tuple[int, int]
    shapes: Mapping[str, tuple[int, ...]]


def count_config(config: ModelConfig, folder: Path, runner: Runner) -> CountedNetwork:
    """Count a config's network in an empty `folder`; a hybrid only at its `opt` shapes."""
    inputs = gather_inputs(config, runner)
    if inputs.model.spec is not None:
        written = write_stages(inputs, folder, runner, builds=False)
        return _at_one_batch(joint_network(inputs.model, written), written.profiles)
    (stage,) = prepare_stages(inputs, folder, runner).stages
    return _counted(stage_request(config, inputs.target, inputs.backend, stage, folder), runner)


def count_bundle(bundle: Bundle, runner: Runner) -> CountedNetwork:
    """Count a vision bundle's network; a hybrid at the shapes recorded when it was built."""
    record = bundle.network_record()
    if not bundle.is_one_file:
        return _at_one_batch(record, bundle.manifest.profiles)
    return _counted(_bundle_request(bundle, record.shapes), runner)


def _bundle_request(bundle: Bundle, shapes: Mapping[str, Sequence[int]]) -> StageRequest:
    """Return the request to describe a bundle's only stage at `shapes`."""
    manifest, (stage,) = bundle.manifest, bundle_stages(bundle)
    stage = replace(stage, opt_shapes={name: tuple(shape) for name, shape in shapes.items()})
    return stage_request(manifest.config, manifest.target, manifest.backend.name, stage, bundle.path)


def _counted(request: StageRequest, runner: Runner) -> CountedNetwork:
    """Describe the network at the smallest and the largest batch of the first profile."""
    first, opt = next(iter(request.stage.profiles), {}), request.stage.opt_shapes
    low, high = _batch_range(first)
    costs = {}
    for batch in sorted({low, high}):
        shapes = {name: _with_batch(shape, first.get(name), batch) for name, shape in opt.items()}
        runner.report(Phase(f"count at batch {batch}"))
        described = run_stage(runner, replace(request, stage=replace(request.stage, opt_shapes=shapes)))
        record = described.network
        costs[batch] = network_cost(record, group_of)
    return CountedNetwork(counts_of(costs, fit_batch), (low, high), record.shapes)


def count_layers(bundle: Bundle, shapes: Mapping[str, Sequence[int]], runner: Runner) -> NetworkCounts | None:
    """Count every layer of a vision bundle's network at exactly these input shapes, whatever point is requested.

    None for a hybrid at shapes other than those recorded when it was built.
    """
    known = bundle.network_record()
    if known.shapes != {name: tuple(shape) for name, shape in shapes.items()}:
        if not bundle.is_one_file:
            return None
        known = run_stage(runner, _bundle_request(bundle, shapes)).network
    return counts_of({1: network_cost(known, layer_of)}, fit_batch)


def layer_of(name: str, _kind: str) -> str:
    """Return the layer's own name as its group; attention is two layers in TensorRT and one elsewhere."""
    return _ATTENTION_ENDS.sub("", name)


def group_of(_name: str, kind: str) -> str:
    """Return the group of a layer by its type."""
    return _GROUPS.get(kind, "element-wise and other")


def _at_one_batch(record: NetworkRecord, profiles: Sequence[ResolvedProfile]) -> CountedNetwork:
    """Return counts at the shapes that a network was described at; they are valid for that batch only."""
    batch = _batch_of(record.shapes, next(iter(profiles), {}))
    return CountedNetwork(counts_of({batch: network_cost(record, group_of)}, fit_batch), (batch, batch), record.shapes)


def _batch_range(profile: ResolvedProfile) -> tuple[int, int]:
    """Return the range of the inputs' first axis; 1 to 1 if it is fixed."""
    ranges = [(shape.min[0], shape.max[0]) for shape in profile.values() if shape.min]
    varying = [(low, high) for low, high in ranges if low != high]
    return varying[0] if varying else (1, 1)


def _with_batch(shape: Shape, ranges: ProfileShapes | None, batch: int) -> Shape:
    """Return a shape with its first axis set to `batch`, if the profile allows it."""
    varies = ranges is not None and bool(shape) and ranges.min[0] != ranges.max[0]
    return (batch, *shape[1:]) if varies else shape


def _batch_of(shapes: Mapping[str, Shape], profile: ResolvedProfile) -> int:
    """Return the batch of a record's shapes."""
    varying = [name for name, shape in profile.items() if shape.min and shape.min[0] != shape.max[0]]
    return shapes[varying[0]][0] if varying and varying[0] in shapes else 1
