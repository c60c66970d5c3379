"""Prompts of a speech recognizer: features of the audio, and the tokens that a transcript begins with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from trtkit.errors import GenerationError, RequestError
from trtkit.runtime.audio.read import read_audio
from trtkit.runtime.soft_tokens import SoftTokens
from trtkit.sources.safetensors_folder import json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.arrays import Array
    from trtkit.bundle.manifest import AudioRecord
    from trtkit.runtime.audio.encoder import AudioEncoder

TASKS = ("transcribe", "translate")


@dataclass(frozen=True, eq=False)
class HeardPrompt:
    """A prompt's tokens with the features of its audio [bins, frames]."""

    ids: list[int]
    features: Array


class AudioPrompts:
    """Reads the prompts of a model that takes audio; the encoder is not needed for that.

    folder: has the feature extractor's file and `generation_config.json`, if the model has one.
    """

    def __init__(self, record: AudioRecord, folder: Path) -> None:
        from transformers import WhisperFeatureExtractor

        self._record = record
        self._extractor = WhisperFeatureExtractor.from_pretrained(folder, local_files_only=True)
        frames = self._extractor.nb_max_frames
        if frames != record.frames:
            what = f"the feature extractor gives {frames} frames, the encoder takes {record.frames}"
            raise GenerationError(what, str(folder), "build from a folder whose files belong together")
        config, generation = (json_object(folder / name) for name in ("config.json", "generation_config.json"))
        self._generation = config | generation
        self._start = int(self._generation["decoder_start_token_id"])
        self.suppressed: tuple[int, ...] = tuple(self._generation.get("suppress_tokens") or ())
        self.suppressed_first: tuple[int, ...] = tuple(self._generation.get("begin_suppress_tokens") or ())

    @property
    def seconds(self) -> float:
        """How much audio the model hears at once."""
        return float(self._extractor.n_samples / self._extractor.sampling_rate)

    def ids(self, language: str | None = None, task: str | None = None) -> list[int]:
        """Return the tokens that a transcript begins with, without timestamps.

        language: a code such as `en`; of a model of several, English if None. Raises RequestError for one that the
        model does not know, and for a choice that it does not offer.
        """
        languages, tasks = self._generation.get("lang_to_id", {}), self._generation.get("task_to_id", {})
        ids = [self._start]
        if languages:
            token = f"<|{(language or 'en').lower()}|>"
            if token not in languages:
                known = ", ".join(sorted(name.strip("<|>") for name in languages))
                raise RequestError(f"`{language}` is not a language of the model", "language", f"use one of {known}")
            ids += [int(languages[token]), int(tasks[self._task(task, tasks)])]
        elif language not in (None, "en") or task not in (None, "transcribe"):
            raise RequestError("the model only transcribes one language", "language", "leave out language and task")
        plain = self._generation.get("no_timestamps_token_id")
        return ids if plain is None else [*ids, int(plain)]

    def merge(self, ids: Sequence[int], audio: str | Path | Array) -> HeardPrompt:
        """Return a prompt's tokens with its audio's features. Raises RequestError for audio that cannot be heard.

        audio: a path, or samples [N] at the model's own rate.
        """
        if isinstance(audio, str | Path):
            samples = read_audio(Path(audio), self._extractor.sampling_rate, self.seconds)
        else:
            samples = self._checked(np.asarray(audio))
        rate = self._extractor.sampling_rate
        features = self._extractor(samples, sampling_rate=rate, return_tensors="np").input_features[0]
        return HeardPrompt([int(token) for token in ids], np.ascontiguousarray(features, np.float32))

    def soft_tokens(self, prompt: HeardPrompt, encoder: AudioEncoder) -> SoftTokens:
        """Run the encoder; return what the decoder's layers read."""
        digest = hashlib.sha256(prompt.features.tobytes()).digest()[:8]
        key = np.frombuffer(digest, np.int64)
        return SoftTokens(np.zeros(1, np.int64), torch.zeros(1, 0), key, encoded=encoder.encode(prompt.features))

    def first_filter(self, prompt: Sequence[int]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return a logits processor that bars `suppressed_first` right after a prompt."""
        length, barred = len(prompt), torch.tensor(self.suppressed_first, dtype=torch.int64)

        def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if input_ids.shape[1] > length:
                return scores
            return scores.index_fill(1, barred.to(scores.device), -torch.inf)

        return process

    @staticmethod
    def _task(task: str | None, tasks: dict[str, int]) -> str:
        chosen = task or "transcribe"
        if chosen not in tasks:
            raise RequestError(f"`{chosen}` is not a task of the model", "task", f"use one of {', '.join(tasks)}")
        return chosen

    def _checked(self, samples: Array) -> Array:
        if samples.ndim != 1 or samples.dtype.kind != "f" or not np.isfinite(samples).all():
            what = f"audio cannot be {samples.dtype.name} of shape {list(samples.shape)}"
            raise RequestError(what, "audio", "give a path, or finite samples [N] as floats")
        if len(samples) > self._extractor.n_samples:
            what = f"the audio is longer than {self.seconds:g} s, which the model hears at once"
            raise RequestError(what, "audio", "cut it into shorter pieces")
        return samples.astype(np.float32)
