"""The jobs of a build, with what they take and give."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.bundle.manifest import DecoderRecord
from trtkit.config.schema import ModelConfig
from trtkit.config.targets import Target
from trtkit.engine.compile import CompileRequest
from trtkit.engine.plan_file import CompiledNetwork, PlanRequest, Profiles
from trtkit.jobs.events import Step
from trtkit.jobs.job import Job
from trtkit.sources.digest import SourceFile


@dataclass(frozen=True)
class Digests:
    """The files that a config's source reads, and those of its calibration data."""

    files: tuple[SourceFile, ...]
    data: tuple[SourceFile, ...]


@dataclass(frozen=True)
class PrepareRequest:
    """The model to write into `folder`. has_plugins: whether TensorRT gets custom ops as plugins."""

    config: ModelConfig
    folder: Path
    has_plugins: bool = False


@dataclass(frozen=True)
class PluginFile:
    """An ONNX file with plugin nodes; `ops`: the custom ops to register before it is parsed."""

    onnx: Path
    ops: tuple[str, ...]


@dataclass(frozen=True)
class PreparedModel:
    """`model.onnx` as TensorRT's parser takes it.

    plugins: the same model for TensorRT, if any of its nodes is a plugin. grid_samples: node and mode, to check the
    parser by.
    """

    steps: tuple[Step, ...]
    profiles: Profiles
    opt_shapes: dict[str, tuple[int, ...]]
    plugins: PluginFile | None
    grid_samples: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class DecoderRequest:
    """A language model to write and build.

    folder: the bundle under construction. plan: None to only describe. quantized: the checkpoint that was made of the
    config's source, if any.
    """

    backend: str
    config: ModelConfig
    folder: Path
    target: Target
    plan: PlanRequest | None = None
    quantized: Path | None = None


@dataclass(frozen=True)
class CompiledDecoder:
    """A language model's network, and how much it weighs."""

    compiled: CompiledNetwork
    steps: tuple[Step, ...]
    profiles: Profiles
    size: DecoderRecord


@dataclass(frozen=True)
class StageRequest:
    """A stage of a hybrid to write and build. stage: as `prepare_hybrid` returned it. plan: None to only describe."""

    backend: str
    config: ModelConfig
    stage: dict[str, Any]
    target: Target
    plan: PlanRequest | None = None


@dataclass(frozen=True)
class CompiledStage:
    """A stage's network. part_layers: how many layers each part has."""

    compiled: CompiledNetwork
    part_layers: dict[str, int]


@dataclass(frozen=True)
class DiagnoseRequest:
    """A model whose unsupported operators are to be found."""

    backend: str
    onnx: Path


DIGEST = Job("trtkit.engine.digest:digest", ModelConfig, Digests, activity="reading the model")
PREPARE = Job("trtkit.engine.prepare:prepare", PrepareRequest, PreparedModel, activity="reading the model")
PREPARE_HYBRID = Job("trtkit.engine.hybrid_prepare:prepare_hybrid", PrepareRequest, dict[str, Any])
COMPILE = Job("trtkit.engine.compile:compile_onnx", CompileRequest, CompiledNetwork, uses_tensorrt=True)
COMPILE_DECODER = Job(
    "trtkit.engine.decoder_compile:compile_decoder", DecoderRequest, CompiledDecoder, uses_tensorrt=True
)
COMPILE_STAGE = Job("trtkit.engine.hybrid_compile:compile_stage", StageRequest, CompiledStage, uses_tensorrt=True)
# It parses too, but only to explain what another job has refused: its own crash is not explained.
DIAGNOSE = Job("trtkit.engine.diagnose:diagnose", DiagnoseRequest, type(None))
