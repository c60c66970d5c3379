"""Tokens that the guides do not allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.sampling.columns import Use

if TYPE_CHECKING:
    from trtkit.runtime.sampling.processors.step import Step


def follow_guides(step: Step) -> None:
    """Bar what a row's grammar does not allow next."""
    rows, masks = [], []
    for row, state in step.each(Use.GUIDE):
        assert state.guide
        if not state.guide.error:
            rows.append(row)
            masks.append(state.guide.allowed(step.scores.shape[1]))
        if state.guide.error:  # which computing the mask may have met
            step.errors[row] = f"the answer cannot follow `{state.settings.params.guided}`: {state.guide.error}"
    if rows:
        barred = ~np.stack(masks)
        chosen = step.tensor(np.array(rows))
        step.scores[chosen] = step.scores[chosen].masked_fill(step.tensor(barred), -np.inf)
