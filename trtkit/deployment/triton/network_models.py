"""The models that compute a bundle's network: on Triton's TensorRT backend, or on trtkit's runtime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.deployment.triton import model_config
from trtkit.deployment.triton.ensemble import ensemble
from trtkit.deployment.triton.model_config import Section
from trtkit.deployment.triton.served import DeployedModel
from trtkit.deployment.triton.tensor_model import (
    batch_limit,
    extras,
    max_batch_size,
    opt_shapes,
    shape_words,
    tensor_model,
    tensors,
    warm_up_shape,
)

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.manifest import Manifest
    from trtkit.bundle.records import StageRecord
    from trtkit.deployment.triton.options import DeployOptions


def network_models(bundle: Bundle, name: str, options: DeployOptions) -> list[DeployedModel]:
    """Return the models of the bundle's engines, those that others use first; the last one, `name`, is the network.

    Raises DeployError where an option does not fit the engine, or a tensor has a type that Triton does not know.
    """
    if bundle.manifest.backend.name == "tensorrt":
        return native_models(bundle, name, options)
    return [tensor_model(bundle, name, options)]


_REASON = "TensorRT backend: the plan is for TensorRT {}; the server must have the very same version"


@dataclass(frozen=True)
class _Engine:
    """A plan, and the record that says what it takes and gives. max_batch: 0 if it has no batch axis."""

    name: str
    record: Manifest | StageRecord
    plan: Path
    max_batch: int


def native_models(bundle: Bundle, name: str, options: DeployOptions) -> list[DeployedModel]:
    """Return the models of the bundle's engines in order and, where there are several, the ensemble `name` of them."""
    manifest = bundle.manifest
    if len(manifest.stages) == 1:
        max_batch = batch_limit(options, max_batch_size(manifest), manifest.name)
        return [_model(bundle, _Engine(name, manifest, bundle.engine_path(), max_batch), options)]
    # An ensemble has one batch size: where a stage has none, none of them has.
    records: tuple[Manifest | StageRecord, ...] = (manifest, *manifest.stages)
    max_batch = batch_limit(options, min(map(max_batch_size, records)), manifest.name)
    stages = [
        _model(bundle, _Engine(f"{name}_{stage.name}", stage, bundle.engine_path(stage.name), max_batch), options)
        for stage in manifest.stages
    ]
    ends = tensors(manifest.inputs, max_batch), tensors(manifest.outputs, max_batch)
    return [*stages, ensemble(name, "ensemble", stages, *ends)]


def _model(bundle: Bundle, engine: _Engine, options: DeployOptions) -> DeployedModel:
    record, max_batch = engine.record, engine.max_batch
    reason = _REASON.format(bundle.manifest.backend.version)
    inputs, outputs = tensors(record.inputs, max_batch), tensors(record.outputs, max_batch)
    preferred = [next(iter(profile.values())).opt[0] for profile in record.profiles if max_batch]
    sections = [
        Section(f"{reason}.", {"name": engine.name, "backend": "tensorrt"}),
        *model_config.batching(options, max_batch, preferred),
        model_config.interface(inputs, outputs, shape_words(bundle.manifest.name, max_batch)),
        model_config.instances(options, "KIND_GPU", len(record.profiles)),
        *_graphs(options, record, max_batch),
        *extras(options),
    ]
    if options.warmup:
        shapes = [warm_up_shape(record, opt_shapes(profile), max_batch) for profile in record.profiles or ({},)]
        sections.append(model_config.warm_up(inputs, shapes))
    reasons = (f"{engine.name}: {reason}",)
    return DeployedModel(
        engine.name, "model", "tensorrt", inputs, outputs, tuple(sections), reasons, bundle, plan=engine.plan
    )


def _graphs(options: DeployOptions, record: Manifest | StageRecord, max_batch: int) -> list[Section]:
    """Return CUDA graphs where asked: for one request, and for the shapes that the engine was tuned for."""
    if not options.cuda_graphs:
        return []
    specs: list[dict[str, Any]] = []
    for profile in record.profiles:
        tuned, shapes = warm_up_shape(record, opt_shapes(profile), max_batch)
        dynamic = {
            tensor.name: list(shapes[tensor.name]) for tensor in record.inputs if -1 in tensor.shape[bool(max_batch) :]
        }
        for batch in sorted({min(1, max_batch), tuned}):
            spec = {"batch_size": batch, "input": {name: {"dim": dims} for name, dims in dynamic.items()}}
            specs += [spec] if spec not in specs else []
    words = "`cuda_graphs`: the whole engine as one launch, for the shapes that TensorRT tuned for."
    return [Section(words, {"optimization": {"cuda": {"graphs": True, "graph_spec": specs}}})]
