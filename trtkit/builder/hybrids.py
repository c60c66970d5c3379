"""A hybrid's source, inputs and profiles, derived from its config."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import dtype_of
from trtkit.network.hybrid import input_name, port_dtype
from trtkit.network.input_spec import ProfileShapes
from trtkit.network.onnx.io import OnnxTensorSpec
from trtkit.quantization.by_part import hybrid_quantization
from trtkit.sources.hybrid_source import HybridSource, open_hybrid_folder
from trtkit.sources.package_file import hf_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.models.hybrids.spec import HybridSpec
    from trtkit.models.model import Stage, StagedModel
    from trtkit.network.input_spec import ResolvedProfile
    from trtkit.quantization.by_part import HybridQuantization


@dataclass(frozen=True)
class OpenedHybrid:
    """A hybrid with its source open. quantization: None if no part is quantized."""

    model: StagedModel
    spec: HybridSpec
    source: HybridSource
    quantization: HybridQuantization | None = None

    @property
    def precision(self) -> str:
        """The type that parts compute in unless they set another."""
        return self.model.config.precision

    @property
    def form(self) -> str:
        """The form of sampling ops that the network API writes."""
        return self.model.config.custom_ops.form

    def stage_inputs(self, stage: Stage) -> list[OnnxTensorSpec]:
        """Return a stage's inputs: the model's own, and tensors of other stages as `part.output`."""
        return list(_stage_inputs(self.spec, stage, self.precision))

    @property
    def inputs(self) -> list[OnnxTensorSpec]:
        """The model's own inputs."""
        taken = {spec.name: spec for stage in self.model.stages for spec in self.stage_inputs(stage)}
        return [taken[port.name] for port in self.spec.inputs]

    @property
    def output_names(self) -> list[str]:
        """The model's own outputs."""
        return [name.partition(".")[2] for name in self.spec.outputs]


def open_hybrid(model: StagedModel) -> OpenedHybrid:
    """Open the source of a hybrid. Raises ConfigError for quantization that a part does not support."""
    config, spec = model.config, model.spec
    assert config.source.hf is not None
    assert spec is not None
    source = open_hybrid_folder(hf_folder(config.source))
    quantization = None if config.quantize is None else hybrid_quantization(spec, config.quantize)
    return OpenedHybrid(model, spec, source, quantization)


def stage_profiles(
    inputs: Sequence[OnnxTensorSpec], model_inputs: Sequence[OnnxTensorSpec], profiles: Sequence[ResolvedProfile]
) -> list[ResolvedProfile]:
    """Return the shapes of a stage's dynamic inputs in every profile of the model."""
    resolved = []
    for profile in profiles:
        kinds = {kind: _sizes(model_inputs, profile, kind) for kind in ("min", "opt", "max")}
        resolved.append(
            {
                spec.name: ProfileShapes(**{kind: _filled(spec.shape, sizes) for kind, sizes in kinds.items()})
                for spec in inputs
                if spec.is_dynamic
            }
        )
    return [profile for profile in resolved if profile]


def opt_sizes(model_inputs: Sequence[OnnxTensorSpec], profiles: Sequence[ResolvedProfile]) -> dict[str, int]:
    """Return the `opt` size of every symbol in the first profile."""
    return _sizes(model_inputs, profiles[0], "opt") if profiles else {}


def _sizes(inputs: Sequence[OnnxTensorSpec], profile: ResolvedProfile, kind: str) -> dict[str, int]:
    """Return the size of every symbol of the model's inputs."""
    return {
        dim: int(getattr(profile[spec.name], kind)[axis])
        for spec in inputs
        for axis, dim in enumerate(spec.shape)
        if isinstance(dim, str)
    }


def _filled(shape: tuple[int | str, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape with its symbols replaced by sizes; `6*batch` is six times the batch."""
    return tuple(dim if isinstance(dim, int) else _evaluated(dim, sizes) for dim in shape)


def _evaluated(dim: str, sizes: Mapping[str, int]) -> int:
    factor, _, symbol = dim.rpartition("*")
    return int(factor or 1) * sizes[symbol]


def _stage_inputs(spec: HybridSpec, stage: Stage, precision: str) -> Iterator[OnnxTensorSpec]:
    """Yield a stage's external inputs, each once."""
    ports, seen = spec.output_ports(), set()
    for part in (spec.part(name) for name in stage.part_names):
        for port in part.inputs:
            name = input_name(spec, part.name, port.name)
            giver = name.partition(".")[0]
            if name in seen or ("." in name and giver in stage.part_names):
                continue
            seen.add(name)
            source, owner = (ports[name], spec.part(giver)) if "." in name else (port, part)
            yield OnnxTensorSpec(name, port_dtype(source, owner, dtype_of(precision)).name, source.shape)
