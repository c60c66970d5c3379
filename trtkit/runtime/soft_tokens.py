"""Vectors in a prompt where it has placeholder tokens: what the language model sees of an image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class SoftTokens:
    """A prompt's vectors.

    places: [P], ascending positions in the prompt. vectors: [P, D], on the host. keys: [P], equal where vectors are,
    so that a cached beginning is shared with prompts of the same images only.
    rope_positions: [3, length], time, height and width of every token of the prompt; None for a model without M-RoPE.
    encoded: what an encoder made of the request, by the input of the network that takes it; one key, at the first
    token, then says which request it was.
    """

    places: Ints
    vectors: torch.Tensor
    keys: Ints
    rope_positions: Ints | None = None
    encoded: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that there is one vector a place."""
        assert len(self.places) == len(self.vectors) == len(self.keys)

    def within(self, start: int, stop: int) -> slice:
        """Return which of the vectors stand at positions from `start` to `stop`."""
        first, last = np.searchsorted(self.places, (start, stop)).tolist()
        return slice(first, last)

    def rope_at(self, start: int, count: int) -> Ints | None:
        """Return M-RoPE's positions [3, count] from `start` on: behind the prompt all three go on from its largest."""
        if self.rope_positions is None:
            return None
        length = self.rope_positions.shape[1]
        known = self.rope_positions[:, start : start + count]
        first = int(self.rope_positions.max()) + 1 + max(start - length, 0)
        rest = first + np.arange(count - known.shape[1])
        return np.concatenate([known, np.broadcast_to(rest, (3, len(rest)))], 1)


def shared_length(one: SoftTokens | None, other: SoftTokens | None) -> int | None:
    """Return how many tokens two prompts of equal ids share, None where their vectors part nowhere."""
    ends = []
    for mine, theirs in ((one, other), (other, one)):
        keys = {} if theirs is None else dict(zip(theirs.places.tolist(), theirs.keys.tolist(), strict=True))
        own = [] if mine is None else zip(mine.places.tolist(), mine.keys.tolist(), strict=True)
        ends += [place for place, key in own if keys.get(place) != key][:1]
    return min(ends, default=None)
