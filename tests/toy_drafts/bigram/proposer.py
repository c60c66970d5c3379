"""Guesses of a bigram head, each from the token before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.drafts.proposers import DraftHeadProposer
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


class BigramProposer(DraftHeadProposer):
    """What the table says most often follows the last token, and so on."""

    def __init__(self, model: DecoderExecution, most: int, most_guesses: int | None = None) -> None:
        super().__init__(model, most, most_guesses)
        self._guesses = Guesses(self._speculator)

    def observe(self, sequences: Sequences, call: Call, counts: Ints, hidden: torch.Tensor | None) -> None:
        pass

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:
        for slot, each in zip(slots.tolist(), settings, strict=True):
            self._guesses.begin(sequences, slot, each)
        run = self._speculator.slots_to_run(slice(int(slots[0]), int(slots[-1]) + 1))
        first, tree = run.start, self.tree(len(slots), most)
        at, rows = slots - first, run.stop - first
        ids, zeros = np.zeros((rows, 1), np.int64), np.zeros(rows, np.int64)
        ids[at, 0] = sequences.tokens[slots, sequences.lengths[slots] - 1]
        for _ in range(most):
            logits = self._speculator.forward(Call(first, ids, zeros, zeros))
            logits = logits[to_device(at, logits.device)]
            drawn = self._guesses.draw(logits, slots)
            self._guesses.feed(drawn, slots)
            tree.grow(logits, drawn)
            ids[at, 0] = self._guesses.sequences.tokens[slots, self._guesses.sequences.lengths[slots] - 1]
        return tree.drafts()


PROPOSER = BigramProposer
