"""What passes between the steps of a build: a prepared stage, and a stage whose network is written.

It does not import pydantic, which would cost the build process 12 MiB and 0.1 s.
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
    """The ONNX parts of a stage as one file.

    path: the file with custom ops as functions.
    parsed: the file for TensorRT's parser: the same, or with custom ops as plugins.
    plugins: ops to register before parsing.
    grid_samples: node and mode of each GridSample, for checking the parser's result.
    """

    path: Path
    parsed: Path
    plugins: tuple[str, ...] = ()
    grid_samples: tuple[tuple[str, str], ...] = ()

    @property
    def files(self) -> list[Path]:
        """All its files, including external data."""
        paths = dict.fromkeys((self.path, self.parsed))
        return [file for path in paths for file in (path, Path(f"{path}.data")) if file.exists()]


@dataclass(frozen=True)
class PreparedStage:
    """A stage before its network is written.

    onnx: None if the network API writes all of it.
    profiles: of its own inputs; a decoder's are derived from its network.
    opt_shapes: the shapes at which the network is described.
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
    """Return the engines of a bundle's stages in order."""
    digests = {record.path: record.sha256 for record in bundle.manifest.engines}
    return tuple(PlanFile(bundle.path / stage.engine, digests[stage.engine]) for stage in bundle.manifest.stages)


@dataclass(frozen=True)
class PlanOptions:
    """TensorRT build options: the config's `build` section and the target's GPUs, empty for any."""

    compute_capabilities: tuple[int, ...]
    optimization_level: int
    max_threads: int
    workspace_gib: float | None
    weight_streaming: bool = False
    sparse_weights: bool = False


@dataclass(frozen=True, kw_only=True)
class StageRequest:
    """A stage to write, and to build if `plan` is set.

    config: the ModelConfig as JSON, for writers that read the source.
    folder: the bundle being built.
    quantized: the checkpoint made from the config's source; None to read the source itself.
    rank: of the config's grid, for the decoder.
    sources: the model's files as listed in the manifest.
    images: what a vision-language model's images require of the decoder.
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
    """A language model's size in the engine's precision; KV bytes per slot are for the engine's full length.

    parameters: of the whole model; all other fields are per rank.
    state_bytes_per_slot: recurrent states.
    most_tokens: that a draft head can guess per step; None for no limit, and for other networks.
    vocab_size: V.
    has_read_only_caches: whether the network returns new keys and values, which its runtime writes to the caches.
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
    """A written plan. peak_memory_mib: of the build process."""

    size_bytes: int
    sha256: str
    warnings: tuple[str, ...]
    build_s: float
    peak_memory_mib: float


@dataclass(frozen=True)
class StageResult:
    """A stage's described network, and its plan if it was built.

    part_layers: number of layers of each part.
    inputs: facts about a decoder's inputs; empty for other stages.
    layer_sources: indices of the sources that hold weights of the layer file; None if no layer file was written.
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
    """The networks and kernels of a built stage.

    records: described at each profile's `opt` shapes. kernels: of all profiles.
    """

    records: tuple[NetworkRecord, ...]
    kernels: tuple[EngineKernel, ...]


@dataclass(frozen=True, eq=False)
class WrittenNetwork:
    """A network ready to be described and built.

    weight_bytes: approximate plan size; None to use the description's count. size: computes a language model's size
    from the description's weight bytes. quantized, kv_cache: quantization of layers and caches. inputs: facts recorded
    by the writer. constants: by layer, weights that TensorRT does not return.
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
        """Return the network of a decoder or its draft head, written into `graph`."""
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
    """Return the path of a plan's layer file, which holds the network as data."""
    return plan.with_suffix(".layers.json")


def quantized_files(bundle: Path) -> list[Path]:
    """Return the quantized checkpoint's weights and config in order; empty if the build quantized none."""
    return sorted(path for path in (bundle / QUANTIZED).glob("*") if path.suffix in (".safetensors", ".json"))


def bundle_stages(bundle: Bundle) -> tuple[PreparedStage, ...]:
    """Return a bundle's stages as they were prepared, with paths in the bundle.

    Custom ops are functions: the variant with plugins was needed for the build only.
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
