"""Verification inputs of language models, by modality: text, pictures, or the input of an encoder.

Each kind defines prompts, transformers' model as the reference, and the network before the language model, if any.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from PIL import Image

from trtkit import quantization_methods
from trtkit.builder.decoders import llm_options
from trtkit.errors import SourceError
from trtkit.inputs.images import read_image
from trtkit.llm.encoded import AudioPrompts, TextPrompts, reference_encoder
from trtkit.llm.images import ImagePrompts, reference_tower
from trtkit.models.model import VISION
from trtkit.models.registry import decoder_spec
from trtkit.network.input_spec import ENCODED_MASK
from trtkit.quantization_methods import FORMATS
from trtkit.quantized_matrix import QuantizedMatrix
from trtkit.runtime.text import open_tokenizer
from trtkit.sources.huggingface.model import encoder
from trtkit.sources.package_file import hf_folder
from trtkit.verification.decoder_reference import (
    EncoderDecoderReference,
    TransformersReference,
    VisionLanguageReference,
    round_inputs,
    wrapped_folder,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.arrays import Array
    from trtkit.backends import Backend
    from trtkit.builder.decoders import OpenedDecoder
    from trtkit.config.llm import LlmOptions
    from trtkit.config.schema import ModelConfig
    from trtkit.llm.encoded import EncoderPrompt
    from trtkit.llm.soft_tokens import SoftTokens
    from trtkit.sources.decoder_source import DecoderSource
    from trtkit.verification.decoder_reference import TokensReference
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.stepper import Prompt

NEW_TOKENS = 12
"""Length of a greedy answer."""
# Tolerance of networks that round activations or caches. A value between two codes may be rounded either way, which
# changes everything after it; caches are rounded by the network alone.
_ROUNDED_IN_FP32, _ROUNDED_ACTIVATIONS = 0.05, 0.3


def _as_numbers(ids: Sequence[int]) -> str:
    return " ".join(str(token) for token in ids)


@dataclass(frozen=True, eq=False)
class TokenSample:
    """A prompt. ids: with all placeholders. soft: vectors that preceding networks made of pictures or audio.

    media: pictures or audio in the reference's form. decode: converts ids to readable text.
    """

    name: str
    ids: list[int]
    decode: Callable[[Sequence[int]], str] = _as_numbers
    soft: SoftTokens | None = None
    media: Any = None

    @property
    def prompt(self) -> Prompt:
        """The prompt in the networks' form."""
        return self.ids, self.soft


class TokenInputs(Protocol):
    """The inputs of a language model.

    encoded: name of the preceding network's output; empty if there is none. rounding: error caused by rounding that the
    reference does not share with the network. stop: tokens that end an answer.
    """

    encoded: str
    rounding: float
    stop: tuple[int, ...]

    @property
    def reference(self) -> TokensReference:
        """The whole model in transformers."""
        ...

    def samples(self, paths: Sequence[str]) -> list[TokenSample]:
        """Return prompts from files, or trtkit's own if none are given."""
        ...

    def encode(self, sample: TokenSample) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the preceding network's output for a sample, and transformers': [rows, D] each."""
        ...


def token_inputs(request: VerifyRequest, opened: OpenedDecoder, backend: Backend) -> TokenInputs:
    """Return the inputs of an opened language model. Raises SourceError if transformers cannot load the model."""
    if request.encoder is not None:
        return EncoderInputs(request, opened, backend)
    return TextInputs(opened) if request.images is None else ImageInputs(request, opened, backend)


class TextInputs:
    """Text through the model's own tokenizer, or token ids if it has none."""

    encoded = ""

    def __init__(self, opened: OpenedDecoder) -> None:
        self._source, self._options = opened.source, llm_options(opened.config)
        self.reference = TransformersReference(self._source, self._options.max_sequence_length)
        self.rounding = self._rounding(opened.config.precision)
        tokens = self._source.config.get("eos_token_id")
        self.stop = tuple(tokens) if isinstance(tokens, list) else () if tokens is None else (int(tokens),)

    def _rounding(self, precision: str) -> float:
        """Make the reference round inputs as the network does; return the tolerance that such rounding needs."""
        formats = round_inputs(self.reference.model, self._source)
        if self._source.kv_cache is not None:
            return _ROUNDED_ACTIVATIONS
        if formats and precision == "fp32":
            return _ROUNDED_IN_FP32
        return max((FORMATS[kind].tolerance for kind in formats), default=0.0)

    def samples(self, paths: Sequence[str]) -> list[TokenSample]:
        """Return one prompt per line of text files, or trtkit's own. Raises SourceError."""
        return read_prompts(paths, self._source, self._options)

    def encode(self, sample: TokenSample) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError(f"nothing encodes `{sample.name}`")


# trtkit's own prompts: plain text of several kinds.
_TEXTS = (
    "Gravity is",
    "The capital of France is Paris, and the capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
)
_RANDOM_LENGTHS = (9, 17, 4)


def read_prompts(paths: Sequence[str], opened: DecoderSource, options: LlmOptions) -> list[TokenSample]:
    """Return one prompt per line of the given text files, or trtkit's own; random ids without a tokenizer.

    Raises SourceError for files that cannot be read, for prompts that are empty or too long, and for a tokenizer of
    another model.
    """
    try:
        tokenizer = encoder(opened)
    except SourceError:
        if paths:
            raise
        return _random_prompts(int(opened.config["vocab_size"]), options)
    if not paths:
        encoded = [(text, tokenizer.encode(text)[: options.max_sequence_length - 1]) for text in _TEXTS]
    else:
        encoded = [(line, tokenizer.encode(line)) for path in paths for line in _lines(Path(path))]
    prompts = [TokenSample(_short(text), list(ids), tokenizer.decode) for text, ids in encoded]
    size = decoder_spec(opened.config, opened.where).vocab_size
    for prompt in prompts:
        if prompt.ids and max(prompt.ids) >= size:
            what = f"the tokenizer gives token {max(prompt.ids)}; the model's vocabulary ends at {size - 1}"
            raise SourceError(what, prompt.name, "put the model's own tokenizer into its folder")
        if paths and not 0 < len(prompt.ids) < options.max_sequence_length:
            what = f"the prompt has {len(prompt.ids)} tokens; a slot holds {options.max_sequence_length}"
            raise SourceError(what, prompt.name, "shorten it, or raise `llm.max_sequence_length`")
    return prompts


def _random_prompts(vocab_size: int, options: LlmOptions) -> list[TokenSample]:
    """Return seeded token ids of several lengths."""
    generator = np.random.default_rng(0)
    lengths = [min(length, options.max_sequence_length - 1) for length in _RANDOM_LENGTHS]
    drawn = [generator.integers(0, vocab_size, max(1, length)).tolist() for length in lengths]
    return [TokenSample(f"{len(ids)} random tokens", ids) for ids in drawn]


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"the prompts cannot be read: {error}", str(path), "give a UTF-8 text file") from None
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise SourceError("the file holds no prompts", str(path), "put one prompt on each line")
    return prompts


def _short(text: str) -> str:
    first = text.splitlines()[0]
    return f"{first[:32]}..." if len(text) > 32 else first


_TEXT = "Describe the picture in one sentence."
# Width and height of the images that are generated if none are given: square, wide, high.
_SIZES = ((64, 64), (150, 70), (48, 112))


class ImageInputs:
    """Prompts with one image each, with two, and with none."""

    encoded = "soft_tokens"
    stop: tuple[int, ...] = ()

    def __init__(self, request: VerifyRequest, opened: OpenedDecoder, backend: Backend) -> None:
        onnx = request.stages[0].onnx
        assert request.images is not None
        assert onnx is not None
        folder, self._record, self._opened = hf_folder(opened.config.source), request.images, opened
        self._tower = reference_tower(self._record, backend, onnx.path)
        self._tokenizer = open_tokenizer(folder)
        self._prompts = ImagePrompts(self._record, folder, self._tokenizer)
        with wrapped_folder(folder, opened.source) as reference:
            self.reference = VisionLanguageReference(reference)
        if reference != folder:
            self.reference.description += ", its language model with the weights that trtkit read"
        self.rounding = _unrounded(opened.config, opened.source)

    def samples(self, paths: Sequence[str]) -> list[TokenSample]:
        """Return prompts with pictures, generated if none are given.

        Raises SourceError for pictures that do not fit.
        """
        images = [(Path(path).name, read_image(Path(path))) for path in paths] or _random_images()
        prompts = [(name, [image]) for name, image in images]
        prompts += [("two images", [image for _, image in images[:2]])] if len(images) > 1 else []
        return [self._sample(name, shown) for name, shown in [*prompts, ("text alone", [])]]

    def encode(self, sample: TokenSample) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the soft tokens of a sample's images, and transformers'."""
        assert sample.soft is not None
        return sample.soft.vectors, self.reference.soft_tokens(sample.media)

    def _sample(self, name: str, images: list[Image.Image]) -> TokenSample:
        merged = self._prompts.merge(self._ids(len(images)), images)
        room = llm_options(self._opened.config).max_sequence_length - NEW_TOKENS
        if len(merged.ids) > room:
            what = f"the prompt has {len(merged.ids)} tokens including its images; {room} fit"
            raise SourceError(what, name, "raise `llm.max_sequence_length`, or give smaller images")
        decode = _as_numbers if self._tokenizer is None else self._tokenizer.decode
        return TokenSample(name, merged.ids, decode, self._prompts.soft_tokens(merged, self._tower), tuple(images))

    def _ids(self, count: int) -> list[int]:
        """Return a prompt with a placeholder for each of `count` images; random tokens without a tokenizer."""
        if self._tokenizer is not None:
            first, last = self._tokenizer.encode("Look:"), self._tokenizer.encode(_TEXT, add_special_tokens=False)
        else:
            drawn = np.random.default_rng(0).integers(0, self._opened.spec.vocab_size, 24)
            words = [int(token) for token in drawn if token != self._record.image_token_id]
            first, last = words[:4], words[4:]
        # Text between images: transformers takes adjacent placeholders for a single image.
        images = [token for _ in range(count) for token in (self._record.image_token_id, last[0])]
        return [*first, *images, *last]


def _unrounded(config: ModelConfig, language: DecoderSource) -> float:
    """Return the error caused by rounding that the reference lacks: of activations, caches and the vision tower."""
    weights = (language.checkpoint[name] for name in language.checkpoint) if language.quantized_by else ()
    rounds_activations = language.kv_cache is not None or any(
        isinstance(weight, QuantizedMatrix) and weight.inputs is not None for weight in weights
    )
    tower = None if config.quantize is None else config.quantize.parts.get(VISION)
    return max(
        _ROUNDED_ACTIVATIONS if rounds_activations else 0.0,
        0.0 if tower is None else quantization_methods.tolerance_of(tower.method),
    )


def _random_images() -> list[tuple[str, Image.Image]]:
    """Return images of random blocks, so that every patch differs and none is flat."""
    generator, images = np.random.default_rng(0), []
    for width, height in _SIZES:
        blocks = generator.integers(0, 256, (height // 6 + 1, width // 6 + 1, 3), dtype=np.uint8)
        image = Image.fromarray(blocks).resize((width, height), Image.Resampling.BICUBIC)
        images.append((f"{width} x {height}", image))
    return images


# Tokens requested from the decoder after an answer's first tokens.
_DRAWN = 6


class EncoderInputs:
    """Audio or text for an encoder to read, with the first tokens of answers."""

    encoded, rounding = "keys_and_values", 0.0
    stop: tuple[int, ...] = ()

    def __init__(self, request: VerifyRequest, opened: OpenedDecoder, backend: Backend) -> None:
        onnx = request.stages[0].onnx
        assert request.encoder is not None
        assert onnx is not None
        self._opened, self._record, self._folder = opened, request.encoder, hf_folder(opened.config.source)
        self._encoder = reference_encoder(self._record, backend, onnx.path)
        self._tokenizer = open_tokenizer(self._folder)
        self.reference = EncoderDecoderReference(self._folder, self._record)

    def samples(self, paths: Sequence[str]) -> list[TokenSample]:
        """Return samples from audio or text files, or generated ones. Raises RequestError, SourceError."""
        if self._record.audio is not None:
            audio = AudioPrompts(self._record, self._folder)
            sounds = [(Path(path).name, path) for path in paths] or _sounds(
                self._record.audio.sampling_rate, audio.seconds
            )
            return [self._sample(audio, name, sound) for name, sound in sounds]
        text, options = TextPrompts(self._record, self._folder), llm_options(self._opened.config)
        room = options.model_copy(update={"max_sequence_length": self._record.length + 1})
        texts = read_prompts(paths, self._opened.source, room)
        return [self._sample(text, sample.name, sample.ids) for sample in texts]

    def encode(self, sample: TokenSample) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoder's keys and values for all layers, and the reference's: [rows, D] each."""
        assert sample.soft is not None
        theirs, encoded = self.reference.encoded(sample.media), sample.soft.encoded
        pairs = [array for name, array in encoded.items() if name != ENCODED_MASK]
        length = len(theirs) // len(pairs)
        return torch.cat([array[:, :length].transpose(0, 1).flatten(1) for array in pairs]), theirs

    def _sample(self, prompts: AudioPrompts | TextPrompts, name: str, source: Any) -> TokenSample:
        """Return a named sample: an answer's first tokens and a few more, after the encoder's input."""
        generator = np.random.default_rng(len(name))
        drawn = (int(token) for token in generator.integers(0, self._opened.spec.vocab_size, _DRAWN))
        prompt: EncoderPrompt = prompts.merge([*prompts.ids(), *drawn], source)
        decode = _as_numbers if self._tokenizer is None else self._tokenizer.decode
        return TokenSample(name, prompt.ids, decode, prompts.soft_tokens(prompt, self._encoder), prompt)


def _sounds(rate: int, seconds: float) -> list[tuple[str, Array]]:
    """Return a rising tone and fading noise: seeded, of different lengths."""
    time = np.arange(int(rate * min(seconds, 3.0)), dtype=np.float32) / rate
    tone = 0.3 * np.sin(2 * np.pi * (200 + 300 * time) * time)
    noise = np.random.default_rng(0).standard_normal(len(time) // 2).astype(np.float32) * np.exp(
        -time[: len(time) // 2]
    )
    return [("a rising tone", tone.astype(np.float32)), ("fading noise", 0.2 * noise)]
