"""A hybrid's source, spec, stages and profiles, as its config asks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.config.schema import ShapeRange
from trtkit.dtypes import dtype_of
from trtkit.errors import ConfigError, Problem
from trtkit.models.hybrids.registry import HYBRIDS, HybridOptions, hybrid_spec
from trtkit.network.hybrid import input_name, port_dtype
from trtkit.network.onnx.io import TensorSpec
from trtkit.quantization.by_part.choice import hybrid_quantization
from trtkit.sources.hybrid_source import HybridSource, open_hybrid_folder
from trtkit.sources.safetensors_folder import json_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trtkit.bundle.bundle import Bundle
    from trtkit.config.schema import ModelConfig
    from trtkit.engine.profiles import ResolvedProfile
    from trtkit.models.hybrids.spec import HybridSpec
    from trtkit.quantization.by_part.choice import HybridQuantization

Json = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """What becomes one engine: some parts of a hybrid, in order."""

    name: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class OpenedHybrid:
    """A hybrid with its source and the stages that it runs in.

    form: of written ops that sample. quantization: None where no part is quantized.
    """

    spec: HybridSpec
    source: HybridSource
    stages: tuple[Stage, ...]
    precision: str
    form: str
    quantization: HybridQuantization | None = None

    def stage(self, name: str) -> Stage:
        """Return the stage of a name."""
        return next(stage for stage in self.stages if stage.name == name)

    def stage_inputs(self, stage: Stage) -> list[TensorSpec]:
        """Return what a stage takes: the model's inputs, and tensors of other stages by `part.output`."""
        return list(_stage_inputs(self.spec, stage, self.precision))

    @property
    def inputs(self) -> list[TensorSpec]:
        """The model's own inputs."""
        taken = {spec.name: spec for stage in self.stages for spec in self.stage_inputs(stage)}
        return [taken[port.name] for port in self.spec.inputs]

    @property
    def output_names(self) -> list[str]:
        """The model's own outputs."""
        return [name.partition(".")[2] for name in self.spec.outputs]


def hybrid_family(folder: Path) -> str:
    """Return the hybrid `model_type` of a folder's config.json, empty where it has none."""
    model_type = str(json_object(folder / "config.json").get("model_type", ""))
    return model_type if model_type in HYBRIDS else ""


def is_hybrid(config: ModelConfig) -> bool:
    """Whether a config's source is made of parts: a Hugging Face folder of a known family, or one that is asked to."""
    folder = config.source.hf
    if folder is None or config.route == "onnx" or config.llm is not None:
        return False
    return config.route == "hybrid" or bool(hybrid_family(Path(folder)))


def open_hybrid(config: ModelConfig) -> OpenedHybrid:
    """Open the source and read its spec. Raises ConfigError for options that a hybrid does not have."""
    assert config.source.hf is not None
    source = open_hybrid_folder(Path(config.source.hf))
    spec = hybrid_spec(source.config, source.where, HybridOptions(config.image_size))
    if config.io_types != "model":
        fix = "remove it: the parts' ports have types of their own"
        raise ConfigError("the config does not fit a hybrid", [Problem("has no meaning here", "io_types", fix)])
    asked = None if config.quantize is None else hybrid_quantization(spec, config.quantize)
    return OpenedHybrid(spec, source, stages_of(spec, config), config.precision, config.custom_ops.form, asked)


def stages_of(spec: HybridSpec, config: ModelConfig) -> tuple[Stage, ...]:
    """Return one stage of all parts where they are fused, one of each where they are chained."""
    if config.compose == "fused":
        return (Stage(config.name, tuple(part.name for part in spec.parts)),)
    return tuple(Stage(part.name, (part.name,)) for part in spec.parts)


def stages_of_bundle(bundle: Bundle) -> list[Json]:
    """Return a hybrid bundle's stages as the job that prepared them did, files by their place in the bundle."""
    assert bundle.manifest.hybrid is not None
    return [
        {
            "name": stage.name,
            "parts": list(stage.parts),
            "onnx": str(bundle.path / stage.files[0].path) if stage.files else "",
            "grid_samples": [list(pair) for pair in stage.grid_samples],
            "engine": str(bundle.path / stage.engine) if stage.engine else "",
        }
        for stage in bundle.manifest.hybrid.stages
    ]


def stage_profiles(
    inputs: Sequence[TensorSpec], model_inputs: Sequence[TensorSpec], profiles: Sequence[ResolvedProfile]
) -> list[ResolvedProfile]:
    """Return the shapes of a stage's dynamic inputs in every profile of the model."""
    found = []
    for profile in profiles:
        kinds = {kind: _sizes(model_inputs, profile, kind) for kind in ("min", "opt", "max")}
        found.append(
            {
                spec.name: ShapeRange(**{kind: _filled(spec.shape, sizes) for kind, sizes in kinds.items()})
                for spec in inputs
                if spec.is_dynamic
            }
        )
    return [profile for profile in found if profile]


def opt_sizes(model_inputs: Sequence[TensorSpec], profiles: Sequence[ResolvedProfile]) -> dict[str, int]:
    """Return the `opt` size of every symbol in the first profile."""
    return _sizes(model_inputs, profiles[0], "opt") if profiles else {}


def _sizes(inputs: Sequence[TensorSpec], profile: ResolvedProfile, kind: str) -> dict[str, int]:
    """Return the size of every symbol of the model's inputs."""
    return {
        dim: int(getattr(profile[spec.name], kind)[axis])
        for spec in inputs
        for axis, dim in enumerate(spec.shape)
        if isinstance(dim, str)
    }


def _filled(shape: tuple[int | str, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape with its symbols' sizes; `6*batch` is six times the batch."""
    return tuple(dim if isinstance(dim, int) else _evaluated(dim, sizes) for dim in shape)


def _evaluated(dim: str, sizes: Mapping[str, int]) -> int:
    factor, _, symbol = dim.rpartition("*")
    return int(factor or 1) * sizes[symbol]


def _stage_inputs(spec: HybridSpec, stage: Stage, precision: str) -> Iterator[TensorSpec]:
    """Yield what a stage takes from outside, each once."""
    ports, seen = spec.output_ports(), set()
    for part in (spec.part(name) for name in stage.parts):
        for port in part.inputs:
            name = input_name(spec, part.name, port.name)
            giver = name.partition(".")[0]
            if name in seen or ("." in name and giver in stage.parts):
                continue
            seen.add(name)
            source, owner = (ports[name], spec.part(giver)) if "." in name else (port, part)
            yield TensorSpec(name, port_dtype(source, owner, dtype_of(precision)).name, source.shape)
