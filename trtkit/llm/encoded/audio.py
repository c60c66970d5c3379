"""Prompts of a speech recognizer: audio files as samples, features, and the tokens that begin a transcript."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import GenerationError, RequestError
from trtkit.llm.encoded.prompts import EncoderPrompt, EncoderPrompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array
    from trtkit.bundle.records import EncoderRecord
    from trtkit.llm.encoded.prompts import PromptTokenizer


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
        """How much audio the model hears at once."""
        return float(self._extractor.n_samples / self._extractor.sampling_rate)

    def read(self, prompt: object, reader: PromptTokenizer) -> EncoderPrompt:
        """Return the tokens that a transcript begins with, or the prompt's own, with its audio's features."""
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

    def merge(self, ids: Sequence[int], audio: str | Path | Array) -> EncoderPrompt:
        """Return a prompt's tokens with its audio's features. Raises RequestError for audio that cannot be heard.

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
