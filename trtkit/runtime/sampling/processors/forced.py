"""Words that must occur."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.sampling.columns import Use

if TYPE_CHECKING:
    from trtkit.runtime.sampling.processors.step import Step


def force(step: Step) -> None:
    """Bar every end until each forced word has occurred; force words when there is room for nothing else.

    Our definition, for transformers 5 dropped constrained beam search: as long as a word is missing, no token that ends
    the answer is allowed. Once the tokens left of `max_tokens` are no more than the missing words need, the words are
    forced token by token, the one that is furthest along first.
    """
    for row, state in step.each(Use.FORCE_WORDS):
        slot = step.slots[row]
        generated = step.sequences.generated(slot)
        missing = state.force_words.missing(generated)
        token = missing.forced(generated, state.max_tokens - len(generated))
        scores = step.scores[row]
        if token is not None:
            kept = scores[token].clone()
            scores.fill_(-np.inf)
            scores[token] = kept
        elif missing.words:
            scores[step.tensor(state.stop_ids)] = -np.inf
