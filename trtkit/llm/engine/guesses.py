"""Guesses of a network, drawn with the random numbers that the model's own tokens are drawn with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.sampler import Sampler
from trtkit.llm.sampling.settings import Settings
from trtkit.llm.sequences import Sequences

if TYPE_CHECKING:
    import torch

    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.sequences import Ints


class Guesses:
    """Sequences that go on with guesses, and what draws them.

    Sharing each draw's uniform number couples two models: where their distributions agree, so do their tokens.
    Penalties and other settings that follow the answer are left out.
    Source: speculative decoding, https://arxiv.org/abs/2211.17192; with shared randomness, https://arxiv.org/abs/2408.07978.
    """

    def __init__(self, execution: DecoderExecution) -> None:
        self.sequences = Sequences(execution.slots, execution.max_length)
        self._sampler = Sampler(self.sequences, execution.vocab_size)
        self._admitted: list[Settings | None] = [None] * execution.slots

    def begin(self, sequences: Sequences, slot: int, settings: Settings) -> None:
        """Let a slot hold the tokens that are known."""
        self.sequences.start(slot, sequences.ids(slot))
        self.sequences.prompt_lengths[slot] = sequences.prompt_lengths[slot]
        if self._admitted[slot] is not settings:
            self._sampler.admit(slot, _without_history(settings))
            self._admitted[slot] = settings

    def draw(self, logits: torch.Tensor, slots: Ints) -> Ints:
        """Return guesses for `slots` [R] from logits [R, V], and append them to the sequences; negative for none."""
        tokens = self._sampler.sample(logits, slots).tokens
        self.sequences.append(slots, np.maximum(tokens, 0))
        return tokens


def _without_history(settings: Settings) -> Settings:
    """Return settings of the same draws, but for what depends on earlier tokens."""
    kept = ("temperature", "top_k", "top_p", "min_p", "typical_p", "max_tokens")
    params = {name: getattr(settings.params, name) for name in kept}
    return Settings(SamplingParams(**params), settings.seed, settings.eos_ids)
