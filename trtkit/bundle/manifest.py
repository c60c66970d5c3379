"""A bundle's `manifest.json`: what was asked, what it was made with, what came out."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from trtkit.config.schema import ModelConfig, ShapeRange
from trtkit.config.strict import StrictModel
from trtkit.config.targets import Target
from trtkit.network.record import Totals

SCHEMA_VERSION = 2


class FileRecord(StrictModel):
    """A file by content. path: relative to the bundle, or absolute for a source outside it."""

    path: str
    size_bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class StepRecord(StrictModel):
    """One step of ONNX care: what was done, in words."""

    name: str
    detail: str
    seconds: float


class IoRecord(StrictModel):
    """A network input or output; -1 is a dynamic size."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class BackendRecord(StrictModel):
    """The TensorRT library that built the plan; only the same one can load it."""

    name: Literal["tensorrt", "tensorrt_rtx"]
    version: str


class BuildMetrics(StrictModel):
    """What the build took. peak_memory_mib: of the process that parsed and built."""

    prepare_s: float
    parse_s: float
    describe_s: float
    build_s: float
    peak_memory_mib: float


class DecoderRecord(StrictModel):
    """A decoder-only LLM in the engine's precision; KV of one slot is at the engine's full length."""

    model_type: str
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_slot: int


class PortRecord(StrictModel):
    """What a part of a hybrid takes or gives; a symbol is a size known at run time."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class PartRecord(StrictModel):
    """A part of a hybrid.

    feeds: by input, where it comes from: an input of the model, or `part.output`. layers: of its network.
    """

    name: str
    kind: str
    inputs: tuple[PortRecord, ...]
    outputs: tuple[PortRecord, ...]
    feeds: dict[str, str]
    layers: int


class StageRecord(StrictModel):
    """One engine of a hybrid: the parts in it, its plan, and the ONNX file of those that were exported.

    Inputs and outputs are called as the model's own, or `part.output`: whoever runs the stages in order hands on what
    has the same name.
    """

    name: str
    parts: tuple[str, ...]
    engine: str | None
    files: tuple[FileRecord, ...]
    grid_samples: tuple[tuple[str, str], ...]
    inputs: tuple[IoRecord, ...]
    outputs: tuple[IoRecord, ...]
    profiles: tuple[dict[str, ShapeRange], ...]
    layers: int


class HybridRecord(StrictModel):
    """A model of several parts, and the run plan: its stages in order. outputs: `part.output` each."""

    model_type: str
    compose: str
    parts: tuple[PartRecord, ...]
    outputs: tuple[str, ...]
    stages: tuple[StageRecord, ...]


class VisionRecord(StrictModel):
    """The vision tower beside a language model: its engine, and how its soft tokens stand in a prompt.

    layout: an image is one picture, several tiles, or as many patches as it has. image_token_id: the placeholder of
    a soft token. tokens_per_image: of a picture or a tile; 0 where the size decides, by groups of merge_size squared
    patches. window_size: tokens on the side of an attention window, 0 for none. has_grid_positions: M-RoPE.
    max_images, max_tokens: of one call.
    """

    model_type: str
    layout: Literal["image", "tiles", "patches"]
    image_token_id: int
    tokens_per_image: int
    merge_size: int
    window_size: int
    has_grid_positions: bool
    max_images: int
    max_tokens: int
    engine: str
    inputs: tuple[IoRecord, ...]
    outputs: tuple[IoRecord, ...]
    profiles: tuple[dict[str, ShapeRange], ...]
    totals: Totals


class Manifest(StrictModel):
    """The whole of `manifest.json`.

    build_key: SHA-256 over everything the plan follows from. verify: the last verification's summary, None before.
    """

    schema_version: Literal[2] = 2
    name: str
    created_at: str = Field(description="UTC, ISO 8601.")
    build_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    config: ModelConfig
    target: Target
    backend: BackendRecord
    tools: dict[str, str] = Field(description="Versions of Python and of the packages that took part.")
    sources: tuple[FileRecord, ...]
    steps: tuple[StepRecord, ...]
    inputs: tuple[IoRecord, ...]
    outputs: tuple[IoRecord, ...]
    profiles: tuple[dict[str, ShapeRange], ...]
    network: FileRecord | None = Field(
        description="The ONNX file that is verified; TensorRT parsed it or `network_plugins`; None for LLMs, hybrids."
    )
    network_plugins: FileRecord | None = Field(None, description="The same with custom ops as plugins, for TensorRT.")
    network_data: FileRecord | None = Field(None, description="Its weights, where one file cannot hold them.")
    totals: Totals = Field(description="Layers, weight bytes, FLOPs and bytes moved at the opt shapes.")
    decoder: DecoderRecord | None = Field(None, description="What a decoder-only LLM weighs.")
    hybrid: HybridRecord | None = Field(None, description="Parts and run plan of a hybrid.")
    vision: VisionRecord | None = Field(None, description="The vision tower beside an LLM; `network` is its ONNX.")
    embeddings: FileRecord | None = Field(
        None, description="The LLM's embedding table, where its engine takes vectors."
    )
    quantized: tuple[FileRecord, ...] = Field((), description="The quantized checkpoint that the LLM is written from.")
    engines: tuple[FileRecord, ...] = Field(min_length=1)
    files: tuple[FileRecord, ...] = Field(description="The other files: network.json, an LLM's config and tokenizer.")
    known: FileRecord | None = Field(None, description="Requests whose answers are known; `trtkit deploy` adds them.")
    warnings: tuple[str, ...] = ()
    metrics: BuildMetrics
    verify: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _engines_have_digests(self) -> Self:
        stages = () if self.hybrid is None else self.hybrid.stages
        named = [stage.engine for stage in stages] + ([] if self.vision is None else [self.vision.engine])
        for name in named:
            if name is not None and name not in {engine.path for engine in self.engines}:
                raise ValueError(f"engine `{name}` has no digest")
        return self

    def network_files(self) -> list[FileRecord]:
        """Return the records of what the network is made from: ONNX files, tables, a quantized checkpoint."""
        stages = () if self.hybrid is None else self.hybrid.stages
        single = (self.network, self.network_data, self.network_plugins, self.embeddings)
        of_stages = (file for stage in stages for file in stage.files)
        return [*(record for record in single if record is not None), *of_stages, *self.quantized]


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `manifest.json`, published as `docs/manifest.schema.json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(mode="serialization"),
    }
