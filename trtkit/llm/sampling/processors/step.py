"""The rows of one call as processors see them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.device import to_device

if TYPE_CHECKING:
    from torch import Tensor

    from trtkit.arrays import Array
    from trtkit.llm.sampling.columns import Columns, SlotState, Use
    from trtkit.llm.sequences import Sequences


@dataclass
class SamplingStep:
    """Scores [R, V] that processors write into, and whose they are.

    slots, uses: [R]. states: of every slot. errors: rows whose request cannot go on, and why.
    """

    scores: Tensor
    slots: Array
    uses: Array
    columns: Columns
    states: list[SlotState | None]
    sequences: Sequences
    errors: dict[int, str] = field(default_factory=dict)

    def rows(self, use: Use) -> Array:
        """Return the rows that need something done."""
        return np.flatnonzero(self.uses & int(use))

    def states_of(self, use: Use) -> list[tuple[int, SlotState]]:
        """Return the rows that need something done with the states of their slots."""
        states = [(int(row), self.states[self.slots[row]]) for row in self.rows(use)]
        return [(row, state) for row, state in states if state is not None]

    def steps(self, rows: Array) -> Array:
        """Return how many tokens each of `rows` has generated."""
        slots = self.slots[rows]
        return self.sequences.lengths[slots] - self.sequences.prompt_lengths[slots]

    def pairs(self, rows: Array, generated: bool) -> tuple[Array, Array]:
        """Return every known token of `rows`, or those generated, as (row, token) pairs, repeated as they occur."""
        slots = self.slots[rows]
        lengths = self.sequences.lengths[slots]
        begins = self.sequences.prompt_lengths[slots] if generated else np.zeros_like(lengths)
        first, last = int(begins.min()), int(lengths.max())
        tokens = self.sequences.tokens[slots, first:last]
        positions = np.arange(first, last)
        # A model may know tokens that it has no logits for.
        there = (positions >= begins[:, None]) & (positions < lengths[:, None]) & (tokens < self.scores.shape[1])
        row_of, _ = np.nonzero(there)
        return rows[row_of], tokens[there]

    def tensor(self, values: Array) -> Tensor:
        """Return an array where the scores are."""
        return to_device(np.ascontiguousarray(values), self.scores.device)
