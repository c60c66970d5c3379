"""A model to build: an ordered list of stages, each with one network and one engine, made of parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trtkit.config.schema import ModelConfig
    from trtkit.models.hybrids.spec import HybridSpec
    from trtkit.models.vision_language.spec import ImageTraits

Interface = Literal["arrays", "tokens"]
PartKind = Literal["onnx", "network"]
Writer = Literal["parser", "parts", "decoder", "speculator"]
# Names of a language model's stages: the vision tower or encoder before it, and its own if it has one of these.
VISION, ENCODER, LLM = "vision", "encoder", "llm"
SPECULATOR = "speculator"
"""Name of a draft head's stage, which precedes the language model's."""


@dataclass(frozen=True)
class Part:
    """A piece of a model. kind: `onnx` is parsed from an ONNX file, `network` is written with the network API."""

    name: str
    kind: PartKind


@dataclass(frozen=True)
class Stage:
    """Parts, in order, that become one network and one engine.

    writer: what writes the network: TensorRT's `parser`, from one ONNX file; a hybrid family's `parts`, parsed ones
        first; the language model's `decoder`; its draft head (`speculator`).
    """

    name: str
    parts: tuple[Part, ...]
    writer: Writer

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(part.name for part in self.parts)


@dataclass(frozen=True)
class StagedModel:
    """The model that a config builds.

    interface: `arrays` takes and returns tensors; `tokens` is a decoder with caches.
    spec: the ports and seams of a hybrid's parts; None for language models and for ONNX files, whose ports are known
    once they are read.
    images: what images require of the language model; None without a vision tower.
    """

    config: ModelConfig
    interface: Interface
    stages: tuple[Stage, ...]
    spec: HybridSpec | None = None
    images: ImageTraits | None = None

    @property
    def takes_images(self) -> bool:
        """Whether a vision tower precedes the language model."""
        return self.images is not None

    @property
    def has_encoder(self) -> bool:
        """Whether the language model is a decoder that reads an encoder's output."""
        return self.interface == "tokens" and self.stages[0].name == ENCODER and len(self.stages) > 1

    @property
    def has_speculator(self) -> bool:
        """Whether a draft head proposes the language model's tokens."""
        return self.interface == "tokens" and self.stages[0].name == SPECULATOR and len(self.stages) > 1

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(name for stage in self.stages for name in stage.part_names)
