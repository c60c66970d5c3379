"""The job that verifies a vision-language model: soft tokens, logits and greedy tokens against transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from trtkit import quantization_methods
from trtkit.backends import load_backend
from trtkit.engine.decoders import llm_options, open_decoder
from trtkit.errors import SourceError
from trtkit.inputs.images import read_image
from trtkit.jobs.events import Phase
from trtkit.models.model import VISION
from trtkit.resolve import resolve
from trtkit.runtime.decoder import decoder_network
from trtkit.runtime.text import open_tokenizer
from trtkit.runtime.vision_language import ImagePrompts, reference_tower
from trtkit.verification.decoder_job import ROUNDED_ACTIVATIONS, rounds_activations
from trtkit.verification.dequantized import wrapped_folder
from trtkit.verification.engine_logits import compare_engine
from trtkit.verification.job import corner
from trtkit.verification.logits import LogitsCompared, compare_rows
from trtkit.verification.ranks import reference_decoder
from trtkit.verification.report import Agreement, Check, Corner, Output, Report
from trtkit.verification.signal import hollow_outputs
from trtkit.verification.slices import limits_of
from trtkit.verification.stepper import Stepper
from trtkit.verification.subject import tolerance_of
from trtkit.verification.vision_language_reference import VisionLanguageReference

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import Context
    from trtkit.runtime.decoder import DecoderNetwork
    from trtkit.runtime.soft_tokens import SoftTokens
    from trtkit.runtime.vision_language import VisionTower
    from trtkit.sources.decoder_source import DecoderSource
    from trtkit.verification.jobs import VerifyRequest

_NEW_TOKENS, _CHUNK = 12, 7
_TEXT = "Describe the picture in one sentence."
# Width and height of the images that are made up where none are given: square, wide, high.
_SIZES = ((64, 64), (150, 70), (48, 112))
_MIN_AGREEMENT = 0.99


@dataclass(frozen=True, eq=False)
class PromptSample:
    """A prompt with its images. ids: with all placeholders."""

    name: str
    ids: list[int]
    images: tuple[Image.Image, ...]
    soft: SoftTokens | None


class VisionLanguageVerifier:
    """Both networks as the bundle's engines were built from, and transformers' model."""

    def __init__(self, request: VerifyRequest, report: Listener) -> None:
        assert request.images is not None
        self.config, self._record = request.config, request.images
        assert self.config.source.hf is not None
        folder = Path(self.config.source.hf)
        report(Phase("write network"))
        self._decoder = model = open_decoder(resolve(self.config), request.quantized)
        self.backend = load_backend(request.backend)
        self.stepper = Stepper(reference_decoder(self.backend, model, 1, "all"))
        onnx = request.stages[0].onnx
        assert onnx is not None
        self._tower: VisionTower = reference_tower(self._record, self.backend, onnx.path)
        self.tokenizer = open_tokenizer(folder)
        self._prompts = ImagePrompts(self._record, folder, self.tokenizer)
        self.vocab_size = model.spec.vocab_size
        report(Phase("load reference"))
        with wrapped_folder(folder, model.source) as reference:
            self.reference = VisionLanguageReference(reference)
        if reference != folder:
            self.reference.description += ", its language model with the weights that trtkit read"
        self.rounding = _rounding(self.config, model.source)
        tolerance = max(tolerance_of(self.config), self.rounding)
        self.limits = limits_of(tolerance, self.config.verify.max_slice_error)

    def engine_network(self) -> DecoderNetwork:
        """Return the decoder's network exactly as the engine has it: its own kind of logits."""
        return decoder_network(self.backend, self._decoder)

    def samples(self, paths: Sequence[str]) -> list[PromptSample]:
        """Return prompts of one image each, of two, and of none. Raises SourceError for those that do not fit."""
        images = [(Path(path).name, read_image(Path(path))) for path in paths] or _random_images()
        prompts = [(name, [image]) for name, image in images]
        prompts += [("two images", [image for _, image in images[:2]])] if len(images) > 1 else []
        return [self._sample(name, shown) for name, shown in [*prompts, ("text alone", [])]]

    def logits(self, sample: PromptSample, chunk: int | None = None) -> torch.Tensor:
        """Return logits [S, V] of a prompt, prefilled at once or in chunks."""
        import torch

        size = chunk or len(sample.ids)
        self.stepper.reset(1, sample.soft)
        parts = (sample.ids[start : start + size] for start in range(0, len(sample.ids), size))
        return torch.cat([self.stepper.step([part])[0] for part in parts])

    def _sample(self, name: str, images: list[Image.Image]) -> PromptSample:
        merged = self._prompts.merge(self._ids(len(images)), images)
        room = llm_options(self.config).max_sequence_length - _NEW_TOKENS
        if len(merged.ids) > room:
            what = f"the prompt has {len(merged.ids)} tokens including its images; {room} fit"
            raise SourceError(what, name, "raise `llm.max_sequence_length`, or give smaller images")
        return PromptSample(name, merged.ids, tuple(images), self._prompts.soft_tokens(merged, self._tower))

    def _ids(self, count: int) -> list[int]:
        """Return a prompt with a placeholder for each of `count` images; random tokens without a tokenizer."""
        if self.tokenizer is not None:
            first, last = self.tokenizer.encode("Look:"), self.tokenizer.encode(_TEXT, add_special_tokens=False)
        else:
            drawn = np.random.default_rng(0).integers(0, self.vocab_size, 24)
            words = [int(token) for token in drawn if token != self._record.image_token_id]
            first, last = words[:4], words[4:]
        # A word between images: transformers takes placeholders side by side for one image.
        images = [token for _ in range(count) for token in (self._record.image_token_id, last[0])]
        return [*first, *images, *last]


def _rounding(config: ModelConfig, language: DecoderSource) -> float:
    """Return the error that comes of what the reference does not round: activations, caches, the tower."""
    if config.verify.max_relative_rms_error is not None:
        return 0.0
    tower = None if config.quantize is None else config.quantize.parts.get(VISION)
    return max(
        ROUNDED_ACTIVATIONS if rounds_activations(language) else 0.0,
        0.0 if tower is None else quantization_methods.tolerance_of(tower.method),
    )


def verify(request: VerifyRequest, context: Context) -> Report:
    """Compare soft tokens, logits, greedy tokens and, where asked, chunks."""
    verifier = VisionLanguageVerifier(request, context.report)
    limits, samples = verifier.limits, verifier.samples(request.request.inputs)
    context.report(Phase("compare soft tokens and logits"))
    outputs = {"soft_tokens": _soft_tokens(verifier, samples)}
    outputs["logits"], agreement = _logits(verifier, samples)
    context.report(Phase("compare greedy tokens"))
    answers = [_greedy(verifier, sample) for sample in samples]
    corners = [_chunked(verifier, sample) for sample in samples] if request.request.corners else []
    same = sum(ours == theirs for ours, theirs in answers) / len(answers)
    required = 1.0 if verifier.config.precision == "fp32" and not verifier.rounding else 0.0
    least = 0.0 if verifier.rounding else _MIN_AGREEMENT
    task = Agreement("greedy text", same, required, None, tuple(answers))
    prompts = [(sample.ids, sample.soft) for sample in samples]
    engine = compare_engine(request, verifier.engine_network, prompts, limits, context.report)
    checks: list[Check] = [*outputs.values(), *corners, task, *([] if engine is None else [engine])]
    return Report(
        name=verifier.config.name,
        passed=all(check.passed for check in checks) and agreement >= least,
        precision=verifier.config.precision,
        reference=verifier.reference.description,
        executor=f"trtkit reference executor on both {verifier.backend.name} {verifier.backend.version} networks",
        tolerance=limits.tolerance,
        slice_tolerance=limits.slices,
        slice_floor=limits.floor,
        samples=tuple(sample.name for sample in samples),
        outputs=outputs,
        hollow=hollow_outputs(outputs, limits),
        task=task,
        corners=tuple(corners),
        top_1_agreement=agreement,
        engine=engine,
    )


def _soft_tokens(verifier: VisionLanguageVerifier, samples: Sequence[PromptSample]) -> Output:
    compared = LogitsCompared(verifier.limits)
    for sample in (sample for sample in samples if sample.soft is not None):
        assert sample.soft is not None
        compared.add(sample.soft.vectors, verifier.reference.soft_tokens(sample.images))
    return compared.output()


def _logits(verifier: VisionLanguageVerifier, samples: Sequence[PromptSample]) -> tuple[Output, float]:
    """Return the worst comparison, and the share of equal top-1 tokens where the best two are clearly apart."""
    compared, hits, clear = LogitsCompared(verifier.limits), 0, 0
    for sample in samples:
        ours, theirs = verifier.logits(sample), verifier.reference.logits(sample.ids, sample.images)
        compared.add(ours, theirs)
        best = theirs.topk(2).values
        is_clear = best[:, 0] - best[:, 1] > verifier.limits.tolerance * theirs.square().mean().sqrt()
        hits += int((ours.argmax(-1) == theirs.argmax(-1))[is_clear].sum())
        clear += int(is_clear.sum())
    return compared.output(), hits / clear if clear else 1.0


def _greedy(verifier: VisionLanguageVerifier, sample: PromptSample) -> tuple[str, str]:
    """Return our answer and transformers', as text where there is a tokenizer."""
    ours = verifier.stepper.greedy(sample.ids, _NEW_TOKENS, soft=sample.soft)
    theirs = verifier.reference.greedy(sample.ids, sample.images, _NEW_TOKENS)
    if verifier.tokenizer is None:
        return " ".join(map(str, ours)), " ".join(map(str, theirs))
    return verifier.tokenizer.decode(ours), verifier.tokenizer.decode(theirs)


def _chunked(verifier: VisionLanguageVerifier, sample: PromptSample) -> Corner:
    """Check what serving relies on: a prompt cut anywhere, in an image too, gives what one prefill gives."""
    compared = compare_rows(verifier.logits(sample, _CHUNK), verifier.logits(sample), verifier.limits)
    return corner(f"chunks of {_CHUNK}: {sample.name}", {"inputs_embeds": (1, _CHUNK)}, compared, verifier.limits)


def _random_images() -> list[tuple[str, Image.Image]]:
    """Return images of random blocks, so that every patch differs and none is flat."""
    generator, images = np.random.default_rng(0), []
    for width, height in _SIZES:
        blocks = generator.integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), dtype=np.uint8)
        image = Image.fromarray(blocks).resize((width, height), Image.Resampling.BICUBIC)
        images.append((f"{width} x {height}", image))
    return images
