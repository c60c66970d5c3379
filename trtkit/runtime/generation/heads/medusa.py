"""Guesses of Medusa heads, which read the model's last hidden state and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import RequestError
from trtkit.runtime.decoder import Call
from trtkit.runtime.device import to_device
from trtkit.runtime.generation.guesses import Guesses
from trtkit.runtime.generation.heads.last_hidden import LastHidden

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from trtkit.runtime.decoder import DecoderExecution
    from trtkit.runtime.sampling.settings import Settings
    from trtkit.runtime.sequences import Ints, Sequences


class MedusaProposer:
    """What the heads of the model's bundle guess, all at once, of the hidden state from which the last token was drawn.

    No guess depends on another.

    Source: https://arxiv.org/abs/2401.10774, with chains in place of trees.
    """

    def __init__(self, model: DecoderExecution, most: int) -> None:
        if most < 1:
            raise RequestError(f"cannot guess {most} tokens", "speculate", "give 1 or more, or 0 for none")
        assert model.head is not None
        self.most, self._model, self._heads = most, model, model.head
        self._guesses = Guesses(model)
        self._hidden = LastHidden(model)

    def observe(self, sequences: Sequences, call: Call, counts: Ints) -> None:
        """Keep the hidden state of each row's last token."""
        self._hidden.observe(sequences, call, counts)

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Ints:
        """Let the heads read what waits, and draw a guess from each one's logits."""
        drafts = np.full((len(slots), most), -1, np.int64)
        waits = self._hidden.waits(sequences, slots)
        rows, active = waits.nonzero()[0], slots[waits]
        if not active.size:
            return drafts
        logits = self._read(active)
        for row in rows.tolist():
            self._guesses.begin(sequences, int(slots[row]), settings[row])
        for index in range(most):
            drafts[rows, index] = self._guesses.draw(logits[:, index], active)
        return drafts

    def _read(self, slots: Ints) -> torch.Tensor:
        """Return the logits [R, heads, V] of sorted slots."""
        first = int(slots[0])
        total = self._heads.rows_to_run(first, int(slots[-1]) + 1 - first)
        zeros = np.zeros(total, np.int64)
        states = self._hidden.states[first : first + total]
        logits = self._heads.forward(Call(first, zeros[:, None], zeros, zeros, hidden=states))
        return logits[to_device(slots - first, logits.device)].view(len(slots), -1, self._model.vocab_size)
