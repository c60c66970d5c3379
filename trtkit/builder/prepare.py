"""The job that turns a config's source, a model or a hybrid's parts, into ONNX files for TensorRT's parser."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from trtkit.builder.hybrids import OpenedHybrid, open_hybrid, opt_sizes, stage_profiles
from trtkit.builder.jobs import PrepareRequest, PrepareTowerRequest, QuantizedVision
from trtkit.builder.parseable import make_parseable, write_onnx
from trtkit.builder.profiles import check_keys, opt_dims, opt_shapes, resolve_profiles, with_first_names
from trtkit.builder.room import BuildLoad, check_room, hybrid_load
from trtkit.builder.stages import Prepared, PreparedStage
from trtkit.builder.vision_language import check_calibration, pixel_samples
from trtkit.config.schema import ModuleInput, TorchSource
from trtkit.dtypes import dtype_of
from trtkit.files import scratch_folder
from trtkit.jobs.events import Phase, Steps
from trtkit.models.hybrids.registry import TEXT_ENCODERS
from trtkit.models.hybrids.spec import NetworkPart, OnnxPart
from trtkit.models.hybrids.weights import find_part_weights
from trtkit.models.model import Part, Stage
from trtkit.network.hybrid import input_name
from trtkit.network.onnx import autocast, care, custom_ops, folding, function
from trtkit.network.onnx.io import graph_inputs, merged, prefixed
from trtkit.network.onnx.nms import append_nms
from trtkit.network.onnx.quantize import counts
from trtkit.quantization.by_part import with_own_arrays
from trtkit.quantization.vision.data import OnnxQuantization, QuantizationRun, preprocessed_by
from trtkit.quantization.vision.onnx_model import quantized, quantized_part, recorded_loss
from trtkit.resolve import onnx_export, resolve
from trtkit.sources import onnx_file, package_file
from trtkit.sources.checkpoint import converted_elements
from trtkit.sources.huggingface import vision
from trtkit.sources.huggingface.preprocessing import folder_labels
from trtkit.sources.hybrid_source import PartFactory, part_module
from trtkit.sources.safetensors_file import json_object
from trtkit.sources.tokenizer import folder_tokenizer
from trtkit.sources.torch import attempts, export

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx

    from trtkit.builder.parseable import NetworkSettings
    from trtkit.builder.stages import OnnxFile
    from trtkit.config.schema import ModelConfig, Profile
    from trtkit.jobs.job import JobContext
    from trtkit.models.model import StagedModel
    from trtkit.quantization.by_part import HybridQuantization
    from trtkit.quantization.jobs import QuantizeRequest


def prepare(request: PrepareRequest, context: JobContext) -> Prepared:
    """Write the ONNX files of a model of arrays for TensorRT's parser, one per stage with ONNX parts."""
    context.report(Phase("prepare"))
    steps, model = Steps(context.report), resolve(request.config)
    (request.folder / "network").mkdir()
    if model.spec is None:
        return _prepare_whole(request, model.stages[0], steps)
    return prepare_parts(request, model, steps)


def prepare_tower(request: PrepareTowerRequest, context: JobContext) -> Prepared:
    """Write the ONNX file of the stage before a language model for TensorRT's parser."""
    context.report(Phase("prepare"))
    tower, steps, folder = request.stage, Steps(context.report), request.folder / "network"
    check_calibration(tower)
    folder.mkdir()
    path = _export(tower.source, None, tower.profiles, folder, steps)
    quantization = None
    if tower.quantize is not None:
        quantization = OnnxQuantization(tower.quantize, partial(pixel_samples, tower), tower.key)
    stage = Stage(tower.name, tuple(Part(name, "onnx") for name in tower.part_names), "parser")
    file = _File(path, stage, tower, quantization)
    prepared = _prepare_file(file, folder, steps, has_plugins=request.has_plugins)
    return replace(
        prepared, steps=tuple(replace(step, name=f"{tower.name} {step.name}") for step in prepared.steps), profiles=()
    )


def _prepare_whole(request: PrepareRequest, stage: Stage, steps: Steps) -> Prepared:
    """Prepare a model that is one ONNX file: in the config's precision, quantized if configured."""
    config, folder = request.config, request.folder / "network"
    quantization = None if config.quantize is None else OnnxQuantization.of(config)
    labels = () if config.source.hf is None else folder_labels(json_object(Path(config.source.hf) / "config.json"))
    file = _File(_source_onnx(config, folder, steps), stage, config, quantization, labels)
    return _prepare_file(file, folder, steps, has_plugins=request.has_plugins)


@dataclass(frozen=True, eq=False)
class _File:
    """An ONNX file that becomes a stage. labels: class names from a Hugging Face folder."""

    path: Path
    stage: Stage
    settings: NetworkSettings
    quantization: OnnxQuantization | None
    labels: Sequence[str] = ()


def _prepare_file(file: _File, folder: Path, steps: Steps, *, has_plugins: bool) -> Prepared:
    """Prepare an ONNX file as its own stage; intermediate files are removed from `folder`."""
    path, config, stage = file.path, file.settings, file.stage
    onnx_model = onnx_file.read_model(path)
    check_keys([spec for spec in graph_inputs(onnx_model) if spec.name not in config.fixed_inputs], config.profiles)
    onnx_model = make_parseable(onnx_model, config, str(path), steps, has_plugins=has_plugins)
    named = with_first_names(config.profiles, folding.dimension_aliases(onnx_model))
    profiles, detail = resolve_profiles(graph_inputs(onnx_model), named)
    steps.add("profiles", detail)
    shapes = opt_shapes(graph_inputs(onnx_model), profiles)
    if file.quantization is not None:
        steps.report(Phase("quantize"))
        onnx_model = quantized(onnx_model, file.quantization, QuantizationRun(shapes, folder, steps))
    if config.precision != "fp32":
        keep = autocast.select_nodes(onnx_model, config.keep_fp32)
        keep += function.fp32_nodes(onnx_model)
        onnx_model, detail = autocast.cast_to(onnx_model, config.precision, keep, shapes, folder)
        steps.add("precision", detail)
    if config.engine_nms is not None:
        onnx_model = _with_nms(onnx_model, config, steps, has_plugins=has_plugins)
    steps.add("I/O types", autocast.cast_io(onnx_model, config.io_types))
    for intermediate in folder.iterdir():
        intermediate.unlink()
    if file.labels:  # stored in the file, as by Ultralytics: a bundle may move
        onnx_model.metadata_props.add(key="names", value=repr(dict(enumerate(file.labels))))
    written = write_onnx(onnx_model, folder / "model.onnx", steps, uses_plugins=has_plugins)
    prepared = PreparedStage(stage.name, stage.writer, stage.part_names, written, tuple(profiles), shapes)
    return Prepared(tuple(steps.done), prepared.profiles, (prepared,))


def _with_nms(model: onnx.ModelProto, config: NetworkSettings, steps: Steps, *, has_plugins: bool) -> onnx.ModelProto:
    """Append NMS, computed in fp32 whatever the precision."""
    assert config.engine_nms is not None
    detail = append_nms(model, config.engine_nms)
    model, _ = custom_ops.lower(model, form=config.custom_ops.form, for_plugins=has_plugins)
    care.name_nodes(model)
    steps.add("NMS", detail)
    return care.infer_shapes(model)[0]


def _source_onnx(config: ModelConfig, folder: Path, steps: Steps) -> Path:
    """Return the source's ONNX file; other sources are exported into `folder`."""
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
    return _export(vision.torch_source(config), source.requires, config.profiles, folder, steps)


def _export(source: TorchSource, requires: str | None, profiles: Sequence[Profile], folder: Path, steps: Steps) -> Path:
    """Export a torch module to ONNX in `folder`; return the file."""
    module = export.make_module(source, requires)
    steps.add("source", f"{source.factory}, {sum(p.numel() for p in module.parameters()) / 1e6:.1f} M parameters")
    path = folder / "exported.onnx"
    steps.add("export", attempts.export(module, source, opt_dims(profiles), path))
    return path


def prepare_parts(request: PrepareRequest, model: StagedModel, steps: Steps) -> Prepared:
    """Write `folder`/network/STAGE.onnx for every stage with ONNX parts."""
    config, opened = request.config, open_hybrid(model)
    steps.add("source", f"{opened.spec.model_type}, parts {', '.join(part.name for part in opened.spec.parts)}")
    check_room(_load(opened), request.folder)
    weights = find_part_weights(opened.spec, opened.source.checkpoint, opened.source.where)
    steps.add("weights", f"{len(weights)} of network parts found, all names and shapes right")
    if opened.spec.model_type in TEXT_ENCODERS:
        written = folder_tokenizer(opened.source.folder).write(request.folder / "model")
        steps.add("tokenizer", ", ".join(path.name for path in written) or "the source has none")
    profiles, detail = resolve_profiles(opened.inputs, config.profiles, opened.spec.ranges)
    steps.add("profiles", detail)
    exporter = _Exporter(opened, request, opt_sizes(opened.inputs, profiles), steps)
    exported = {stage.name: exporter.exported(stage) for stage in model.stages}
    if opened.quantization is not None:
        _check_quantization(opened.quantization, [model for model in exported.values() if model is not None], steps)
    stages = []
    for stage in model.stages:
        inputs = opened.stage_inputs(stage)
        own_profiles = stage_profiles(inputs, opened.inputs, profiles)
        shapes = opt_shapes(inputs, own_profiles)
        onnx_model = exported.pop(stage.name)
        file = None if onnx_model is None else exporter.write(stage, onnx_model, shapes)
        stages.append(PreparedStage(stage.name, stage.writer, stage.part_names, file, tuple(own_profiles), shapes))
    return Prepared(tuple(steps.done), tuple(profiles), tuple(stages))


def _load(opened: OpenedHybrid) -> BuildLoad:
    """Return the build's resource needs: written parts from their specs, exported ones from the checkpoint."""
    written = [w for part in opened.spec.parts if isinstance(part, NetworkPart) for w in part.weights]
    parameters, names = sum(math.prod(weight.shape) for weight in written), {weight.name for weight in written}
    stored = opened.source.checkpoint
    exported = sum(math.prod(stored.shape_of(name)) for name in stored if name not in names)
    dtype = dtype_of(opened.precision)
    return hybrid_load(parameters + exported, exported, dtype, converted_elements(stored, dtype.numpy, names))


@dataclass(frozen=True)
class _Exporter:
    """Exports the ONNX parts of stages. sizes: of the shapes' symbols."""

    opened: OpenedHybrid
    request: PrepareRequest
    sizes: Mapping[str, int]
    steps: Steps

    @property
    def config(self) -> ModelConfig:
        """The config of the whole model."""
        return self.request.config

    def exported(self, stage: Stage) -> onnx.ModelProto | None:
        """Return a stage's ONNX parts as one model; None if it has none."""
        parts, uses_plugins = self._parts(stage), self.request.has_plugins
        if not parts:
            return None
        with scratch_folder() as scratch:
            model = merged([self._export(part, scratch) for part in parts])
            return make_parseable(model, self.config, f"{stage.name}.onnx", self.steps, has_plugins=uses_plugins)

    def write(self, stage: Stage, model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> OnnxFile:
        """Quantize an exported stage, cast it to its precision and write it."""
        with scratch_folder() as scratch:
            input_shapes = {spec.name: tuple(shapes[spec.name]) for spec in graph_inputs(model)}
            if (quantization := self.opened.quantization) is not None:
                for part in self._parts(stage):
                    run = QuantizationRun(input_shapes, scratch, self.steps)
                    whole = [port.name for port in self.opened.spec.inputs]
                    choice = with_own_arrays(quantization.choices[part.name], list(input_shapes), whole, scratch)
                    model = quantized_part(model, choice, preprocessed_by(self.config), run)
            model = self._in_precision(model, self._parts(stage), input_shapes, scratch)
        path = self.request.folder / "network" / f"{stage.name}.onnx"
        return write_onnx(model, path, self.steps, uses_plugins=self.request.has_plugins)

    def _parts(self, stage: Stage) -> list[OnnxPart]:
        return [part for name in stage.part_names if isinstance(part := self.opened.spec.part(name), OnnxPart)]

    def _export(self, part: OnnxPart, scratch: Path) -> onnx.ModelProto:
        """Export one part; its inputs and outputs are named after its seams, all else is prefixed with its name."""
        spec = self.opened.spec
        factory = PartFactory(part.module, part.arguments, part.prefix, part.names)
        module = part_module(factory, self.opened.source)
        dtypes = {
            item.name: item.dtype for stage in self.opened.model.stages for item in self.opened.stage_inputs(stage)
        }
        inputs = {
            name: ModuleInput(shape=port.shape, dtype=_exported(dtypes.get(name, "fp32")))
            for port in part.inputs
            for name in [input_name(spec, part.name, port.name)]
        }
        outputs = tuple(f"{part.name}.{port.name}" for port in part.outputs)
        source = TorchSource(factory=part.module, inputs=inputs, outputs=outputs)
        path = scratch / f"{part.name}.onnx"
        detail = attempts.export(module, source, self.sizes, path)
        count = sum(parameter.numel() for parameter in module.parameters())
        self.steps.add("export", f"part `{part.name}`, {count / 1e6:.1f} M parameters, {detail}")
        return prefixed(onnx_file.read_model(path), f"{part.name}/")

    def _in_precision(
        self, model: onnx.ModelProto, parts: list[OnnxPart], shapes: dict[str, tuple[int, ...]], scratch: Path
    ) -> onnx.ModelProto:
        """Cast the model to the config's precision, except parts that require fp32."""
        precision = self.config.precision
        in_fp32 = tuple(f"{part.name}/" for part in parts if part.dtype == "fp32")
        if precision == "fp32" or len(in_fp32) == len(parts):
            return model
        keep = autocast.select_nodes(model, self.config.keep_fp32)
        keep += function.fp32_nodes(model)
        keep += [node.name for node in model.graph.node if in_fp32 and node.name.startswith(in_fp32)]
        model, detail = autocast.cast_to(model, precision, keep, shapes, scratch)
        self.steps.add("precision", detail)
        return model


def _check_quantization(quantization: HybridQuantization, models: Sequence[onnx.ModelProto], steps: Steps) -> None:
    """Refuse globs that match nothing; record which layers of written parts are quantized."""
    nodes: dict[str, list[str]] = {}
    for node in (node for model in models for node in model.graph.node):
        nodes.setdefault(node.name.partition("/")[0], []).extend((node.name, f"op:{node.op_type}"))
    quantization.check_globs(nodes)
    for name in quantization.choices:
        if summary := quantization.described(name):
            steps.add("quantize", f"part `{name}`: {summary}")


def _exported(dtype: str) -> Literal["fp32", "int32", "int64", "bool"]:
    """Return a part's export type: fp32 for all floats, whatever the network's type."""
    match dtype:
        case "int32" | "int64" | "bool":
            return dtype
        case _:
            return "fp32"


def quantize_vision(request: QuantizeRequest, context: JobContext) -> QuantizedVision:
    """Write the model of a config, quantized by its `quantize` section, to `folder`/model.onnx.

    A build of the config gives TensorRT the same file, except that it appends NMS.
    Raises TrtkitError.
    """
    assert request.config.quantize is not None
    prepared = prepare(PrepareRequest(request.config.with_host_nms(), request.folder), context)
    for path in (request.folder / "network").iterdir():
        path.rename(request.folder / path.name)
    (request.folder / "network").rmdir()
    model = onnx_file.read_model(request.folder / "model.onnx")
    quantized, loss = counts(model), recorded_loss(model)
    return QuantizedVision(prepared.steps, len(model.graph.node), quantized.activations, quantized.weights, loss)
