"""A tiny chat model with Medusa heads, and its answers in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support import tiny_chat
from tests.support.decoder_case import SIZES
from tests.support.medusa import save_random
from tests.unit.runtime.text.tokenizers import byte_level
from trtkit import LLM, SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

PROMPT, LENGTH, HEADS, SPECULATE = "the sky is", 24, 3, 2
# Temperatures up to OpenAI's maximum, at which some guesses are accepted: both use the same random numbers.
SETTINGS = [(temperature, seed) for seed, temperature in enumerate((0.0, 2.0, 2.0, 2.0, 0.8))]


def build(folder: Path, *overrides: str) -> Path:
    """Build a bundle of the model and its heads."""
    save_random(folder / "heads", (SIZES["hidden_size"], byte_level().vocab_size), HEADS)
    return tiny_chat.build(folder, "precision=fp32", f"llm.speculator={folder / 'heads'}", *overrides)


def local_answers(bundle: Path, speculate: int) -> tuple[list[str], tuple[int, int]]:
    """Answer requests one at a time; return the answers and the numbers of guessed and accepted tokens."""
    params = [SamplingParams(temperature=t, seed=seed, max_tokens=LENGTH, ignore_eos=True) for t, seed in SETTINGS]
    with LLM(bundle, speculate=speculate) as llm:
        texts = [llm.generate([PROMPT], each)[0].outputs[0].text for each in params]
        return texts, (llm.statistics.drafted_tokens, llm.statistics.accepted_tokens)
