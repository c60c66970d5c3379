"""The job that verifies a speech recognizer: what its encoder gives, logits and greedy tokens against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.backends import load_backend
from trtkit.engine.decoders import open_decoder
from trtkit.jobs.events import Phase
from trtkit.resolve import resolve
from trtkit.runtime.audio import AudioPrompts, reference_encoder
from trtkit.runtime.decoder import decoder_network
from trtkit.runtime.text import open_tokenizer
from trtkit.sources.huggingface.folder import load_folder
from trtkit.sources.package_file import hf_folder
from trtkit.verification.media import MediaSample, compare_media
from trtkit.verification.ranks import reference_decoder
from trtkit.verification.slices import limits_of
from trtkit.verification.stepper import Stepper
from trtkit.verification.subject import tolerance_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.arrays import Array
    from trtkit.jobs.events import Listener
    from trtkit.jobs.job import Context
    from trtkit.runtime.audio import HeardPrompt
    from trtkit.runtime.decoder import DecoderNetwork
    from trtkit.verification.jobs import VerifyRequest
    from trtkit.verification.report import Report

# Tokens that the decoder is asked for behind a transcript's first ones.
_DRAWN = 6


class AudioReference:
    """Whisper of transformers in fp32 on the CPU."""

    def __init__(self, folder: Path) -> None:
        import transformers

        self._model = load_folder(transformers.WhisperForConditionalGeneration, folder, attn_implementation="eager")
        self.description = f"transformers {transformers.__version__}, {type(self._model).__name__} in fp32"

    def encoded(self, heard: HeardPrompt) -> torch.Tensor:
        """Return all layers' keys and values of the encoder, [rows, D]."""
        import torch

        with torch.inference_mode():
            hidden = self._model.model.encoder(torch.from_numpy(heard.features[None])).last_hidden_state[0]
            layers = [layer.encoder_attn for layer in self._model.model.decoder.layers]
            return torch.cat([project(hidden) for layer in layers for project in (layer.k_proj, layer.v_proj)])

    def logits(self, ids: Sequence[int], media: HeardPrompt) -> torch.Tensor:
        """Return logits [S, V] of a transcript's tokens."""
        import torch

        features, tokens = torch.from_numpy(media.features[None]), torch.tensor([list(ids)])
        with torch.inference_mode():
            logits: torch.Tensor = self._model(input_features=features, decoder_input_ids=tokens).logits[0]
        return logits

    def greedy(self, ids: Sequence[int], media: HeardPrompt, count: int) -> list[int]:
        """Return `count` most likely tokens after a transcript's, whatever ends it."""
        answer: list[int] = []
        while len(answer) < count:
            answer.append(int(self.logits([*ids, *answer], media)[-1].argmax()))
        return answer


class AudioVerifier:
    """Both networks as the bundle's engines were built from, and transformers' model."""

    encoded, rounding = "keys_and_values", 0.0

    def __init__(self, request: VerifyRequest, report: Listener) -> None:
        assert request.audio is not None
        self.config = request.config
        folder = hf_folder(self.config.source)
        report(Phase("write network"))
        self._decoder = open_decoder(resolve(self.config), request.quantized)
        self.backend = load_backend(request.backend)
        self.stepper = Stepper(reference_decoder(self.backend, self._decoder, 1, "all"))
        onnx = request.stages[0].onnx
        assert onnx is not None
        self._encoder = reference_encoder(request.audio, self.backend, onnx.path)
        self._prompts, self.tokenizer = AudioPrompts(request.audio, folder), open_tokenizer(folder)
        self._rate = request.audio.sampling_rate
        report(Phase("load reference"))
        self.reference = AudioReference(folder)
        self.limits = limits_of(tolerance_of(self.config), self.config.verify.max_slice_error)

    def engine_network(self) -> DecoderNetwork:
        """Return the decoder's network exactly as the engine has it: its own kind of logits."""
        return decoder_network(self.backend, self._decoder)

    def samples(self, paths: Sequence[str]) -> list[MediaSample]:
        """Return recordings, or sounds that are made up. Raises RequestError for those that cannot be heard."""
        sounds = _sounds(self._rate, self._prompts.seconds)
        recordings = [(Path(path).name, path) for path in paths] or sounds
        return [self._sample(name, audio) for name, audio in recordings]

    def encode(self, sample: MediaSample) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the encoder's keys and values of all layers, and the reference's: [rows, D] each."""
        import torch

        assert sample.soft is not None
        ours = [each.transpose(0, 1).flatten(1) for each in sample.soft.encoded.values()]
        return torch.cat(ours), self.reference.encoded(sample.media)

    def _sample(self, name: str, audio: str | Array) -> MediaSample:
        generator = np.random.default_rng(len(name))
        first = self._prompts.ids()
        ids = [*first, *(int(token) for token in generator.integers(0, self._decoder.spec.vocab_size, _DRAWN))]
        heard = self._prompts.merge(ids, audio)
        return MediaSample(name, ids, heard, self._prompts.soft_tokens(heard, self._encoder))


def verify(request: VerifyRequest, context: Context) -> Report:
    """Compare the encoder's keys and values, logits, greedy tokens and, where asked, chunks."""
    return compare_media(AudioVerifier(request, context.report), request, context)


def _sounds(rate: int, seconds: float) -> list[tuple[str, Array]]:
    """Return a rising tone, and noise that fades: seeded, of different lengths."""
    time = np.arange(int(rate * min(seconds, 3.0)), dtype=np.float32) / rate
    tone = 0.3 * np.sin(2 * np.pi * (200 + 300 * time) * time)
    noise = np.random.default_rng(0).standard_normal(len(time) // 2).astype(np.float32) * np.exp(
        -time[: len(time) // 2]
    )
    return [("a rising tone", tone.astype(np.float32)), ("fading noise", 0.2 * noise)]
