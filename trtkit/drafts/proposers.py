"""What proposers of several kinds have in common: how many tokens they guess, and the hidden state they guess from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import RequestError
from trtkit.llm.engine.drafts import Drafts, GuessTree
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    import torch

    from trtkit.llm.execution import Call, DecoderExecution
    from trtkit.llm.scheduler.slots import Bools
    from trtkit.llm.sequences import Ints, Sequences


class DraftHeadProposer:
    """Guesses `most` tokens ahead; with `most_guesses` above that, likely alternatives to them as well.

    model: whose draft head is open.
    """

    def __init__(self, model: DecoderExecution, most: int, most_guesses: int | None) -> None:
        assert model.speculator is not None
        self._model, self._speculator = model, model.speculator
        if most < 1:
            raise RequestError(f"cannot guess {most} tokens", "speculate", "give 1 or more, or 0 for none")
        self.most, self.most_guesses = most, most_guesses or most
        assert self.most_guesses >= most

    def tree(self, rows: int, depth: int) -> GuessTree:
        """Return an empty tree for the guesses of a step, `depth` of them in a row."""
        return GuessTree(rows, depth, depth + self.most_guesses - self.most)


def no_drafts(rows: int) -> Drafts:
    """Return no guesses for any of `rows`."""
    return Drafts(np.full((rows, 0), -1))


class LastHidden:
    """The model's hidden state after the last token that it has read of each slot: that before the sequence's last."""

    def __init__(self, model: DecoderExecution) -> None:
        self._model = model
        self._states: torch.Tensor | None = None  # [slots, D]
        self._stops, self._versions = np.zeros(model.slots, np.int64), np.full(model.slots, -1)

    @property
    def states(self) -> torch.Tensor:
        """Those of all slots, [slots, D]; only of slots in `waits`."""
        assert self._states is not None
        return self._states

    def observe(self, sequences: Sequences, call: Call, counts: Ints) -> None:
        """Keep the hidden state of each row's last token."""
        hidden, rows = self._model.next_hidden, (counts > 0).nonzero()[0]
        assert hidden is not None
        if self._states is None:
            self._states = hidden.new_zeros(self._model.slots, hidden.shape[-1])
        slots = call.rows.start + rows
        row, last, slot = (to_device(each, hidden.device) for each in (rows, counts[rows] - 1, slots))
        self._states[slot] = hidden[row, last]
        self._stops[slots], self._versions[slots] = (call.starts + counts)[rows], sequences.versions[slots]

    def waits(self, sequences: Sequences, slots: Ints) -> Bools:
        """Return which slots [R] have one: not those whose tokens were replaced in the meantime."""
        is_current = self._versions[slots] == sequences.versions[slots]
        waits: Bools = is_current & (self._stops[slots] == sequences.lengths[slots] - 1)
        return waits
