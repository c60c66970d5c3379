"""Logits, or soft tokens, of several prompts against the reference's: each position and each entry on its own scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtkit.reference import to_array
from trtkit.verification.compare import compare, worst
from trtkit.verification.report import Comparison, Output
from trtkit.verification.signal import spread

if TYPE_CHECKING:
    import torch

    from trtkit.verification.report import ComparisonLimits


def compare_rows(ours: torch.Tensor, theirs: torch.Tensor, limits: ComparisonLimits) -> Comparison:
    """Compare rows [S, V] of one prompt: a position is a slice of axis 1, as after a batch of 1."""
    return compare(to_array(ours.float())[None], to_array(theirs.float())[None], limits.floor)


class LogitsCompared:
    """The comparisons of all prompts so far."""

    def __init__(self, limits: ComparisonLimits) -> None:
        self._limits, self._comparisons, self._spreads = limits, list[Comparison](), list[float]()

    def add(self, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        """Take rows [S, V] of a prompt and the reference's."""
        self._comparisons.append(compare_rows(ours, theirs, self._limits))
        moved = spread(list(to_array(theirs.float())))
        self._spreads += [] if moved is None else [moved]

    def output(self) -> Output:
        """Return the worst of all, and the smallest difference between positions."""
        compared = worst(self._comparisons)
        spread = max(self._spreads, default=None)
        return Output(**vars(compared), passed=compared.is_within(self._limits), spread=spread)
