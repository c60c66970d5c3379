"""The job that verifies an encoder-decoder model: what its encoder gives, logits and greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.backends import load_backend
from trtkit.builder.decoders import llm_options, open_decoder
from trtkit.jobs.events import Phase
from trtkit.llm.encoded import AudioPrompts, TextPrompts, reference_encoder
from trtkit.llm.execution import decoder_network
from trtkit.network.input_spec import ENCODED_MASK
from trtkit.resolve import resolve
from trtkit.runtime.text import open_tokenizer
from trtkit.sources.huggingface.folder import load_folder
from trtkit.sources.package_file import hf_folder
from trtkit.verification.compare import limits_of
from trtkit.verification.media import MediaSample, compare_media
from trtkit.verification.prompts import read_prompts
from trtkit.verification.ranks import reference_decoder
from trtkit.verification.stepper import Stepper
from trtkit.verification.subject import tolerance_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from trtkit.arrays import Array
    from trtkit.bundle.records import EncoderRecord
    from trtkit.config.llm import LlmOptions
    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import JobContext
    from trtkit.llm.encoded import EncoderPrompt
    from trtkit.llm.execution import DecoderNetwork
    from trtkit.sources.decoder_source import DecoderSource
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import Report

# Weights that checkpoints hold and transformers leaves out: a table of T5's first files.
_UNUSED = (r"EncDecAttention\.relative_attention_bias\.weight$",)


class EncoderDecoderReference:
    """The model of transformers in fp32 on the CPU."""

    def __init__(self, folder: Path, record: EncoderRecord) -> None:
        import transformers

        auto = transformers.AutoModelForSeq2SeqLM if record.audio is None else transformers.AutoModelForSpeechSeq2Seq
        self._model = load_folder(auto, folder, unused=_UNUSED, attn_implementation="eager")
        self._input_name = record.input_name
        self.description = f"transformers {transformers.__version__}, {type(self._model).__name__} in fp32"

    def encoded(self, prompt: EncoderPrompt) -> torch.Tensor:
        """Return all layers' keys and values of the encoder, [rows, D]."""
        import torch

        with torch.inference_mode():
            hidden = self._model.get_encoder()(**self._taken(prompt)).last_hidden_state[0]
            return torch.cat([project(hidden) for project in self._projections()])

    def logits(self, ids: Sequence[int], media: EncoderPrompt) -> torch.Tensor:
        """Return logits [S, V] of an answer's tokens."""
        import torch

        with torch.inference_mode():
            decoded = self._model(**self._taken(media), decoder_input_ids=torch.tensor([list(ids)]))
        logits: torch.Tensor = decoded.logits[0]
        return logits

    def greedy(self, ids: Sequence[int], media: EncoderPrompt, count: int) -> list[int]:
        """Return `count` most likely tokens after an answer's first ones, whatever ends it."""
        answer: list[int] = []
        while len(answer) < count:
            answer.append(int(self.logits([*ids, *answer], media)[-1].argmax()))
        return answer

    def _taken(self, prompt: EncoderPrompt) -> dict[str, torch.Tensor]:
        import torch

        return {self._input_name: torch.from_numpy(prompt.values[None])}

    def _projections(self) -> Iterator[torch.nn.Module]:
        """Yield each decoder layer's projections of the encoder's keys and values."""
        decoder = self._model.get_decoder()
        for block in getattr(decoder, "block", ()):
            yield from (block.layer[1].EncDecAttention.k, block.layer[1].EncDecAttention.v)
        for layer in getattr(decoder, "layers", ()):
            yield from (layer.encoder_attn.k_proj, layer.encoder_attn.v_proj)


class EncoderVerifier:
    """Both networks as the bundle's engines were built from, and transformers' model."""

    encoded, rounding = "keys_and_values", 0.0

    def __init__(self, request: VerifyRequest, report: Listener) -> None:
        assert request.encoder is not None
        self.config, self._record = request.config, request.encoder
        self._folder = hf_folder(self.config.source)
        report(Phase("write network"))
        self._decoder = open_decoder(resolve(self.config), request.quantized)
        self.backend = load_backend(request.backend)
        self.stepper = Stepper(reference_decoder(self.backend, self._decoder, 1, "all"))
        onnx = request.stages[0].onnx
        assert onnx is not None
        self._encoder = reference_encoder(self._record, self.backend, onnx.path)
        self.tokenizer = open_tokenizer(self._folder)
        report(Phase("load reference"))
        self.reference = EncoderDecoderReference(self._folder, self._record)
        self.limits = limits_of(tolerance_of(self.config), self.config.verify.max_slice_error)

    def engine_network(self) -> DecoderNetwork:
        """Return the decoder's network exactly as the engine has it: its own kind of logits."""
        return decoder_network(self.backend, self._decoder)

    def samples(self, paths: Sequence[str]) -> list[MediaSample]:
        """Return recordings or lines of files, or what is made up. Raises RequestError, SourceError."""
        vocab_size = self._decoder.spec.vocab_size
        if self._record.audio is not None:
            audio = AudioPrompts(self._record, self._folder)
            named = heard_samples(audio, paths, self._record.audio.sampling_rate, vocab_size)
            return [
                MediaSample(name, prompt.ids, prompt, audio.soft_tokens(prompt, self._encoder))
                for name, prompt in named
            ]
        text, options = TextPrompts(self._record, self._folder), llm_options(self.config)
        room = options.model_copy(update={"max_sequence_length": self._record.length + 1})
        named = text_samples(text, paths, self._decoder.source, room, vocab_size)
        return [
            MediaSample(name, prompt.ids, prompt, text.soft_tokens(prompt, self._encoder)) for name, prompt in named
        ]

    def encode(self, sample: MediaSample) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoder's keys and values of all layers, and the reference's: [rows, D] each."""
        import torch

        assert sample.soft is not None
        theirs, encoded = self.reference.encoded(sample.media), sample.soft.encoded
        pairs = [array for name, array in encoded.items() if name != ENCODED_MASK]
        length = len(theirs) // len(pairs)
        return torch.cat([array[:, :length].transpose(0, 1).flatten(1) for array in pairs]), theirs


def verify(request: VerifyRequest, context: JobContext) -> Report:
    """Compare the encoder's keys and values, logits, greedy tokens and, where asked, chunks."""
    return compare_media(EncoderVerifier(request, context.report), request, context)


# Tokens requested from the decoder after an answer's first ones.
_DRAWN = 6


def heard_samples(
    prompts: AudioPrompts, paths: Sequence[str], rate: int, vocab_size: int
) -> list[tuple[str, EncoderPrompt]]:
    """Return recordings, or sounds, by name. Raises RequestError for those that cannot be heard."""
    recordings = [(Path(path).name, path) for path in paths] or _sounds(rate, prompts.seconds)
    return [(name, prompts.merge(_begun(prompts.ids(), name, vocab_size), audio)) for name, audio in recordings]


def text_samples(
    prompts: TextPrompts, paths: Sequence[str], source: DecoderSource, options: LlmOptions, vocab_size: int
) -> list[tuple[str, EncoderPrompt]]:
    """Return the lines of files, or trtkit's own prompts, by name. Raises SourceError, RequestError."""
    texts = read_prompts(paths, source, options)
    return [
        (sample.name, prompts.merge(_begun(prompts.ids(), sample.name, vocab_size), sample.ids)) for sample in texts
    ]


def _begun(first: Sequence[int], name: str, vocab_size: int) -> list[int]:
    """Return an answer's first tokens with some more, by the sample's name."""
    generator = np.random.default_rng(len(name))
    return [*first, *(int(token) for token in generator.integers(0, vocab_size, _DRAWN))]


def _sounds(rate: int, seconds: float) -> list[tuple[str, Array]]:
    """Return a rising tone, and noise that fades: seeded, of different lengths."""
    time = np.arange(int(rate * min(seconds, 3.0)), dtype=np.float32) / rate
    tone = 0.3 * np.sin(2 * np.pi * (200 + 300 * time) * time)
    noise = np.random.default_rng(0).standard_normal(len(time) // 2).astype(np.float32) * np.exp(
        -time[: len(time) // 2]
    )
    return [("a rising tone", tone.astype(np.float32)), ("fading noise", 0.2 * noise)]
