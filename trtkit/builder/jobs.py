"""The jobs of a build with their requests and results. What passes between stages is in `stages`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trtkit.builder.stages import Prepared, StageKernels, StageRequest, StageResult
from trtkit.config.quantize import PartOptions
from trtkit.config.schema import CustomOpOptions, DimRange, ModelConfig, Profile, TorchSource
from trtkit.inputs.vision_language import ImageForm
from trtkit.jobs.events import Step
from trtkit.jobs.job import Job
from trtkit.quantization.jobs import QuantizeRequest
from trtkit.sources.digest import SourceFile


@dataclass(frozen=True)
class Digests:
    """The files of a config's source, and those of its calibration data."""

    files: tuple[SourceFile, ...]
    data: tuple[SourceFile, ...]


@dataclass(frozen=True)
class PrepareRequest:
    """A model of arrays to prepare in the empty `folder`. has_plugins: whether custom ops may become plugins."""

    config: ModelConfig
    folder: Path
    has_plugins: bool = False


@dataclass(frozen=True, eq=False)
class TowerStage:
    """The stage before a language model: a torch module that is exported, with its own settings.

    sizes: of the symbols in its inputs' shapes.
    quantize: None if it is not quantized; `key` in the config.
    images: how the processor in `folder` prepares images for it; None if it takes none.
    """

    name: str
    part_names: tuple[str, ...]
    folder: Path
    source: TorchSource
    sizes: dict[str, DimRange]
    precision: str
    keep_fp32: tuple[str, ...] = ()
    fold_constants: bool = True
    custom_ops: CustomOpOptions = field(default_factory=CustomOpOptions)
    quantize: PartOptions | None = None
    images: ImageForm | None = None

    @property
    def key(self) -> str:
        """The key of its quantization in the config."""
        return f"quantize.parts.{self.name}"

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The shapes to build it for."""
        return (dict(self.sizes),)

    @property
    def io_types(self) -> Literal["model"]:
        return "model"

    @property
    def fixed_inputs(self) -> dict[str, float]:
        return {}

    @property
    def engine_nms(self) -> None:
        return None


@dataclass(frozen=True)
class PrepareTowerRequest:
    """A tower to prepare in `folder`. has_plugins: whether custom ops may become plugins."""

    stage: TowerStage
    folder: Path
    has_plugins: bool = False


@dataclass(frozen=True)
class DiagnoseRequest:
    """A model whose unsupported operators are to be listed."""

    backend: str
    onnx: Path


@dataclass(frozen=True)
class QuantizedVision:
    """A quantized ONNX file: its nodes, and how many activations and weights are quantized.

    loss: relative RMS error of its outputs on the worst calibration sample; None without calibration data.
    """

    steps: tuple[Step, ...]
    nodes: int
    activations: int
    weights: int
    loss: float | None = None

    @property
    def loss_text(self) -> str:
        """A description of the finished model's loss; empty if it was not measured."""
        return next((step.detail for step in self.steps if step.name == "loss"), "")


@dataclass(frozen=True)
class FloatModel:
    """The model that a quantized ONNX file was made from.

    config: its config, with absolute paths. digests: SHA-256 of its source's files.
    """

    config: ModelConfig
    digests: tuple[str, ...]


@dataclass(frozen=True)
class ExportRequest:
    """A language model to export as a TensorRT-LLM checkpoint into the empty `folder`.

    requantize: whether fp8 layers that the format joins may be rounded again to a common scale.
    """

    config: ModelConfig
    folder: Path
    requantize: bool = False


@dataclass(frozen=True)
class Exported:
    """A written checkpoint. kind: its `quant_algo`, or the type of all weights if it is not quantized."""

    steps: tuple[Step, ...]
    architecture: str
    kind: str
    ranks: int


DIGEST = Job("trtkit.builder.digest:digest", ModelConfig, Digests, activity="reading the model")
PREPARE = Job("trtkit.builder.prepare:prepare", PrepareRequest, Prepared, activity="reading the model")
PREPARE_TOWER = Job("trtkit.builder.prepare:prepare_tower", PrepareTowerRequest, Prepared, activity="reading the model")
BUILD_STAGE = Job("trtkit.builder.stage_job:build_stage", StageRequest, StageResult, uses_tensorrt=True)
LIST_KERNELS = Job("trtkit.builder.stage_job:list_kernels", StageRequest, StageKernels, uses_tensorrt=True)
# It parses too, but only to explain another job's failure; its own crash is not explained.
DIAGNOSE = Job("trtkit.builder.diagnose:diagnose", DiagnoseRequest, type(None))
EXPORT = Job("trtkit.builder.export_job:export", ExportRequest, Exported, activity="writing the checkpoint")
QUANTIZE_VISION = Job("trtkit.builder.prepare:quantize_vision", QuantizeRequest, QuantizedVision)
