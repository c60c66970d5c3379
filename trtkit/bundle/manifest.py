"""A bundle's `manifest.json`: its config, tools and sources, and the resulting model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from trtkit.bundle.records import (
    BackendRecord,
    BuildMetrics,
    DecoderRecord,
    FileRecord,
    IoRecord,
    StageRecord,
    VerificationRecord,
)
from trtkit.config.schema import ModelConfig
from trtkit.config.strict import StrictModel
from trtkit.config.targets import Target
from trtkit.jobs.events import Step
from trtkit.models.parallel import Grid, grid_of
from trtkit.network.input_spec import ResolvedProfile
from trtkit.network.record import Totals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtkit.bundle.records import EncoderRecord, ImagesRecord
    from trtkit.models.model import Interface

SCHEMA_VERSION = 4


class ModelRecord(StrictModel):
    """Record of a model whose networks are written. inputs, outputs, profiles: the model's own."""

    config: ModelConfig
    target: Target
    steps: tuple[Step, ...]
    inputs: tuple[IoRecord, ...]
    outputs: tuple[IoRecord, ...]
    profiles: tuple[ResolvedProfile, ...]
    model_type: str = Field("", description="The family of a model of several parts or of a language model.")
    stages: tuple[StageRecord, ...] = Field(min_length=1, description="Networks and their engines, in order.")
    totals: Totals = Field(description="Layers, weight bytes, FLOPs and bytes moved at the opt shapes.")
    labels: tuple[str, ...] = Field((), description="The classes' names by `task.labels` or a folder's `id2label`.")
    decoder: DecoderRecord | None = Field(None, description="What a language model weighs; None for other models.")


class Manifest(ModelRecord):
    """The contents of `manifest.json`.

    build_key: SHA-256 of everything that the plan depends on. verify: the last verification; None before the first.
    """

    schema_version: Literal[4] = 4
    name: str
    created_at: str = Field(description="UTC, ISO 8601.")
    build_key: str = Field(pattern=r"^[0-9a-f]{64}$")
    backend: BackendRecord
    tools: dict[str, str] = Field(description="Versions of Python and of the packages that took part.")
    sources: tuple[FileRecord, ...]
    quantized: tuple[FileRecord, ...] = Field((), description="The quantized checkpoint that the LLM is written from.")
    engines: tuple[FileRecord, ...] = Field(min_length=1)
    files: tuple[FileRecord, ...] = Field(description="The other files: network.json, an LLM's config and tokenizer.")
    known: FileRecord | None = Field(None, description="Requests whose answers are known; `trtkit deploy` adds them.")
    warnings: tuple[str, ...] = ()
    metrics: BuildMetrics
    verify: VerificationRecord | None = None

    @model_validator(mode="after")
    def _stages_files_have_digests(self) -> Self:
        listed = {file.path for file in (*self.engines, *self.network_files())}
        for stage in self.stages:
            onnx = () if stage.onnx is None else (stage.onnx.path, stage.onnx.parsed)
            for name in (stage.engine, *(rank.engine for rank in stage.ranks), *onnx):
                if name not in listed:
                    raise ValueError(f"file `{name}` has no digest")
        return self

    @property
    def interface(self) -> Interface:
        """Whether the model takes and returns arrays, or is a decoder of tokens."""
        return "arrays" if self.decoder is None else "tokens"

    @property
    def grid(self) -> Grid:
        """The ranks that share a language model."""
        return grid_of(self.config)

    @property
    def encoder(self) -> EncoderRecord | None:
        """The encoder of an encoder-decoder model; None for other models."""
        return None if self.decoder is None else self.decoder.encoder

    @property
    def images(self) -> ImagesRecord | None:
        """How a vision-language model represents images in prompts; None for models without images."""
        return None if self.decoder is None else self.decoder.images

    def stage(self, name: str) -> StageRecord:
        return next(stage for stage in self.stages if stage.name == name)

    def network_files(self) -> list[FileRecord]:
        """Return the records of the networks' files: ONNX files, tables, a quantized checkpoint, layers."""
        parsed = (file for stage in self.stages if stage.onnx is not None for file in stage.onnx.files)
        table = None if self.decoder is None else self.decoder.embeddings
        return [*parsed, *([] if table is None else [table]), *self.quantized, *self._layer_files()]

    @property
    def needs_source(self) -> bool:
        """Whether the reference executor needs the source, for weights or to write a network again."""
        networks = [(stage.writer, network.layers) for stage in self.stages for network in stage.networks]
        return any(
            writer != "parser" if layers is None else any(number < len(self.sources) for number in layers.sources)
            for writer, layers in networks
        )

    def layers_read(self) -> set[str]:
        """Return the paths of the bundle's files that `Bundle.layers` reads and checks, over all networks."""
        records = [network.layers for stage in self.stages for network in stage.networks if network.layers is not None]
        numbers = {number - len(self.sources) for layers in records for number in layers.sources}
        quantized = (self.quantized[number] for number in numbers if number >= 0)
        return {record.path for record in (*self._layer_files(), *quantized)}

    def _layer_files(self) -> Iterator[FileRecord]:
        for record in (network for stage in self.stages for network in stage.networks):
            if record.layers is not None:
                yield record.layers.layers
                if record.layers.weights is not None:
                    yield record.layers.weights


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of `manifest.json`, published as `docs/manifest.schema.json`."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Manifest.model_json_schema(mode="serialization"),
    }
