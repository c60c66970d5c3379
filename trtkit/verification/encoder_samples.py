"""What encoder-decoder models are verified on: recordings and texts, or sounds and tokens that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.verification.prompts import read_prompts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.arrays import Array
    from trtkit.config.llm import LlmOptions
    from trtkit.llm.encoded import AudioPrompts, EncoderPrompt, TextPrompts
    from trtkit.sources.decoder_source import DecoderSource

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
