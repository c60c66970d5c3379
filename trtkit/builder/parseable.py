"""Prepare an ONNX model for TensorRT's parser and write it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from trtkit.builder.plugins import write_plugins
from trtkit.builder.profiles import resolve_profiles, small_shapes, with_first_names
from trtkit.builder.stages import OnnxFile
from trtkit.errors import ConfigError
from trtkit.network.onnx import care, custom_ops, folding, rewrites
from trtkit.network.onnx.function import check_size, check_vectors
from trtkit.network.onnx.io import graph_inputs, save_model
from trtkit.network.onnx.nms import OPSET

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import onnx

    from trtkit.config.schema import CustomOpOptions, IoType, Profile
    from trtkit.config.task import Boxes
    from trtkit.jobs.events import Steps
    from trtkit.network.onnx.io import OnnxTensorSpec


class NetworkSettings(Protocol):
    """Settings for a network built through ONNX, from the config of a whole model or of a stage."""

    @property
    def precision(self) -> str: ...
    @property
    def keep_fp32(self) -> tuple[str, ...]: ...
    @property
    def io_types(self) -> IoType: ...
    @property
    def fold_constants(self) -> bool: ...
    @property
    def fixed_inputs(self) -> Mapping[str, Any]: ...
    @property
    def profiles(self) -> tuple[Profile, ...]: ...
    @property
    def custom_ops(self) -> CustomOpOptions: ...
    @property
    def engine_nms(self) -> Boxes | None: ...


def make_parseable(
    model: onnx.ModelProto, config: NetworkSettings, where: str, steps: Steps, *, has_plugins: bool = False
) -> onnx.ModelProto:
    """Return `model` ready for TensorRT's parser: checked, lifted, folded and rewritten.

    has_plugins: leave custom ops that can be plugins as functions.
    """
    ops: dict[str, Any] = {"form": config.custom_ops.form, "for_plugins": has_plugins}
    order = care.sort_nodes(model, where)
    if order != "in order":
        steps.add("order", order)
    check_size(model, where)
    check_vectors(model, where)
    steps.add("check", care.check(model, where))
    model, detail = care.lift_opset(model, where, 0 if config.engine_nms is None else OPSET)
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


def _sample(model: onnx.ModelProto, config: NetworkSettings) -> folding.OnnxRun | None:
    """Run the model before folding; None if its shapes are not known yet, as in a hybrid's part."""
    inputs = graph_inputs(model)
    sample = _run(model, inputs, config.profiles)
    if sample is not None or sum(spec.is_dynamic for spec in inputs) < 2:
        return sample
    aliases = folding.dimension_aliases(folding.fold_constants(model)[0])  # two inputs may share a dimension
    if not aliases:
        return None
    shared = [
        replace(spec, shape=tuple(aliases.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape))
        for spec in inputs
    ]
    try:
        return _run(model, shared, with_first_names(config.profiles, aliases))
    except ConfigError:  # reported when the profiles are resolved for the engine
        return None


def _run(
    model: onnx.ModelProto, inputs: Sequence[OnnxTensorSpec], profiles: Sequence[Profile]
) -> folding.OnnxRun | None:
    """Run the model at the smallest shapes of the first profile."""
    try:
        resolved, _ = resolve_profiles(inputs, profiles)
    except ConfigError:  # reported when the profiles are resolved for the engine
        return None
    return folding.run_sample(model, small_shapes(inputs, resolved))


def write_onnx(model: onnx.ModelProto, path: Path, steps: Steps, *, uses_plugins: bool) -> OnnxFile:
    """Write a stage's ONNX parts to `path`; next to it, the file for TensorRT's parser if some ops become plugins."""
    save_model(model, path)
    modes = tuple(care.grid_sample_modes(model))
    if not uses_plugins:
        return OnnxFile(path, path, grid_samples=modes)
    parsed = path.with_suffix(".plugins.onnx")
    ops, detail = write_plugins(model, parsed)
    steps.add("plugins", detail)
    return OnnxFile(path, parsed if ops else path, ops, modes)
