"""The result of a config: stages of parts, with a common interface."""

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
# The stages before a language model that takes images or reads an encoder, and its own; alone it has the model's name.
VISION, ENCODER, LLM = "vision", "encoder", "llm"
SPECULATOR = "speculator"
"""The stage of the draft head, which precedes the language model's."""


@dataclass(frozen=True)
class Part:
    """A piece of a model. kind: `onnx` is parsed from an ONNX file, `network` is written with the network API."""

    name: str
    kind: PartKind


@dataclass(frozen=True)
class Stage:
    """Some parts, in order, that become one network and one engine.

    writer: who makes the network: TensorRT's parser of one ONNX file; a family's parts, parsed ones first; or the
        decoder of language models; that of their draft heads.
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

    interface: `arrays` takes and returns tensors, `tokens` is a decoder with caches. spec: the ports and seams of the
    parts; None for a model of one part, whose ports are known after reading it, and for language models. images:
    requirements of the vision tower's images on the language model; None without a tower.
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
