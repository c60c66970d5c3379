"""The prompts that an LLM is verified on: text through its own tokenizer, or token ids if it has none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.sources.huggingface.model import encoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.config.llm import LlmOptions
    from trtkit.sources.decoder_source import DecoderSource

# Ours, in plain words of several kinds.
_TEXTS = (
    "Gravity is",
    "The capital of France is Paris, and the capital of Italy is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
)
_RANDOM_LENGTHS = (9, 17, 4)


def _as_numbers(ids: Sequence[int]) -> str:
    return " ".join(str(token) for token in ids)


@dataclass(frozen=True)
class Prompt:
    """One prompt. decode: from ids to what a person reads."""

    name: str
    ids: list[int]
    decode: Callable[[Sequence[int]], str] = _as_numbers


def read_prompts(paths: Sequence[str], opened: DecoderSource, options: LlmOptions) -> list[Prompt]:
    """Return a prompt per line of the given text files, else trtkit's own; random ids without a tokenizer.

    Raises SourceError for files that cannot be read and for prompts that are empty or too long.
    """
    try:
        tokenizer = encoder(opened)
    except SourceError:
        if paths:
            raise
        return _random_prompts(int(opened.config["vocab_size"]), options)
    if not paths:
        encoded = [(text, tokenizer.encode(text)[: options.max_sequence_length - 1]) for text in _TEXTS]
        return [Prompt(_short(text), list(ids), tokenizer.decode) for text, ids in encoded]
    texts = [line for path in paths for line in _lines(Path(path))]
    prompts = [Prompt(_short(text), list(tokenizer.encode(text)), tokenizer.decode) for text in texts]
    for prompt in prompts:
        if not 0 < len(prompt.ids) < options.max_sequence_length:
            what = f"the prompt has {len(prompt.ids)} tokens; a slot holds {options.max_sequence_length}"
            raise SourceError(what, prompt.name, "shorten it, or raise `llm.max_sequence_length`")
    return prompts


def _random_prompts(vocab_size: int, options: LlmOptions) -> list[Prompt]:
    """Return seeded token ids of several lengths."""
    generator = np.random.default_rng(0)
    lengths = [min(length, options.max_sequence_length - 1) for length in _RANDOM_LENGTHS]
    drawn = [generator.integers(0, vocab_size, max(1, length)).tolist() for length in lengths]
    return [Prompt(f"{len(ids)} random tokens", ids) for ids in drawn]


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
