"""A bundle's network as a model of Triton's TensorRT backend or of trtkit's runtime, with tensors in Triton's terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.bundle.manifest import Manifest
from trtkit.deployment.triton import model_config
from trtkit.deployment.triton.ensemble import ensemble
from trtkit.deployment.triton.model_config import Section, TritonTensor
from trtkit.deployment.triton.served import DeployedModel
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from pathlib import Path

    from trtkit.bundle.bundle import Bundle
    from trtkit.bundle.records import IoRecord, StageRecord
    from trtkit.deployment.triton.options import DeployOptions
    from trtkit.network.input_spec import ResolvedProfile


def network_models(bundle: Bundle, name: str, options: DeployOptions) -> list[DeployedModel]:
    """Return the models of the bundle's engines, dependencies first; the last one, `name`, is the network.

    Raises DeployError if an option does not fit the engine, or if a tensor has a type that Triton does not support.
    """
    if bundle.manifest.backend.name == "tensorrt":
        return native_models(bundle, name, options)
    return [tensor_model(bundle, name, options)]


_ON_TENSORRT = "TensorRT backend: the plan is for TensorRT {}; the server must have the very same version"


@dataclass(frozen=True)
class _Engine:
    """A plan, and the record of its inputs and outputs. max_batch: 0 if it has no batch axis."""

    name: str
    record: Manifest | StageRecord
    plan: Path
    max_batch: int


def native_models(bundle: Bundle, name: str, options: DeployOptions) -> list[DeployedModel]:
    """Return the models of the bundle's engines in order and, if there are several, their ensemble `name`."""
    manifest = bundle.manifest
    if len(manifest.stages) == 1:
        max_batch = batch_limit(options, max_batch_size(manifest), manifest.name)
        return [_model(bundle, _Engine(name, manifest, bundle.engine_path(), max_batch), options)]
    # An ensemble has a single batch size: if one stage has no batch axis, none may use one.
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
    reason = _ON_TENSORRT.format(bundle.manifest.backend.version)
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
    """Return CUDA graphs if requested: for single requests, and for the shapes that the engine was tuned for."""
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


RUNNER = "trtkit.deployment.triton.backend.tensors:TensorModel"

_ON_RUNTIME = (
    "Python backend on trtkit's runtime: the plan is for TensorRT-RTX {}, which Triton's TensorRT backend refuses"
)


def tensor_model(bundle: Bundle, name: str, options: DeployOptions) -> DeployedModel:
    """Return the bundle as one model of the Python backend. Raises DeployError for types that the backend lacks."""
    manifest = bundle.manifest
    _refuse_bf16(manifest)
    max_batch = batch_limit(options, max_batch_size(manifest), manifest.name)
    inputs, outputs = tensors(manifest.inputs, max_batch), tensors(manifest.outputs, max_batch)
    reason = _ON_RUNTIME.format(manifest.backend.version)
    sections = [
        Section(f"{reason}.", {"name": name, "backend": "python"}),
        *model_config.batching(options, max_batch, ()),
        model_config.interface(inputs, outputs, shape_words(manifest.name, max_batch)),
        model_config.instances(options, "KIND_AUTO"),
        *extras(options),
    ]
    if options.warmup:
        smallest = {key: shape.min for key, shape in (manifest.profiles or ({},))[0].items()}
        sections.append(model_config.warm_up(inputs, [warm_up_shape(manifest, smallest, max_batch)]))
    interface = (inputs, outputs)
    return DeployedModel(
        name, "model", "python", *interface, tuple(sections), (f"{name}: {reason}",), bundle, runner=RUNNER
    )


def max_batch_size(network: Manifest | StageRecord) -> int:
    """Return the largest batch, 0 if requests cannot be batched.

    Every input and output must have axis 0 as the batch axis, starting at 1, and rows must be independent.
    """
    if isinstance(network, Manifest) and network.verify is not None and network.verify.batch_rows == "mixed":
        return 0
    records, profiles = (*network.inputs, *network.outputs), network.profiles
    has_axis = all(record.shape and record.shape[0] == -1 for record in records)
    ranges = [{(shape.min[0], shape.max[0]) for shape in profile.values() if shape.min} for profile in profiles]
    if not has_axis or not ranges or any(len(values) != 1 for values in ranges):
        return 0
    bounds = [next(iter(values)) for values in ranges]
    return max(high for _, high in bounds) if min(low for low, _ in bounds) == 1 else 0


def batch_limit(options: DeployOptions, largest: int, where: str) -> int:
    """Return the batch size to serve: the engine's `largest`, or a smaller requested one.

    Raises DeployError for more.
    """
    wanted = options.max_batch_size
    if wanted is None or wanted <= largest:
        return largest if wanted is None else wanted
    what = f"`max_batch_size` is {wanted}; the largest batch of the engine's profiles is {largest}"
    raise DeployError(what, where, "lower it, or widen the profile and build again")


def tensors(records: tuple[IoRecord, ...], max_batch: int) -> tuple[TritonTensor, ...]:
    """Return inputs or outputs as Triton defines them: without the batch axis, if there is one."""
    shapes = [record.shape[1:] if max_batch else record.shape for record in records]
    return tuple(
        TritonTensor(record.name, record.dtype, shape, is_scalar=not shape)
        for record, shape in zip(records, shapes, strict=True)
    )


def shape_words(name: str, max_batch: int) -> str:
    """Return text on where the shapes of an interface come from."""
    return f"As the bundle `{name}` has them" + (", without the batch axis." if max_batch else ".")


def extras(options: DeployOptions) -> list[Section]:
    """Return the requested features that the server adds to a model."""
    return [model_config.response_cache()] if options.response_cache else []


def warm_up_shape(
    network: Manifest | StageRecord, sizes: dict[str, tuple[int, ...]], max_batch: int
) -> model_config.WarmUpShape:
    """Return the shape of a warm-up request. sizes: of dynamic inputs, with the batch axis."""
    full = {record.name: sizes.get(record.name, record.shape) for record in network.inputs}
    if not max_batch:
        return model_config.WarmUpShape(0, full)
    batch = min(next(iter(full.values()))[0], max_batch)
    return model_config.WarmUpShape(batch, {name: shape[1:] for name, shape in full.items()})


def opt_shapes(profile: ResolvedProfile) -> dict[str, tuple[int, ...]]:
    """Return the shapes that TensorRT tuned a profile for."""
    return {name: shape.opt for name, shape in profile.items()}


def _refuse_bf16(manifest: Manifest) -> None:
    """Raise DeployError if a tensor is bf16, which Python's arrays lack."""
    for record in (*manifest.inputs, *manifest.outputs):
        if record.dtype == "bf16":
            what = f"`{record.name}` is bf16, which Triton's Python backend does not support"
            raise DeployError(what, manifest.name, "build the bundle with `--set io_types=fp32`")
