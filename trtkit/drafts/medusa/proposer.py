"""Guesses of Medusa heads, from the model's last hidden state alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.drafts.proposers import DraftHeadProposer, LastHidden, no_drafts
from trtkit.llm.engine.proposers import Guesses
from trtkit.llm.execution import Call
from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.llm.engine.drafts import Drafts
    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.sampling.settings import Settings
    from trtkit.llm.sequences import Ints, Sequences


class MedusaProposer(DraftHeadProposer):
    """Guesses of the heads in the model's bundle, all made at once from the hidden state that gave the last token.

    No guess depends on another.

    Source: https://arxiv.org/abs/2401.10774, where trees have the same shape in every step; here the likeliest branches
    are taken.
    """

    def __init__(self, model: DecoderExecution, most: int, most_guesses: int | None = None) -> None:
        super().__init__(model, most, most_guesses)
        self._guesses = Guesses(model)
        self._hidden = LastHidden(model)

    def observe(self, sequences: Sequences, call: Call, counts: Ints, hidden: torch.Tensor | None) -> None:
        """Keep the hidden state of each row's last token."""
        self._hidden.observe(sequences, call, counts, hidden)

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:
        """Run the heads on the waiting hidden states and draw a guess from the logits of each."""
        waits = self._hidden.waits(sequences, slots)
        rows, active = waits.nonzero()[0], slots[waits]
        if not active.size:
            return no_drafts(len(slots))
        logits = self._read(active)
        for row in rows.tolist():
            self._guesses.begin(sequences, int(slots[row]), settings[row])
        tree = self.tree(len(active), most)
        for index in range(most):
            tree.grow_everywhere(logits[:, index], self._guesses.draw(logits[:, index], active))
        return tree.drafts().of_rows(rows, len(slots))

    def _read(self, slots: Ints) -> torch.Tensor:
        """Return the logits [R, heads, V] of sorted slots."""
        run = self._speculator.slots_to_run(slice(int(slots[0]), int(slots[-1]) + 1))
        first, zeros = run.start, np.zeros(run.stop - run.start, np.int64)
        states = self._hidden.states[run]
        logits = self._speculator.forward(Call(first, zeros[:, None], zeros, zeros, hidden=states))
        return logits[to_device(slots - first, logits.device)].view(len(slots), -1, self._model.vocab_size)


PROPOSER = MedusaProposer
