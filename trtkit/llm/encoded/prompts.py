"""Prompts of encoder-decoder models: text, or audio files as features, and the tokens that answers start with."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from trtkit.errors import GenerationError, RequestError
from trtkit.llm.soft_tokens import SoftTokens
from trtkit.sources.safetensors_file import json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.arrays import Array
    from trtkit.bundle.records import EncoderRecord
    from trtkit.llm.encoded.encoder import Encoder


_START = "decoder_start_token_id"


@dataclass(frozen=True, eq=False)
class EncoderPrompt:
    """Tokens that the decoder starts with, and the encoder's input: features [bins, frames] or ids [S].

    text: the prompt's, if it has one.
    """

    ids: list[int]
    values: Array
    text: str | None = None


class PromptTokenizer(Protocol):
    """What tokenizes a prompt, or checks its tokens."""

    def text_and_ids(self, prompt: object) -> tuple[str | None, list[int]]:
        """Return a prompt's text, if it has one, and its tokens."""
        ...

    def checked_ids(self, ids: object) -> list[int]:
        """Return token ids as a list. Raises RequestError for anything else."""
        ...


class EncoderPrompts(ABC):
    """Reads the prompts of an encoder-decoder model; this does not need the encoder.

    folder: with `config.json` and, if the model has one, `generation_config.json`.
    """

    def __init__(self, record: EncoderRecord, folder: Path) -> None:
        self._record = record
        config, generation = (json_object(folder / name) for name in ("config.json", "generation_config.json"))
        self._generation = config | generation
        if self._generation.get(_START) is None:
            raise GenerationError(f"`{_START}` is missing", str(folder), "add it to `config.json`")
        self._start = int(self._generation[_START])
        self.suppressed: tuple[int, ...] = tuple(self._generation.get("suppress_tokens") or ())
        self.suppressed_first: tuple[int, ...] = tuple(self._generation.get("begin_suppress_tokens") or ())

    @abstractmethod
    def read(self, prompt: object, reader: PromptTokenizer) -> EncoderPrompt:
        """Return a prompt as both networks take it. Raises RequestError for an invalid prompt."""

    def soft_tokens(self, prompt: EncoderPrompt, encoder: Encoder) -> SoftTokens:
        """Run the encoder; return what the decoder's layers read."""
        digest = hashlib.sha256(prompt.values.tobytes()).digest()[:8]
        key = np.frombuffer(digest, np.int64)
        return SoftTokens(np.zeros(1, np.int64), torch.zeros(1, 0), key, encoded=encoder.encode(prompt.values))

    def first_filter(self, prompt: Sequence[int]) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Return a logits processor that bars `suppressed_first` right after a prompt."""
        length, barred = len(prompt), torch.tensor(self.suppressed_first, dtype=torch.int64)

        def process(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if input_ids.shape[1] > length:
                return scores
            return scores.index_fill(1, barred.to(scores.device), -torch.inf)

        return process


class TextPrompts(EncoderPrompts):
    """Reads prompts whose text, or token ids, the encoder takes."""

    def read(self, prompt: object, reader: PromptTokenizer) -> EncoderPrompt:
        """Return a prompt as both networks take it. Raises RequestError for an invalid prompt."""
        if isinstance(prompt, dict):
            other = [name for name in ("audio", "messages") if prompt.get(name) is not None]
            if other:
                fix = 'give text, or {"prompt": "translate English to German: ..."}'
                raise RequestError(f"the model takes no {other[0]}", other[0], fix)
        text, ids = reader.text_and_ids(prompt)
        return self.merge([self._start], ids, text)

    def ids(self) -> list[int]:
        """Return the token that an answer starts with."""
        return [self._start]

    def merge(self, ids: Sequence[int], source: Sequence[int], text: str | None = None) -> EncoderPrompt:
        """Return the decoder's tokens with those of the encoder. Raises RequestError for text of invalid length."""
        limit = self._record.length
        if not 0 < len(source) <= limit:
            fix = "shorten it, or build with a larger `llm.max_source_length`" if source else "give text or token ids"
            raise RequestError(f"the prompt has {len(source)} tokens; the encoder takes 1 to {limit}", "prompt", fix)
        return EncoderPrompt(list(ids), np.asarray(source, np.int64), text)


TASKS = ("transcribe", "translate")


class AudioPrompts(EncoderPrompts):
    """Reads prompts with audio. folder: also has the feature extractor's file."""

    def __init__(self, record: EncoderRecord, folder: Path) -> None:
        from transformers import WhisperFeatureExtractor

        super().__init__(record, folder)
        assert record.audio is not None
        self._extractor = WhisperFeatureExtractor.from_pretrained(folder, local_files_only=True)
        frames = self._extractor.nb_max_frames
        if frames != record.audio.frames:
            what = f"the feature extractor gives {frames} frames, the encoder takes {record.audio.frames}"
            raise GenerationError(what, str(folder), "build from a folder whose files belong together")

    @property
    def seconds(self) -> float:
        """Length of audio that the model takes at once, in seconds."""
        return float(self._extractor.n_samples / self._extractor.sampling_rate)

    def read(self, prompt: object, reader: PromptTokenizer) -> EncoderPrompt:
        """Return the tokens that a transcript starts with, or the prompt's own, with its audio's features."""
        fix = 'give {"audio": "talk.wav"}, and `language` and `task` if the model has several'
        if not isinstance(prompt, dict) or prompt.get("audio") is None:
            raise RequestError("the model transcribes audio, and the prompt has none", "prompt", fix)
        unknown = sorted(set(prompt) - {"audio", "language", "task", "prompt_token_ids"})
        if unknown:
            raise RequestError(f"a prompt with audio has no `{unknown[0]}`", "prompt", fix)
        stated_ids = prompt.get("prompt_token_ids")
        ids = (
            self.ids(prompt.get("language"), prompt.get("task"))
            if stated_ids is None
            else reader.checked_ids(stated_ids)
        )
        return self.merge(ids, prompt["audio"])

    def ids(self, language: str | None = None, task: str | None = None) -> list[int]:
        """Return the tokens that a transcript starts with, without timestamps.

        language: a code such as `en`; English if None and the model has several. Raises RequestError for an unknown
        language, and for a choice that the model does not offer.
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

    def merge(self, ids: Sequence[int], audio: str | Path | Array) -> EncoderPrompt:
        """Return a prompt's tokens with its audio's features. Raises RequestError for invalid audio.

        audio: a path, or samples [N] at the model's own rate.
        """
        if isinstance(audio, str | Path):
            samples = read_audio(Path(audio), self._extractor.sampling_rate, self.seconds)
        else:
            samples = self._checked(np.asarray(audio))
        rate = self._extractor.sampling_rate
        features = self._extractor(samples, sampling_rate=rate, return_tensors="np").input_features[0]
        return EncoderPrompt([int(token) for token in ids], np.ascontiguousarray(features, np.float32))

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


def read_audio(path: Path, sampling_rate: int, most_seconds: float) -> Array:
    """Return a file's first audio stream as mono samples [N] in fp32 between -1 and 1.

    Raises RequestError for a file that cannot be read, has no audio, or is longer than `most_seconds`.
    """
    import av

    try:
        with av.open(str(path)) as file:
            if not file.streams.audio:
                raise RequestError("the file has no audio", str(path), "give a recording")
            resampler = av.AudioResampler("flt", "mono", sampling_rate)
            parts, count, most = [], 0, int(most_seconds * sampling_rate)
            for frame in [*file.decode(audio=0), None]:
                for part in resampler.resample(frame):
                    parts.append(part.to_ndarray().reshape(-1))
                    count += len(parts[-1])
                if count > most:
                    what = f"the audio is longer than {most_seconds:g} s, which the model hears at once"
                    raise RequestError(what, str(path), "cut it into shorter pieces")
    except (av.FFmpegError, OSError) as error:
        raise RequestError(
            f"the audio cannot be read: {error}", str(path), "give a file such as .wav or .mp3"
        ) from None
    samples: Array = np.concatenate([*parts, np.zeros(0, np.float32)]).astype(np.float32)
    return samples
