"""The jobs of verification, one for each kind of model, with what they take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtkit.bundle.manifest import VisionRecord
from trtkit.config.schema import ModelConfig, ShapeRange
from trtkit.jobs.job import Job

Profiles = tuple[dict[str, ShapeRange], ...]


@dataclass(frozen=True)
class Request:
    """What to verify on.

    inputs: files or folders, the config's own when empty; for an LLM, text files with a prompt a line; for one that
        takes images, image files.
    against: "onnxruntime" or "torch". text: a file for an LLM's perplexity.
    trust_source: whether to run the factory that a bundle names; a config's always runs, since a config is code.
    """

    inputs: tuple[str, ...] = ()
    against: str | None = None
    layers: bool | None = None
    corners: bool = True
    text: str | None = None
    trust_source: bool = False

    def resolved(self) -> Request:
        """Return the request with absolute paths."""
        inputs = tuple(path if "://" in path else str(Path(path).resolve()) for path in self.inputs)
        return replace(self, inputs=inputs, text=self.text and str(Path(self.text).resolve()))

    def wants_layers(self, *, passed: bool) -> bool:
        """Whether layers are compared: asked for, or not asked about and something is wrong."""
        return not passed if self.layers is None else self.layers


@dataclass(frozen=True)
class NetworkToVerify:
    """A network that comes through ONNX. plan: of its engine. sources: SHA-256 of the files it was built from."""

    config: ModelConfig
    backend: str
    request: Request
    onnx: Path
    profiles: Profiles
    plan: Path | None = None
    sources: tuple[str, ...] | None = None


@dataclass(frozen=True)
class HybridToVerify:
    """A hybrid. stages: as `prepare_hybrid` or `stages_of_bundle` returns them."""

    config: ModelConfig
    backend: str
    request: Request
    stages: tuple[dict[str, Any], ...]
    profiles: Profiles


@dataclass(frozen=True)
class DecoderToVerify:
    """A language model. quantized: the checkpoint that was made of the config's source, if any."""

    config: ModelConfig
    backend: str
    request: Request
    quantized: Path | None = None


@dataclass(frozen=True)
class VisionLanguageToVerify:
    """A language model that takes images. onnx: the network of its vision tower."""

    config: ModelConfig
    backend: str
    request: Request
    onnx: Path
    vision: VisionRecord
    quantized: Path | None = None


VERIFY = Job("trtkit.verification.job:verify", NetworkToVerify, dict[str, Any])
VERIFY_HYBRID = Job("trtkit.verification.hybrid_job:verify", HybridToVerify, dict[str, Any])
VERIFY_DECODER = Job("trtkit.verification.decoder_job:verify", DecoderToVerify, dict[str, Any])
VERIFY_VISION_LANGUAGE = Job("trtkit.verification.vision_language_job:verify", VisionLanguageToVerify, dict[str, Any])
