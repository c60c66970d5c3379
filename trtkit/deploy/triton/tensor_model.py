"""A bundle whose tensors are the server's: TensorRT's own backend where it can load the plan, else trtkit's runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.deploy.triton import model_config
from trtkit.deploy.triton.model_config import Section, Tensor
from trtkit.deploy.triton.served import ServedModel
from trtkit.errors import DeployError

if TYPE_CHECKING:
    from trtkit.deploy.triton.options import DeployOptions
    from trtkit.engine.bundle import Bundle
    from trtkit.engine.manifest import IoRecord, Manifest

RUNNER = "trtkit.deploy.triton.backend.tensors:TensorModel"
_OWN_RUNTIME = "Python backend on trtkit's runtime: the plan is for {}, which Triton's TensorRT backend does not load"
_SEVERAL = "Python backend on trtkit's runtime: the model is {} engines, run in order"
_NATIVE = "TensorRT backend: the plan is for TensorRT {}; the server must have the very same version"


def tensor_model(bundle: Bundle, name: str, options: DeployOptions) -> ServedModel:
    """Return the bundle as one model. Raises DeployError for types that Triton does not know."""
    manifest = bundle.manifest
    reason = backend_reason(manifest)
    is_native = reason.startswith("TensorRT")
    if not is_native:
        _refuse_bf16(manifest)
    max_batch = max_batch_size(manifest)
    inputs, outputs = tensors(manifest.inputs, max_batch), tensors(manifest.outputs, max_batch)
    preferred = [next(iter(profile.values())).opt[0] for profile in manifest.profiles if max_batch]
    shape_words = f"As the bundle `{manifest.name}` has them" + (", without the batch axis." if max_batch else ".")
    sections = [
        Section(f"{reason}.", {"name": name, "backend": "tensorrt" if is_native else "python"}),
        *model_config.batching(options, max_batch, preferred if is_native else ()),
        model_config.interface(inputs, outputs, shape_words),
    ]
    if is_native:
        sections += [model_config.instances(options, "KIND_GPU", len(manifest.profiles)), *_graphs(options, preferred)]
    else:
        sections.append(model_config.instances(options, "KIND_AUTO"))
    if options.response_cache:
        sections.append(model_config.response_cache())
    if options.warmup:
        sections.append(_warm_up(manifest, inputs, max_batch, is_native=is_native))
    return ServedModel(
        name,
        "model",
        "tensorrt" if is_native else "python",
        inputs,
        outputs,
        tuple(sections),
        (f"{name}: {reason}",),
        bundle,
        bundle.engine_path() if is_native else None,
        None if is_native else RUNNER,
    )


def backend_reason(manifest: Manifest) -> str:
    """Return which of Triton's backends runs the bundle, and why."""
    if manifest.backend.name != "tensorrt":
        return _OWN_RUNTIME.format(f"TensorRT-RTX {manifest.backend.version}")
    if len(manifest.engines) > 1:
        return _SEVERAL.format(len(manifest.engines))
    return _NATIVE.format(manifest.backend.version)


def max_batch_size(manifest: Manifest) -> int:
    """Return the largest batch, 0 where not every input and output has axis 0 for it, from 1 up."""
    has_axis = all(record.shape and record.shape[0] == -1 for record in (*manifest.inputs, *manifest.outputs))
    ranges = [
        {(shape.min[0], shape.max[0]) for name, shape in profile.items() if shape.min} for profile in manifest.profiles
    ]
    if not has_axis or not ranges or any(len(each) != 1 for each in ranges):
        return 0
    bounds = [next(iter(each)) for each in ranges]
    return max(high for _, high in bounds) if min(low for low, _ in bounds) == 1 else 0


def tensors(records: tuple[IoRecord, ...], max_batch: int) -> tuple[Tensor, ...]:
    """Return inputs or outputs as Triton has them: where there is a batch, its axis is left out."""
    shapes = [record.shape[1:] if max_batch else record.shape for record in records]
    return tuple(
        Tensor(record.name, record.dtype, shape, is_scalar=not shape)
        for record, shape in zip(records, shapes, strict=True)
    )


def _refuse_bf16(manifest: Manifest) -> None:
    """Raise DeployError where a tensor has a type that Python's arrays do not know."""
    for record in (*manifest.inputs, *manifest.outputs):
        if record.dtype == "bf16":
            what = f"`{record.name}` is bf16, which models of the Python backend cannot take or give"
            raise DeployError(what, manifest.name, "build the bundle with `--set io_types=fp32`")


def _graphs(options: DeployOptions, preferred: list[int]) -> list[Section]:
    """Return CUDA graphs where asked: for one request, and for the batches that the engine was tuned for."""
    if not options.cuda_graphs:
        return []
    specs = [{"batch_size": size} for size in sorted({1, *preferred})] if preferred else []
    words = "`cuda_graphs`: the whole engine as one launch, for these batch sizes."
    return [Section(words, {"optimization": {"cuda": {"graphs": True, "graph_spec": specs}}})]


def _warm_up(manifest: Manifest, inputs: tuple[Tensor, ...], max_batch: int, *, is_native: bool) -> Section:
    """Return one request for each profile; on trtkit's runtime one of the smallest shape."""
    profiles = manifest.profiles if is_native else manifest.profiles[:1]
    shapes = []
    for profile in profiles or ({},):
        full = {
            record.name: (profile[record.name].opt if is_native else profile[record.name].min)
            if record.name in profile
            else record.shape
            for record in manifest.inputs
        }
        batch = next(iter(full.values()))[0] if max_batch else 0
        shapes.append((batch, {name: shape[1:] if max_batch else shape for name, shape in full.items()}))
    return model_config.warm_up(inputs, shapes)
