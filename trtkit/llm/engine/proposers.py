"""Draft tokens for speculative decoding, from the sequence itself or from a smaller model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from trtkit.errors import RequestError
from trtkit.llm.engine.drafts import Drafts
from trtkit.llm.execution import Call
from trtkit.llm.sampling.params import SamplingParams
from trtkit.llm.sampling.sampler import Sampler
from trtkit.llm.sampling.settings import Settings
from trtkit.llm.sequences import UNKNOWN, Sequences, common_length
from trtkit.runtime.device import start_copy, to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.sequences import Ints


class Guesses:
    """The sequences of a draft model, extended by guesses, and the sampler that draws them.

    Draft and target share each draw's random number, which couples them: where their distributions agree, so do their
    tokens. Penalties and other settings that depend on the answer are left out.
    Sources: speculative decoding, https://arxiv.org/abs/2211.17192; shared randomness, https://arxiv.org/abs/2408.07978.
    """

    def __init__(self, execution: DecoderExecution) -> None:
        self._execution = execution
        self.sequences = Sequences(execution.slots, execution.max_length)
        self._sampler = Sampler(self.sequences, execution.vocab_size)
        self._admitted: list[Settings | None] = [None] * execution.slots

    def begin(self, sequences: Sequences, slot: int, settings: Settings) -> None:
        """Set a slot to the known tokens of its sequence."""
        self.sequences.start(slot, sequences.ids(slot))
        self.sequences.prompt_lengths[slot] = sequences.prompt_lengths[slot]
        if self._admitted[slot] is not settings:
            self._sampler.admit(slot, _without_history(settings))
            self._admitted[slot] = settings

    def draw(self, logits: torch.Tensor, slots: Ints) -> torch.Tensor:
        """Draw guesses for `slots` [R] from logits [R, V], on their device; negative if none can be drawn.

        Does not wait: placeholders are appended to the sequences.
        """
        tokens = self._sampler.draw_ahead(logits, slots)
        self.sequences.append(slots, UNKNOWN)
        return tokens

    def feed(self, tokens: torch.Tensor, slots: Ints) -> None:
        """Feed the last guesses [R] of `slots` to the network's next call.

        They stay on the device, unless the host computes the network's inputs from token ids: then it waits for them.
        """
        if self._execution.takes_ids:
            self._execution.tokens[to_device(slots, tokens.device)] = tokens
        else:
            self.arrived([tokens], slots)

    def arrived(self, drawn: Sequence[torch.Tensor], slots: Ints) -> Ints:
        """Wait for the last K guesses of `slots`, [R] each; write them into the sequences and return them, [R, K]."""
        tokens: Ints = start_copy(torch.stack(list(drawn), 1))()
        first = self.sequences.lengths[slots] - len(drawn)
        self.sequences.tokens[slots[:, None], first[:, None] + np.arange(len(drawn))] = np.maximum(tokens, 0)
        return tokens


def _without_history(settings: Settings) -> Settings:
    """Return the settings without those that depend on earlier tokens."""
    kept = ("temperature", "top_k", "top_p", "min_p", "typical_p", "max_tokens")
    params = {name: getattr(settings.params, name) for name in kept}
    return Settings(SamplingParams(**params), settings.seed, settings.eos_ids)


_NONE = -1


class Proposer(Protocol):
    """Drafts at most `most` tokens ahead. Guesses change how fast an answer comes, never the answer."""

    most: int

    @property
    def most_guesses(self) -> int:
        """Limit on guesses per sequence and step, alternatives included."""
        ...

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:
        """Return guesses for the sequences in `slots` [R], at most `most` tokens ahead."""
        ...

    def observe(self, sequences: Sequences, call: Call, counts: Ints, hidden: torch.Tensor | None) -> None:
        """Observe a call of the model, of whose rows the first `counts` [R] new tokens were kept in the sequences.

        hidden: [R, S, D], the call's hidden states for a draft head, if the model has one; valid until the next call.
        """
        ...


class ChainProposer:
    """A proposer whose guesses have no alternatives."""

    most: int

    @property
    def most_guesses(self) -> int:
        """Limit on guesses per sequence and step."""
        return self.most


class LookupProposer(ChainProposer):
    """Drafts the tokens that followed the latest earlier occurrence of a sequence's last tokens.

    Source: prompt lookup decoding, https://github.com/apoorvumang/prompt-lookup-decoding.
    most: limit on guesses. longest, shortest: length of the n-gram that is looked up, longest first.
    """

    def __init__(self, most: int, longest: int = 3, shortest: int = 2) -> None:
        if most < 1:
            raise RequestError(f"cannot guess {most} tokens", "lookup", "give 1 or more")
        self.most, self._sizes = most, range(longest, shortest - 1, -1)

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:  # noqa: ARG002
        """Look each sequence's last tokens up in itself."""
        drafts = np.full((len(slots), most), _NONE, np.int64)
        for row, slot in zip(drafts, slots.tolist(), strict=True):
            draft = self._continuation(sequences.ids(slot))[:most]
            row[: len(draft)] = draft
        return Drafts(drafts)

    def observe(self, sequences: Sequences, call: Call, counts: Ints, hidden: torch.Tensor | None) -> None:
        """Do nothing: the tokens are all that is needed."""

    def _continuation(self, ids: Ints) -> Ints:
        """Return what followed the latest earlier occurrence of the longest tail that has one."""
        for size in self._sizes:
            count = len(ids) - size  # positions where an earlier occurrence may start
            if count <= 0:
                continue
            is_match = np.ones(count, np.bool_)
            for offset in range(size):
                is_match &= ids[offset : offset + count] == ids[count + offset]
            if is_match.any():
                first = count - 1 - int(is_match[::-1].argmax()) + size
                return ids[first:]
        return ids[:0]


class DraftProposer(ChainProposer):
    """Drafts tokens with a smaller model of the same vocabulary."""

    def __init__(self, execution: DecoderExecution, most: int) -> None:
        if most < 1:
            raise RequestError(f"cannot guess {most} tokens", "draft", "give 1 or more")
        self.most, self.execution = most, execution
        self._guesses = Guesses(execution)
        self._cached = np.zeros(execution.slots, np.int64)

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:
        """Let the draft model read new tokens and generate the next ones."""
        drafts = np.full((len(slots), most), _NONE, np.int64)
        can = sequences.lengths[slots] + most <= self.execution.max_length
        rows, active = np.flatnonzero(can), slots[can]
        if not active.size:
            return Drafts(drafts)
        for row in rows.tolist():
            self._follow(sequences, int(slots[row]), settings[row])
        drawn = [self._next(active) for _ in range(most)]
        drafts[rows] = self._guesses.arrived(drawn, active)
        return Drafts(drafts)

    def observe(self, sequences: Sequences, call: Call, counts: Ints, hidden: torch.Tensor | None) -> None:
        """Do nothing: the draft model reads the tokens itself."""

    def _follow(self, sequences: Sequences, slot: int, settings: Settings) -> None:
        """Bring the draft's slot up to date with the sequence and read all tokens but the last.

        Recurrent states are rewound to before the last guesses, or start over if earlier tokens differ.
        """
        ids, own_sequences, cache = sequences.ids(slot), self._guesses.sequences, self.execution.cache
        known = min(int(self._cached[slot]), len(ids) - 1, self.execution.max_length - 1)
        start = common_length(own_sequences.tokens[slot, :known], ids[:known])
        if cache.has_states:
            cache.rewind([slot])
            start = int(cache.positions[slot]) if cache.positions[slot] <= start else 0
        self._guesses.begin(sequences, slot, settings)
        for first in range(start, len(ids) - 1, self.execution.max_prefill_length):
            chunk = ids[None, first : min(first + self.execution.max_prefill_length, len(ids) - 1)]
            self.execution.forward(Call(slot, chunk, np.array([first]), np.array([chunk.shape[1]])))
        self._cached[slot] = len(ids) - 1
        if cache.has_states:
            cache.mark(slice(slot, slot + 1))

    def _next(self, slots: Ints) -> torch.Tensor:
        """Draw one more token [R] for each slot, without waiting."""
        rows, own_sequences = slice(int(slots[0]), int(slots[-1]) + 1), self._guesses.sequences
        starts, at = np.minimum(self._cached[rows], self.execution.max_length - 1), slots - rows.start
        ids, counts = np.zeros((len(starts), 1), np.int64), np.zeros(len(starts), np.int64)
        ids[at, 0], counts[at] = own_sequences.tokens[slots, starts[at]], 1
        logits = self.execution.forward(Call(rows.start, ids, starts, counts))
        logits = logits[:, 0] if logits.dim() == 3 else logits
        tokens = self._guesses.draw(logits[to_device(at, logits.device)], slots)
        self._guesses.feed(tokens, slots)
        self._cached[slots] += 1
        return tokens
