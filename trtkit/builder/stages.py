"""What goes between the steps of a build: a stage prepared, and a stage whose network was written.

Nothing here imports pydantic: the process that builds an engine spares its 12 MiB and 0.1 s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtkit.files import QUANTIZED
from trtkit.jobs.events import Step
from trtkit.models.model import Writer
from trtkit.models.vision_language.spec import ImageTraits
from trtkit.network.fusion import EngineKernel
from trtkit.network.input_spec import InputSpec, ResolvedProfile
from trtkit.network.record import NetworkRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trtkit.bundle.bundle import Bundle
    from trtkit.network.graph import Graph
    from trtkit.quantization_methods import CacheFormat
    from trtkit.quantized_model import LayerForm

Shape = tuple[int, ...]


@dataclass(frozen=True)
class OnnxFile:
    """The ONNX parts of a stage, as one file.

    path: with custom ops as functions. parsed: what TensorRT parses, the same or with custom ops as plugins.
    plugins: the ops to register before. grid_samples: node and mode of each GridSample, to check the parser.
    """

    path: Path
    parsed: Path
    plugins: tuple[str, ...] = ()
    grid_samples: tuple[tuple[str, str], ...] = ()

    @property
    def files(self) -> list[Path]:
        """Every file of it, external data too."""
        paths = dict.fromkeys((self.path, self.parsed))
        return [file for path in paths for file in (path, Path(f"{path}.data")) if file.exists()]


@dataclass(frozen=True)
class PreparedStage:
    """A stage before its network is written.

    onnx: None if the network API writes all of it. profiles: of its own inputs; a decoder's follow from its network.
    opt_shapes: the shapes that the network is described at.
    """

    name: str
    writer: Writer
    part_names: tuple[str, ...]
    onnx: OnnxFile | None = None
    profiles: tuple[ResolvedProfile, ...] = ()
    opt_shapes: dict[str, Shape] = field(default_factory=dict)


@dataclass(frozen=True)
class Prepared:
    """All stages before their networks are written. profiles: of the model's own inputs."""

    steps: tuple[Step, ...]
    profiles: tuple[ResolvedProfile, ...]
    stages: tuple[PreparedStage, ...]

    def stage(self, name: str) -> PreparedStage:
        """Return the stage of a name."""
        return next(stage for stage in self.stages if stage.name == name)


@dataclass(frozen=True)
class PlanFile:
    """An engine of a bundle. sha256: of its contents."""

    path: Path
    sha256: str


def plan_files(bundle: Bundle) -> tuple[PlanFile, ...]:
    """Return the engines of a bundle's stages, in order."""
    digests = {record.path: record.sha256 for record in bundle.manifest.engines}
    return tuple(PlanFile(bundle.path / stage.engine, digests[stage.engine]) for stage in bundle.manifest.stages)


@dataclass(frozen=True)
class PlanOptions:
    """How TensorRT builds: the config's `build` section and the target's GPUs, any if none is named."""

    compute_capabilities: tuple[int, ...]
    optimization_level: int
    max_threads: int
    workspace_gib: float | None
    weight_streaming: bool = False
    sparse_weights: bool = False


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """A stage to write, and to build if `plan` names a file.

    config: the ModelConfig as JSON, for writers that read the source. folder: the bundle under construction.
    quantized: the checkpoint that was made of the config's source; None if the source itself is read.
    rank: of the config's grid, for the decoder. sources: the model's files, as the manifest lists them.
    images: what the images of a vision-language model need of the decoder.
    """

    stage: PreparedStage
    backend: str
    options: PlanOptions
    config: str
    folder: Path
    plan: Path | None = None
    quantized: Path | None = None
    rank: int = 0
    sources: tuple[str, ...] = ()
    images: ImageTraits | None = None


@dataclass(frozen=True)
class DecoderSize:
    """What a language model weighs, in the engine's precision; KV of one slot is at the engine's full length.

    parameters: of the whole model; the rest is what one rank holds. state_bytes_per_slot: recurrent states.
    most_tokens: that a head can guess in a step; None for any number, and for other networks. vocab_size: V.
    has_read_only_caches: whether the network gives new keys and values, which its runtime keeps.
    """

    model_type: str
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_slot: int
    state_bytes_per_slot: int = 0
    most_tokens: int | None = None
    vocab_size: int = 0
    has_read_only_caches: bool = False


@dataclass(frozen=True)
class BuiltPlan:
    """A plan as it was written. peak_memory_mib: of the process that built it."""

    size_bytes: int
    sha256: str
    warnings: tuple[str, ...]
    build_s: float
    peak_memory_mib: float


@dataclass(frozen=True)
class StageResult:
    """A stage's network, described, and its plan if it was built.

    part_layers: how many layers each part has. inputs: what a decoder's writer knows of them; empty for other stages.
    layer_sources: numbers of the sources that hold weights of the layers' file; None if none was written.
    """

    network: NetworkRecord
    part_layers: dict[str, int]
    profiles: tuple[ResolvedProfile, ...]
    steps: tuple[Step, ...]
    backend_version: str
    write_s: float
    describe_s: float
    inputs: tuple[InputSpec, ...] = ()
    decoder: DecoderSize | None = None
    plan: BuiltPlan | None = None
    layer_sources: tuple[int, ...] | None = None


@dataclass(frozen=True)
class StageKernels:
    """What a stage's networks became. records: described at the `opt` shapes of each profile. kernels: of them all."""

    records: tuple[NetworkRecord, ...]
    kernels: tuple[EngineKernel, ...]


@dataclass(frozen=True, eq=False)
class WrittenNetwork:
    """A network ready to be described and built.

    weight_bytes: about what the plan will hold; None for what the description counts. size: a language model's, from
    the weight bytes that the description counts. quantized, kv_cache: how the writer quantized layers and caches.
    inputs: what the writer knows of them. constants: weights that TensorRT does not hand out, by layer.
    """

    definition: Any
    builder: Any
    profiles: tuple[ResolvedProfile, ...]
    opt_shapes: Mapping[str, Shape]
    part_layers: Mapping[str, int]
    steps: tuple[Step, ...] = ()
    weight_bytes: int | None = None
    size: Callable[[int], DecoderSize] | None = None
    quantized: Mapping[str, LayerForm] = field(default_factory=dict)
    kv_cache: CacheFormat | None = None
    inputs: tuple[InputSpec, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict, repr=False)
    held: tuple[Any, ...] = field(default=(), repr=False)

    @classmethod
    def of_decoder(
        cls, graph: Graph, stage: PreparedStage, profiles: tuple[ResolvedProfile, ...], size: DecoderSize
    ) -> WrittenNetwork:
        """Return a decoder's network, or that of its head, as written into `graph`."""
        return cls(
            graph.network,
            graph.builder,
            profiles,
            {name: shapes.opt for name, shapes in profiles[0].items()},
            {stage.part_names[0]: graph.network.num_layers},
            weight_bytes=size.weight_bytes,
            size=lambda _counted: size,
            inputs=tuple(graph.inputs),
            constants=graph.constants,
            held=(graph,),
        )


def layers_file(plan: Path) -> Path:
    """Return where the layers of a plan's network lie, as data."""
    return plan.with_suffix(".layers.json")


def quantized_files(bundle: Path) -> list[Path]:
    """Return the quantized checkpoint's weights and config, in order; empty if the build quantized none."""
    return sorted(path for path in (bundle / QUANTIZED).glob("*") if path.suffix in (".safetensors", ".json"))


def bundle_stages(bundle: Bundle) -> tuple[PreparedStage, ...]:
    """Return a bundle's stages as they were prepared, files at their place in the bundle.

    Custom ops are functions: what TensorRT parsed instead was needed for the build only.
    """

    def onnx(stage_onnx: Any) -> OnnxFile | None:
        if stage_onnx is None:
            return None
        path = bundle.path / stage_onnx.path
        return OnnxFile(path, path, grid_samples=stage_onnx.grid_samples)

    return tuple(
        PreparedStage(
            stage.name,
            stage.writer,
            tuple(part.name for part in stage.parts),
            onnx(stage.onnx),
            stage.profiles,
        )
        for stage in bundle.manifest.stages
    )
