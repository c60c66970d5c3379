"""The verification jobs, one per model interface, and their requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trtkit.builder.stages import PlanFile, PreparedStage
from trtkit.bundle.records import EncoderRecord, ImagesRecord
from trtkit.config.schema import ModelConfig
from trtkit.jobs.job import Job
from trtkit.models.vision_language.spec import ImageTraits
from trtkit.network.input_spec import ResolvedProfile
from trtkit.verification.report import BundleNetworks, Report


@dataclass(frozen=True)
class VerifySettings:
    """What to verify on.

    inputs: files or folders; if empty, the config's own. For an LLM they are text files with one prompt per line; for a
    model that takes images, image files. against: "onnxruntime" or "torch". text: a file for an LLM's perplexity.
    trust_source: whether to run the factory that a bundle names; a config's own factory always runs, since a config is
    code.
    """

    inputs: tuple[str, ...] = ()
    against: str | None = None
    layers: bool | None = None
    corners: bool = True
    text: str | None = None
    trust_source: bool = False

    def resolved(self) -> VerifySettings:
        """Return the request with absolute paths."""
        inputs = tuple(path if "://" in path else str(Path(path).resolve()) for path in self.inputs)
        return replace(self, inputs=inputs, text=self.text and str(Path(self.text).resolve()))

    def wants_layers(self, *, passed: bool) -> bool:
        """Whether to compare layers: as requested; by default only if verification failed."""
        return not passed if self.layers is None else self.layers


@dataclass(frozen=True)
class VerifyRequest:
    """A model to compare with its reference.

    stages: as prepared. profiles: of the model's own inputs. quantized: the checkpoint quantized from the config's
    source. images: of a vision-language model. encoder: of an encoder-decoder model. traits: requirements of images on
    the language model. engines: to compare on a GPU. digests: of the source files when a bundle was built; None if the
    source has just been read. labels: class names. bundle: the bundle whose own networks are also compared with the
    verified ones.
    """

    config: ModelConfig
    backend: str
    request: VerifySettings
    stages: tuple[PreparedStage, ...]
    profiles: tuple[ResolvedProfile, ...] = ()
    quantized: Path | None = None
    images: ImagesRecord | None = None
    traits: ImageTraits | None = None
    encoder: EncoderRecord | None = None
    engines: tuple[PlanFile, ...] = ()
    digests: tuple[str, ...] | None = None
    labels: tuple[str, ...] = ()
    bundle: Path | None = None

    @property
    def trusts_source(self) -> bool:
        """Whether the source's factory may run: a config's always may."""
        return self.request.trust_source or self.digests is None


@dataclass(frozen=True)
class NetworksRequest:
    """A bundle whose networks are compared with those written from its source."""

    bundle: Path


VERIFY_ARRAYS = Job("trtkit.verification.job:verify", VerifyRequest, Report)
VERIFY_TOKENS = Job("trtkit.verification.tokens_job:verify", VerifyRequest, Report)
COMPARE_NETWORKS = Job("trtkit.verification.bundle_networks:compare_networks", NetworksRequest, BundleNetworks)
