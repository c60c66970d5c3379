"""The job that turns a config's source into the ONNX files that TensorRT parses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.engine.plugins import write_plugins
from trtkit.engine.profiles import opt_dims, opt_shapes, resolve_profiles, small_shapes
from trtkit.engine.stages import OnnxFile, Prepared, PreparedStage
from trtkit.errors import ConfigError
from trtkit.jobs.events import Phase
from trtkit.jobs.steps import Steps
from trtkit.network.onnx import autocast, care, custom_ops, folding, function, rewrites
from trtkit.network.onnx.io import graph_inputs, save_model
from trtkit.network.onnx.limits import check_size, check_vectors
from trtkit.quantization.vision.data import Place
from trtkit.quantization.vision.onnx_model import quantized
from trtkit.resolve import resolve
from trtkit.sources import onnx_file, package_file
from trtkit.sources.huggingface import vision
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
    from trtkit.engine.prepare_parts import prepare_parts

    return prepare_parts(request, model, steps)


def _prepare_whole(request: PrepareRequest, stage: Stage, steps: Steps) -> Prepared:
    """Prepare a model that is one ONNX file: in the config's precision, quantized if it asks for it."""
    config, folder = request.config, request.folder / "network"
    path = _source_onnx(config, folder, steps)
    onnx_model = make_parseable(onnx_file.read_model(path), config, str(path), steps, has_plugins=request.has_plugins)
    profiles, detail = resolve_profiles(graph_inputs(onnx_model), config.profiles)
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
    steps.add("I/O types", autocast.cast_io(onnx_model, config.io_types))
    for intermediate in folder.iterdir():
        intermediate.unlink()
    file = write_onnx(onnx_model, folder / "model.onnx", steps, uses_plugins=request.has_plugins)
    prepared = PreparedStage(stage.name, stage.writer, stage.part_names, file, tuple(profiles), shapes)
    return Prepared(tuple(steps.done), prepared.profiles, (prepared,))


def write_onnx(model: onnx.ModelProto, path: Path, steps: Steps, *, uses_plugins: bool) -> OnnxFile:
    """Write a stage's ONNX parts to `path` and, if ops of theirs become plugins, what TensorRT parses beside it."""
    save_model(model, path)
    modes = tuple(care.grid_sample_modes(model))
    if not uses_plugins:
        return OnnxFile(path, path, grid_samples=modes)
    parsed = path.with_suffix(".plugins.onnx")
    ops, detail = write_plugins(model, parsed)
    steps.add("plugins", detail)
    return OnnxFile(path, parsed if ops else path, ops, modes)


def _source_onnx(config: ModelConfig, folder: Path, steps: Steps) -> Path:
    """Return the ONNX file of the source, exported into `folder` where it is not one already."""
    source = config.source
    if source.onnx is not None:
        path = package_file.resolve(source.onnx, source.requires)
        steps.add("source", f"{path.name}, {path.stat().st_size / 2**20:.1f} MiB")
        return path
    torch_source = source.torch if source.hf is None else vision.folder_source(Path(source.hf), config.image_size)
    assert torch_source is not None
    module = export.make_module(torch_source, source.requires)
    steps.add("source", f"{torch_source.factory}, {sum(p.numel() for p in module.parameters()) / 1e6:.1f} M parameters")
    path = folder / "exported.onnx"
    steps.add("export", attempts.export(module, torch_source, opt_dims(config.profiles), path))
    return path


def make_parseable(
    model: onnx.ModelProto, config: ModelConfig, where: str, steps: Steps, *, has_plugins: bool = False
) -> onnx.ModelProto:
    """Return `model` as TensorRT's parser takes it: checked, lifted, folded, rewritten.

    has_plugins: custom ops that can be plugins stay functions.
    """
    ops: dict[str, Any] = {"form": config.custom_ops.form, "for_plugins": has_plugins}
    order = care.sort_nodes(model, where)
    if order != "in order":
        steps.add("order", order)
    check_size(model, where)
    check_vectors(model, where)
    steps.add("check", care.check(model, where))
    model, detail = care.lift_opset(model, where)
    steps.add("opset", detail)
    steps.add("initializers", care.free_initializers(model))
    if config.fixed_inputs:
        steps.add("fixed inputs", care.fix_inputs(model, config.fixed_inputs))
    steps.add("dimensions", care.name_dimensions(model))
    model, detail = rewrites.rewrite(model, is_final=not config.fold_constants)
    steps.add("rewrites", detail)
    model, detail = custom_ops.lower(model, is_final=not config.fold_constants, **ops)
    steps.add("custom ops", detail)
    if config.fold_constants:
        sample = _sample(model, config)
        wrong = folding.correct_outputs(model, sample) if sample else ""
        if wrong:
            steps.add("declared shapes", f"wrong, corrected: {wrong}")
        model, detail = folding.fold_constants(model, sample)
        steps.add("fold", detail)
        model, detail = rewrites.rewrite(model)
        if detail != "none":
            steps.add("rewrites of folded sizes", detail)
        model, detail = custom_ops.lower(model, **ops)
        if detail != "none":
            steps.add("custom ops of folded sizes", detail)
    steps.add("node names", care.name_nodes(model))
    steps.add("other domains", care.other_domains(model))
    model, detail = care.infer_shapes(model)
    steps.add("shapes", detail)
    return model


def _sample(model: onnx.ModelProto, config: ModelConfig) -> folding.Sample | None:
    """Run the model before it is folded; None if its shapes are not known here, as those of a hybrid's part."""
    inputs = graph_inputs(model)
    try:
        profiles, _ = resolve_profiles(inputs, config.profiles)
    except ConfigError:  # what is wrong with them is said when they are resolved for the engine
        return None
    return folding.run_sample(model, small_shapes(inputs, profiles))
