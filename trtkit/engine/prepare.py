"""The job that turns a config's source into the ONNX files that TensorRT parses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtkit.engine.parseable import make_parseable, write_onnx
from trtkit.engine.prepare_parts import prepare_parts
from trtkit.engine.profiles import check_keys, opt_dims, opt_shapes, resolve_profiles, with_first_names
from trtkit.engine.stages import Prepared, PreparedStage
from trtkit.jobs.events import Phase
from trtkit.jobs.steps import Steps
from trtkit.network.onnx import autocast, care, custom_ops, folding, function
from trtkit.network.onnx.io import graph_inputs
from trtkit.network.onnx.nms import append_nms
from trtkit.quantization.vision.data import Place
from trtkit.quantization.vision.onnx_model import quantized
from trtkit.resolve import onnx_export, resolve
from trtkit.sources import onnx_file, package_file
from trtkit.sources.huggingface import vision
from trtkit.sources.huggingface.preprocessing import folder_labels
from trtkit.sources.safetensors_folder import json_object
from trtkit.sources.torch import attempts, export

if TYPE_CHECKING:
    import onnx

    from trtkit.config.schema import ModelConfig
    from trtkit.engine.jobs import PrepareRequest
    from trtkit.jobs.job import Context
    from trtkit.models.model import Stage


def prepare(request: PrepareRequest, context: Context) -> Prepared:
    """Write the ONNX files of a model of arrays, one for each stage that has ONNX parts, fit for TensorRT's parser."""
    context.report(Phase("prepare"))
    steps, model = Steps(context.report), resolve(request.config)
    (request.folder / "network").mkdir()
    if model.spec is None:
        return _prepare_whole(request, model.stages[0], steps)
    return prepare_parts(request, model, steps)


def _prepare_whole(request: PrepareRequest, stage: Stage, steps: Steps) -> Prepared:
    """Prepare a model that is one ONNX file: in the config's precision, quantized if it asks for it."""
    config, folder = request.config, request.folder / "network"
    path = _source_onnx(config, folder, steps)
    onnx_model = onnx_file.read_model(path)
    check_keys([spec for spec in graph_inputs(onnx_model) if spec.name not in config.fixed_inputs], config.profiles)
    onnx_model = make_parseable(onnx_model, config, str(path), steps, has_plugins=request.has_plugins)
    named = with_first_names(config.profiles, folding.dimension_aliases(onnx_model))
    profiles, detail = resolve_profiles(graph_inputs(onnx_model), named)
    steps.add("profiles", detail)
    shapes = opt_shapes(graph_inputs(onnx_model), profiles)
    if config.quantize is not None:
        steps.report(Phase("quantize"))
        onnx_model = quantized(onnx_model, config, Place(shapes, folder, steps))
    if config.precision != "fp32":
        keep = autocast.select_nodes(onnx_model, config.keep_fp32)
        keep += function.fp32_nodes(onnx_model)
        onnx_model, detail = autocast.cast_to(onnx_model, config.precision, keep, shapes, folder)
        steps.add("precision", detail)
    if config.engine_nms is not None:
        onnx_model = _with_nms(onnx_model, config, steps, has_plugins=request.has_plugins)
    steps.add("I/O types", autocast.cast_io(onnx_model, config.io_types))
    for intermediate in folder.iterdir():
        intermediate.unlink()
    _name_classes(onnx_model, config)
    file = write_onnx(onnx_model, folder / "model.onnx", steps, uses_plugins=request.has_plugins)
    prepared = PreparedStage(stage.name, stage.writer, stage.part_names, file, tuple(profiles), shapes)
    return Prepared(tuple(steps.done), prepared.profiles, (prepared,))


def _with_nms(model: onnx.ModelProto, config: ModelConfig, steps: Steps, *, has_plugins: bool) -> onnx.ModelProto:
    """Append NMS, which computes in fp32 in every precision."""
    assert config.engine_nms is not None
    detail = append_nms(model, config.engine_nms)
    model, _ = custom_ops.lower(model, form=config.custom_ops.form, for_plugins=has_plugins)
    care.name_nodes(model)
    steps.add("NMS", detail)
    return care.infer_shapes(model)[0]


def _name_classes(model: onnx.ModelProto, config: ModelConfig) -> None:
    """Note a Hugging Face folder's names of classes in the file's metadata, as Ultralytics does: a bundle may move."""
    labels = () if config.source.hf is None else folder_labels(json_object(Path(config.source.hf) / "config.json"))
    if labels:
        model.metadata_props.add(key="names", value=repr(dict(enumerate(labels))))


def _source_onnx(config: ModelConfig, folder: Path, steps: Steps) -> Path:
    """Return the ONNX file of the source, exported into `folder` where it is not one already."""
    source = config.source
    if source.onnx is not None:
        path = package_file.resolve(source.onnx, source.requires)
        steps.add("source", f"{path.name}, {path.stat().st_size / 2**20:.1f} MiB")
        written = onnx_export(config)
        if written is not None:
            lacks = "" if config.task else "; no `task` of trtkit reads its outputs, which stay tensors"
            steps.add(
                "metadata", f"Ultralytics `{written.task}`, pictures of {written.size[0]}x{written.size[1]}{lacks}"
            )
        return path
    torch_source = vision.torch_source(config)
    module = export.make_module(torch_source, source.requires)
    steps.add("source", f"{torch_source.factory}, {sum(p.numel() for p in module.parameters()) / 1e6:.1f} M parameters")
    path = folder / "exported.onnx"
    steps.add("export", attempts.export(module, torch_source, opt_dims(config.profiles), path))
    return path
