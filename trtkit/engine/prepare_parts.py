"""Export the ONNX parts of a family's model: one prepared file for each stage that has any."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trtkit.config.schema import InputSpec, TorchSource
from trtkit.dtypes import dtype_of
from trtkit.engine.hybrids import OpenedHybrid, open_hybrid, opt_sizes, stage_profiles
from trtkit.engine.parseable import make_parseable, write_onnx
from trtkit.engine.profiles import opt_shapes, resolve_profiles
from trtkit.engine.room import Load, check_room, hybrid_load
from trtkit.engine.stages import Prepared, PreparedStage
from trtkit.files import scratch_folder
from trtkit.models.hybrids.registry import TEXT_ENCODERS
from trtkit.models.hybrids.spec import NetworkPart, OnnxPart
from trtkit.models.hybrids.weights import find_part_weights
from trtkit.network.hybrid import input_name
from trtkit.network.onnx import autocast, function
from trtkit.network.onnx.io import graph_inputs
from trtkit.network.onnx.merge import merged, prefixed
from trtkit.quantization.by_part.data import with_own_arrays
from trtkit.quantization.vision.data import Place
from trtkit.quantization.vision.onnx_model import quantized_part
from trtkit.sources import onnx_file
from trtkit.sources.checkpoint import converted_elements
from trtkit.sources.hybrid_source import PartFactory, part_module
from trtkit.sources.tokenizer import folder_tokenizer
from trtkit.sources.torch import attempts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx

    from trtkit.config.schema import ModelConfig
    from trtkit.engine.jobs import PrepareRequest
    from trtkit.engine.stages import OnnxFile
    from trtkit.jobs.steps import Steps
    from trtkit.models.model import Model, Stage
    from trtkit.quantization.by_part.choice import HybridQuantization


def prepare_parts(request: PrepareRequest, model: Model, steps: Steps) -> Prepared:
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
        own = stage_profiles(inputs, opened.inputs, profiles)
        shapes = opt_shapes(inputs, own)
        onnx_model = exported.pop(stage.name)
        file = None if onnx_model is None else exporter.write(stage, onnx_model, shapes)
        stages.append(PreparedStage(stage.name, stage.writer, stage.part_names, file, tuple(own), shapes))
    return Prepared(tuple(steps.done), tuple(profiles), tuple(stages))


def _load(opened: OpenedHybrid) -> Load:
    """Return what the build has to hold: written parts as their specs say, exported ones as they are stored."""
    written = [w for part in opened.spec.parts if isinstance(part, NetworkPart) for w in part.weights]
    parameters, names = sum(math.prod(weight.shape) for weight in written), {weight.name for weight in written}
    stored = opened.source.checkpoint
    exported = sum(math.prod(stored.shape_of(name)) for name in stored if name not in names)
    dtype = dtype_of(opened.precision)
    return hybrid_load(parameters + exported, exported, dtype, converted_elements(stored, dtype.numpy, names))


@dataclass(frozen=True)
class _Exporter:
    """Exports the ONNX parts of stages. sizes: of symbols."""

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
        """Write what a stage exported, quantized and in its precision."""
        with scratch_folder() as scratch:
            own = {spec.name: tuple(shapes[spec.name]) for spec in graph_inputs(model)}
            if (quantization := self.opened.quantization) is not None:
                for part in self._parts(stage):
                    place = Place(own, scratch, self.steps)
                    whole = [port.name for port in self.opened.spec.inputs]
                    choice = with_own_arrays(quantization.choices[part.name], list(own), whole, scratch)
                    model = quantized_part(model, self.config, choice, place)
            model = self._in_precision(model, self._parts(stage), own, scratch)
        path = self.request.folder / "network" / f"{stage.name}.onnx"
        return write_onnx(model, path, self.steps, uses_plugins=self.request.has_plugins)

    def _parts(self, stage: Stage) -> list[OnnxPart]:
        return [part for name in stage.part_names if isinstance(part := self.opened.spec.part(name), OnnxPart)]

    def _export(self, part: OnnxPart, scratch: Path) -> onnx.ModelProto:
        """Export one part; its inputs and outputs have the names of their seams, all else the part's before it."""
        spec = self.opened.spec
        factory = PartFactory(part.module, part.arguments, part.prefix, part.names)
        module = part_module(factory, self.opened.source)
        dtypes = {
            item.name: item.dtype for stage in self.opened.model.stages for item in self.opened.stage_inputs(stage)
        }
        inputs = {
            name: InputSpec(shape=port.shape, dtype=_exported(dtypes.get(name, "fp32")))
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
        """Return the model in the config's precision, but parts that ask for fp32."""
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
    """Refuse globs that match nothing; say what of written parts is quantized."""
    nodes: dict[str, list[str]] = {}
    for node in (node for model in models for node in model.graph.node):
        nodes.setdefault(node.name.partition("/")[0], []).extend((node.name, f"op:{node.op_type}"))
    quantization.check_globs(nodes)
    for name in quantization.choices:
        if summary := quantization.described(name):
            steps.add("quantize", f"part `{name}`: {summary}")


def _exported(dtype: str) -> Literal["fp32", "int32", "int64", "bool"]:
    """Return the type that a part is exported with: floats in fp32, whatever they are in the network."""
    match dtype:
        case "int32" | "int64" | "bool":
            return dtype
        case _:
            return "fp32"
