"""The job that verifies a vision-language model: soft tokens, logits and greedy tokens against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from trtkit import quantization_methods
from trtkit.backends import load_backend
from trtkit.builder.decoders import llm_options, open_decoder
from trtkit.errors import SourceError
from trtkit.inputs.images import read_image
from trtkit.jobs.events import Phase
from trtkit.llm.execution import decoder_network
from trtkit.llm.images import ImagePrompts, reference_tower
from trtkit.models.model import VISION
from trtkit.resolve import resolve
from trtkit.runtime.text import open_tokenizer
from trtkit.sources.huggingface.folder import load_folder
from trtkit.sources.package_file import hf_folder
from trtkit.verification.compare import limits_of
from trtkit.verification.decoder_job import ROUNDED_ACTIVATIONS, rounds_activations
from trtkit.verification.decoder_reference import wrapped_folder
from trtkit.verification.media import MediaSample, compare_media
from trtkit.verification.ranks import reference_decoder
from trtkit.verification.stepper import Stepper
from trtkit.verification.subject import tolerance_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.config.schema import ModelConfig
    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import JobContext
    from trtkit.llm.execution import DecoderNetwork
    from trtkit.llm.images import VisionTower
    from trtkit.sources.decoder_source import DecoderSource
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import Report

_NEW_TOKENS = 12
_TEXT = "Describe the picture in one sentence."
# Width and height of the images that are made up where none are given: square, wide, high.
_SIZES = ((64, 64), (150, 70), (48, 112))


class VisionLanguageVerifier:
    """Both networks as the bundle's engines were built from, and transformers' model."""

    encoded = "soft_tokens"

    def __init__(self, request: VerifyRequest, report: Listener) -> None:
        assert request.images is not None
        self.config, self._record = request.config, request.images
        assert self.config.source.hf is not None
        folder = hf_folder(self.config.source)
        report(Phase("write network"))
        self._decoder = model = open_decoder(resolve(self.config), request.quantized)
        self.backend = load_backend(request.backend)
        self.stepper = Stepper(reference_decoder(self.backend, model, 1, "all"), model.spec.most_new_tokens)
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

    def samples(self, paths: Sequence[str]) -> list[MediaSample]:
        """Return prompts of one image each, of two, and of none. Raises SourceError for those that do not fit."""
        images = [(Path(path).name, read_image(Path(path))) for path in paths] or _random_images()
        prompts = [(name, [image]) for name, image in images]
        prompts += [("two images", [image for _, image in images[:2]])] if len(images) > 1 else []
        return [self._sample(name, shown) for name, shown in [*prompts, ("text alone", [])]]

    def encode(self, sample: MediaSample) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the soft tokens of a sample's images, and transformers'."""
        assert sample.soft is not None
        return sample.soft.vectors, self.reference.soft_tokens(sample.media)

    def _sample(self, name: str, images: list[Image.Image]) -> MediaSample:
        merged = self._prompts.merge(self._ids(len(images)), images)
        room = llm_options(self.config).max_sequence_length - _NEW_TOKENS
        if len(merged.ids) > room:
            what = f"the prompt has {len(merged.ids)} tokens including its images; {room} fit"
            raise SourceError(what, name, "raise `llm.max_sequence_length`, or give smaller images")
        return MediaSample(name, merged.ids, tuple(images), self._prompts.soft_tokens(merged, self._tower))

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


def verify(request: VerifyRequest, context: JobContext) -> Report:
    """Compare soft tokens, logits, greedy tokens and, where asked, chunks."""
    return compare_media(VisionLanguageVerifier(request, context.report), request, context)


def _random_images() -> list[tuple[str, Image.Image]]:
    """Return images of random blocks, so that every patch differs and none is flat."""
    generator, images = np.random.default_rng(0), []
    for width, height in _SIZES:
        blocks = generator.integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), dtype=np.uint8)
        image = Image.fromarray(blocks).resize((width, height), Image.Resampling.BICUBIC)
        images.append((f"{width} x {height}", image))
    return images


class VisionLanguageReference:
    """A vision-language model of transformers in fp32 on the CPU, with its own image processor.

    Prompts are token ids with a placeholder for each soft token. Raises SourceError where transformers cannot load it.
    """

    def __init__(self, folder: Path) -> None:
        import transformers

        self.model = load_folder(transformers.AutoModelForImageTextToText, folder, attn_implementation="eager")
        try:
            self._processor = transformers.AutoImageProcessor.from_pretrained(
                folder, local_files_only=True, backend="pil"
            )
        except (OSError, ValueError) as error:
            raise SourceError(f"transformers cannot read the image processor: {error}", str(folder)) from None
        self.description = f"transformers {transformers.__version__}, {type(self.model).__name__} in fp32"

    def soft_tokens(self, images: Sequence[Image.Image]) -> torch.Tensor:
        """Return the vectors [P, D] that the model puts into a prompt, and those of inner layers after them."""
        import torch

        with torch.inference_mode():
            features = self.model.get_image_features(**self._images(images))
        deep = [torch.cat(list(layer)) for layer in getattr(features, "deepstack_features", None) or ()]
        tokens = torch.cat([item.reshape(-1, item.shape[-1]) for item in features.pooler_output])
        return torch.cat([tokens, *deep], -1)

    def logits(self, ids: Sequence[int], images: Sequence[Image.Image]) -> torch.Tensor:
        """Return logits [S, V] of a prompt."""
        import torch

        with torch.inference_mode():
            logits: torch.Tensor = self.model(**self._inputs(ids, images)).logits[0]
        return logits

    def greedy(self, ids: Sequence[int], images: Sequence[Image.Image], count: int) -> list[int]:
        """Return `count` most likely tokens after a prompt, whatever ends a text."""
        import torch

        options = {"max_new_tokens": count, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        with torch.inference_mode():
            sequences = self.model.generate(**self._inputs(ids, images), **options)
        return [int(token) for token in sequences[0, len(ids) :]]

    def _images(self, images: Sequence[Image.Image]) -> dict[str, torch.Tensor]:
        """Return what the model takes of images; Idefics3's processor needs them by prompt."""
        if not images:
            return {}
        is_tiled, is_cropped = hasattr(self.model.config, "scale_factor"), self.model.config.model_type == "internvl"
        crops = {"crop_to_patches": True} if is_cropped else {}
        processed = self._processor([list(images)] if is_tiled else list(images), return_tensors="pt", **crops)
        return {name: processed[name] for name in processed if name not in ("rows", "cols", "num_patches", "num_crops")}

    def _inputs(self, ids: Sequence[int], images: Sequence[Image.Image]) -> dict[str, Any]:
        import torch

        tokens = torch.tensor([list(ids)])
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **self._images(images)}
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (tokens == self.model.config.image_token_id).int()
        if self.model.config.model_type == "gemma3":
            inputs["token_type_ids"] = (tokens == self.model.config.image_token_id).int()
        return inputs
