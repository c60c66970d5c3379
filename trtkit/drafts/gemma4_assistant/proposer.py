"""Guesses of Gemma 4's assistant, from the model's caches and its latest hidden state."""

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


class AssistantProposer(DraftHeadProposer):
    """Guesses of the assistant in the model's bundle, each from the token and the hidden state before it.

    It writes no caches: all guesses of a step read the same keys, from the same position, that of the last token, which
    the model has not read yet. A slot therefore keeps only the model's hidden state after the token before that one. A
    slot whose tokens were replaced since has no guesses for one step.

    Source: transformers, `SinglePositionMultiTokenCandidateGenerator`, except that there the first guess sees the key
    of a guess that the model has just rejected.
    """

    def __init__(self, model: DecoderExecution, most: int, most_guesses: int | None = None) -> None:
        super().__init__(model, most, most_guesses)
        self._guesses = Guesses(self._speculator)
        self._hidden = LastHidden(model)

    def observe(self, sequences: Sequences, call: Call, counts: Ints, hidden: torch.Tensor | None) -> None:
        """Keep the hidden state of each slot's last token."""
        self._hidden.observe(sequences, call, counts, hidden)

    def propose(self, sequences: Sequences, slots: Ints, settings: Sequence[Settings], most: int) -> Drafts:
        """Run the assistant on the last token, then on its own guesses."""
        lengths = sequences.lengths[slots]
        can = self._hidden.waits(sequences, slots)
        can &= (lengths > 1) & (lengths - 2 + most < self._speculator.max_length)
        rows, active = can.nonzero()[0], slots[can]
        if not active.size:
            return no_drafts(len(slots))
        for row in rows.tolist():
            self._guesses.begin(sequences, int(slots[row]), settings[row])
        states, own_sequences = self._hidden.states, self._guesses.sequences
        hidden = states[to_device(active, states.device)]
        tree = self.tree(len(active), most)
        for _ in range(most):
            logits, hidden = self._run(
                sequences, active, own_sequences.tokens[active, own_sequences.lengths[active] - 1], hidden
            )
            drawn = self._guesses.draw(logits, active)
            self._guesses.feed(drawn, active)
            tree.grow(logits, drawn)
        return tree.drafts().of_rows(rows, len(slots))

    def _run(
        self, sequences: Sequences, slots: Ints, tokens: Ints, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [R, V] and next hidden states [R, D] from tokens [R] of sorted slots and hidden states.

        tokens: UNKNOWN for those drawn last.
        """
        run = self._speculator.slots_to_run(slice(int(slots[0]), int(slots[-1]) + 1))
        first, total = run.start, run.stop - run.start
        at, (ids, starts, counts) = slots - first, np.zeros((3, total), np.int64)
        # A call's lengths include its new token. This one is not cached, so the lengths are one less.
        ids[at], starts[at], counts[at] = tokens, sequences.lengths[slots] - 2, 1
        places = to_device(at, hidden.device)
        states = hidden.new_zeros(total, 1, hidden.shape[-1])
        states[places, 0] = hidden
        logits = self._speculator.forward(Call(first, ids[:, None], starts, counts, hidden=states))
        assert self._speculator.next_hidden is not None
        return logits[places], self._speculator.next_hidden[places]


PROPOSER = AssistantProposer
