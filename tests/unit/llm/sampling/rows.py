"""Rows to sample, and the same settings as transformers' processors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process as hf

from trtkit.llm.sampling.sampler import Sampler
from trtkit.llm.sampling.settings import Settings, Vocabulary
from trtkit.llm.sequences import Sequences

if TYPE_CHECKING:
    from trtkit.llm.sampling.guides import GuideFactory
    from trtkit.llm.sampling.params import SamplingParams

EOS = 1


class Rows:
    """A sampler with a slot a row. histories: (prompt, generated) of each."""

    def __init__(
        self,
        vocab_size: int,
        params: list[SamplingParams],
        histories: list[tuple[list[int], list[int]]] | None = None,
        guides: GuideFactory | None = None,
        eos_ids: tuple[int, ...] = (EOS,),
    ) -> None:
        histories = histories or [([0], [])] * len(params)
        self.vocabulary = Vocabulary(vocab_size, eos_ids, None, guides)
        self.sequences = Sequences(len(params), 4096)
        self.sampler = Sampler(self.sequences, vocab_size)
        self.slots = np.arange(len(params))
        for slot, (one, history) in enumerate(zip(params, histories, strict=True)):
            self.sequences.start(slot, *history)
            self.sampler.admit(slot, Settings.resolve(one, self.vocabulary))

    def process(self, logits: torch.Tensor) -> torch.Tensor:
        return self.sampler.process(logits, self.slots)

    def step(self, logits: torch.Tensor) -> Any:
        sampled = self.sampler.sample(logits, self.slots)
        self.sampler.accept(self.slots, sampled.tokens)
        self.sequences.append(self.slots, sampled.tokens)
        return sampled


def transformers_scores(
    logits: torch.Tensor, params: SamplingParams, prompt: list[int], generated: list[int]
) -> torch.Tensor:
    """Return the scores [V] of transformers' own processors, in its order, for logits [V].

    torch.sort puts equal scores into any order, so transformers keeps any of those that tie at the edge of top-p; a
    stable sort makes its answer one.
    """
    chain = LogitsProcessorList(_processors(params, len(prompt)))
    if not params.greedy:
        chain.extend(_warpers(params))
    with mock.patch("torch.sort", lambda x, descending: x.sort(dim=-1, descending=descending, stable=True)):
        return chain(torch.tensor([prompt + generated]), logits[None].clone())[0]


def _processors(params: SamplingParams, prompt_length: int) -> list[Any]:
    found: list[Any] = []
    if params.logit_bias:
        found.append(hf.SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias.items()}))
    if params.repetition_penalty != 1:
        found.append(hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.presence_penalty or params.frequency_penalty:
        found.append(counts_penalty(params, prompt_length))
    if params.no_repeat_ngram_size:
        found.append(hf.NoRepeatNGramLogitsProcessor(params.no_repeat_ngram_size))
    if params.bad_words:
        found.append(hf.NoBadWordsLogitsProcessor([list(word) for word in params.bad_words], EOS))
    if params.min_tokens:
        found.append(hf.MinNewTokensLengthLogitsProcessor(prompt_length, params.min_tokens, EOS))
    return found


def counts_penalty(params: SamplingParams, prompt_length: int) -> Any:
    """OpenAI's formula, which transformers lacks: `mu[j] - c[j] * frequency - float(c[j] > 0) * presence`."""

    def penalise(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for token in range(scores.shape[1]):
            count = ids[0, prompt_length:].tolist().count(token)
            scores[0, token] -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
        return scores

    return penalise


def _warpers(params: SamplingParams) -> list[Any]:
    found: list[Any] = []
    if params.temperature != 1:
        found.append(hf.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        found.append(hf.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        found.append(hf.TopPLogitsWarper(params.top_p))
    if params.min_p:
        found.append(hf.MinPLogitsWarper(params.min_p))
    if params.typical_p < 1:
        found.append(hf.TypicalLogitsWarper(params.typical_p))
    return found
