"""The next token of every row, each by the settings of its own slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trtkit.runtime.sampling.columns import Columns, Use
from trtkit.runtime.sampling.draw import draw, largest
from trtkit.runtime.sampling.sampled import FAILED, Sampled
from trtkit.runtime.sampling.uniform import Uniform

if TYPE_CHECKING:
    from torch import Tensor

    from trtkit.runtime.sampling.guides import GuideFactory
    from trtkit.runtime.sampling.settings import Settings
    from trtkit.runtime.sequences import Sequences

    Array = np.ndarray[Any, Any]


class Sampler:
    """What the slots of `sequences` draw next. A row depends on its own slot alone, whatever other rows there are."""

    def __init__(self, sequences: Sequences, vocab_size: int, guides: GuideFactory | None = None) -> None:
        slots = len(sequences.lengths)
        self._sequences = sequences
        self._vocab_size = vocab_size
        self._guides = guides
        self._columns = Columns(slots)
        self._uniform = Uniform(slots)

    def admit(self, slot: int, settings: Settings) -> None:
        """Take a slot whose tokens are in `sequences` already."""
        self._columns.admit(slot, settings)
        self._uniform.admit(slot, settings.seed)

    def release(self, slot: int) -> None:
        """Forget a slot."""
        self._columns.release(slot)

    def copy(self, source: int, target: int) -> None:
        """Make `target` go on as `source` would."""
        self._columns.copy(source, target)
        self._uniform.copy(source, target)

    def process(self, logits: Tensor, slots: Array) -> Tensor:
        """Return the scores [R, V] of logits [R, V] after every setting of the rows' slots; -inf cannot be drawn."""
        uses = self._columns.uses[slots]
        rows = np.flatnonzero(uses & Use.SAMPLE)
        if not rows.size:
            return logits
        scores = logits.clone()
        scores[rows] /= torch.from_numpy(self._columns["temperature"][slots[rows], None]).to(logits.device)
        return scores

    def sample(self, logits: Tensor, slots: Array) -> Sampled:
        """Return the next token of each row of logits [R, V], fp32."""
        scores = self.process(logits, slots)
        tokens, best = largest(scores)
        rows = np.flatnonzero(self._columns.uses[slots] & Use.SAMPLE)
        if rows.size:
            chosen = slots[rows]
            steps = self._sequences.lengths[chosen] - self._sequences.prompt_lengths[chosen]
            places, _ = draw(scores[rows], self._uniform.at(chosen, steps))
            tokens[rows] = places.cpu().numpy()
        errors: list[str | None] = [None] * len(slots)
        for row in np.flatnonzero(~np.isfinite(best)):
            errors[row], tokens[row] = "the model's logits hold NaN or infinity", FAILED
        return Sampled(tokens, [None] * len(slots), errors)

    def accept(self, slots: Array, tokens: Array) -> None:
        """Note the tokens [R] that `slots` [R] go on with; the caller appends them to `sequences`."""
