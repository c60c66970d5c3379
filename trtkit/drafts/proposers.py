"""Shared parts of proposers: how many tokens they guess, and the hidden states that they guess from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import RequestError
from trtkit.llm.engine.drafts import Drafts, GuessTree
from trtkit.llm.engine.proposers import Guesses
from trtkit.llm.execution import Call
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.sampling.settings import Settings
    from trtkit.llm.scheduler.slots import Bools
    from trtkit.llm.sequences import Ints, Sequences


class DraftHeadProposer:
    """Guesses `most` tokens ahead, and, if `most_guesses` is larger, likely alternatives to them.

    model: its draft head is open.
    """

    def __init__(self, model: DecoderExecution, most: int, most_guesses: int | None) -> None:
        assert model.speculator is not None
        self._model, self._speculator = model, model.speculator
        if most < 1:
            raise RequestError(f"cannot guess {most} tokens", "speculate", "give 1 or more, or 0 for none")
        self.most, self.most_guesses = most, most_guesses or most
        assert self.most_guesses >= most

    def tree(self, rows: int, depth: int) -> GuessTree:
        """Return an empty tree for a step's guesses, `depth` tokens deep."""
        return GuessTree(rows, depth, depth + self.most_guesses - self.most)


def no_drafts(rows: int) -> Drafts:
    """Return no guesses for any of `rows`."""
    return Drafts(np.full((rows, 0), -1))


class LastHidden:
    """For each slot, the model's hidden state after the last token that it has read, the sequence's second-to-last."""

    def __init__(self, model: DecoderExecution) -> None:
        self._model = model
        self._states: torch.Tensor | None = None  # [slots, D]
        self._stops, self._versions = np.zeros(model.slots, np.int64), np.full(model.slots, -1)

    @property
    def states(self) -> torch.Tensor:
        """Hidden states of all slots, [slots, D]; valid only for slots that `waits` returns as true."""
        assert self._states is not None
        return self._states

    def observe(self, sequences: Sequences, call: Call, counts: Ints, hidden: torch.Tensor | None) -> None:
        """Keep the hidden state of each row's last token."""
        rows = (counts > 0).nonzero()[0]
        assert hidden is not None
        if self._states is None:
            self._states = hidden.new_zeros(self._model.slots, hidden.shape[-1])
        slots = call.slots[rows]
        row, last, slot = (to_device(array, hidden.device) for array in (rows, counts[rows] - 1, slots))
        self._states[slot] = hidden[row, last]
        self._stops[slots], self._versions[slots] = (call.starts + counts)[rows], sequences.versions[slots]

    def waits(self, sequences: Sequences, slots: Ints) -> Bools:
        """Return which slots [R] have a hidden state; slots whose tokens were replaced since have none."""
        is_current = self._versions[slots] == sequences.versions[slots]
        waits: Bools = is_current & (self._stops[slots] == sequences.lengths[slots] - 1)
        return waits


class ChainProposer(DraftHeadProposer):
    """Guesses of a one-layer head with a cache, each from the hidden state of the guess before.

    Position i of the head's cache belongs to token i + 1 and the model's hidden state after token i. The cache is kept
    next to the model's and is copied, shared and saved with it. Hidden states wait in `_hidden` until the token after
    them is known and guesses are requested. A slot whose tokens were replaced since has no guesses for one step.

    Source: https://arxiv.org/abs/2503.01840, with alternatives to a chain's guesses rather than whole trees.
    """

    def __init__(self, model: DecoderExecution, most: int, most_guesses: int | None = None) -> None:
        super().__init__(model, most, most_guesses)
        self._guesses = Guesses(self._speculator)
        self._hidden: torch.Tensor | None = None  # [slots, 1 + most, D]
        self._starts, self._counts = np.zeros(model.slots, np.int64), np.zeros(model.slots, np.int64)
        self._versions = np.full(model.slots, -1)

    def observe(self, sequences: Sequences, call: Call, counts: Ints, hidden: torch.Tensor | None) -> None:
        """Keep the hidden states of the last tokens; run the head on the others, those of prompts."""
        slots = call.slots
        assert hidden is not None
        if self._hidden is None:
            self._hidden = hidden.new_zeros(self._model.slots, 1 + self.most, hidden.shape[-1])
        # A prompt chunk's hidden states all have their next token, except the last; a step's are few enough to wait.
        follows = np.clip(sequences.lengths[slots] - 1 - call.starts, 0, counts)
        is_step = sequences.lengths[slots] > sequences.prompt_lengths[slots]
        is_step &= (call.starts + counts == sequences.lengths[slots] - 1) & (counts <= 1 + self.most)
        read = np.where(is_step, 0, follows)
        order = np.argsort(slots)
        for run in np.split(order, np.flatnonzero(np.diff(slots[order]) > 1) + 1):  # a call takes adjacent slots
            if read[run].any():
                states = hidden[to_device(run, hidden.device), : int(read[run].max())]
                self._read(sequences, (slots[run], call.starts[run], read[run]), states)
        left = counts - read
        columns = np.arange(int(left.sum())) - (np.cumsum(left) - left).repeat(left)
        row, target = np.arange(len(slots)).repeat(left), slots.repeat(left)
        if row.size:
            of, column, source, slot = to_device(np.stack([row, columns, columns + read[row], target]), hidden.device)
            self._hidden[slot, column] = hidden[of, source]
        rows = counts > 0
        self._starts[slots[rows]], self._counts[slots[rows]] = (call.starts + read)[rows], left[rows]
        self._versions[slots[rows]] = sequences.versions[slots[rows]]

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:
        """Run the head on the waiting hidden states, then on its own guesses."""
        lengths = sequences.lengths[slots]
        waits = (self._versions[slots] == sequences.versions[slots]) & (self._counts[slots] > 0)
        waits &= self._starts[slots] + self._counts[slots] == lengths - 1
        if not waits.any():
            return no_drafts(len(slots))
        size = self._speculator.tokens_to_run(int(self._counts[slots[waits]].max()), 1 + self.most)
        length = self._speculator.max_length
        waits &= (self._starts[slots] + size <= length) & (lengths - 2 + most < length)
        rows, active = waits.nonzero()[0], slots[waits]
        if not active.size:
            return no_drafts(len(slots))
        self._guesses.sequences.lengths[:] = sequences.lengths  # the position after which rows of other slots write
        for row in rows.tolist():
            self._guesses.begin(sequences, int(slots[row]), settings[row])
        assert self._hidden is not None
        waiting = active, self._starts[active], self._counts[active]
        hidden = self._hidden[to_device(active, self._hidden.device), :size]
        logits = self._read(self._guesses.sequences, waiting, hidden, is_step=True)
        tree = self.tree(len(active), most)
        drawn = self._guesses.draw(logits, active)
        tree.grow(logits, drawn)
        ones = np.ones(len(active), np.int64)
        for index in range(1, most):
            self._guesses.feed(drawn, active)
            hidden = self._of(active, self._speculator.next_hidden)
            place = active, lengths[waits] - 2 + index, ones
            logits = self._read(self._guesses.sequences, place, hidden[:, None], is_step=True)
            drawn = self._guesses.draw(logits, active)
            tree.grow(logits, drawn)
        self._counts[active] = 0
        return tree.drafts().of_rows(rows, len(slots))

    def _read(
        self, sequences: Sequences, place: tuple[Ints, Ints, Ints], hidden: torch.Tensor, *, is_step: bool = False
    ) -> torch.Tensor:
        """Run the head on hidden states [R, S, D] and the tokens after their positions; return its logits [R, V].

        place: sorted slots, the first position of each, and the number of positions, at most S; [R] each. is_step:
        whether idle slots may run too.
        """
        slots, starts, counts = place
        size, run = hidden.shape[1], slice(int(slots[0]), int(slots[-1]) + 1)
        run = self._speculator.slots_to_run(run) if is_step else run
        first, total, at = run.start, run.stop - run.start, slots - run.start
        ids, all_counts = np.zeros((total, size), np.int64), np.zeros(total, np.int64)
        all_starts = np.minimum(sequences.lengths[first : first + total], self._speculator.max_length - size)
        all_starts[at], all_counts[at] = np.minimum(starts, self._speculator.max_length - size), counts
        for row, slot, start, count in zip(at.tolist(), slots.tolist(), starts.tolist(), counts.tolist(), strict=True):
            ids[row, :count] = sequences.tokens[slot, start + 1 : start + 1 + count]
        states = hidden.new_zeros(total, size, hidden.shape[-1])
        states[to_device(at, hidden.device)] = hidden
        logits = self._speculator.forward(Call(first, ids, all_starts, all_counts, hidden=states))
        self._first = first
        return logits[to_device(at, logits.device)]

    def _of(self, slots: Ints, output: torch.Tensor | None) -> torch.Tensor:
        """Return the rows of `slots` in an output of the head's last call."""
        assert output is not None
        return output[to_device(slots - self._first, output.device)]
