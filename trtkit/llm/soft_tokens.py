"""Vectors in place of a prompt's placeholder tokens: what the language model sees of an image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class SoftTokens:
    """A prompt's vectors.

    places: [P], ascending positions in the prompt. vectors: [P, D], on the host. keys: [P], equal where vectors are,
    so that a cached prefix is shared with prompts of the same images only.
    rope_positions: [3, length], time, height and width of every token of the prompt; None for a model without M-RoPE.
    ends: [P], ascending, for tokens of images that see each other: how many of the prompt's tokens each sees, all up to
    the last one of its run of places. None if tokens see earlier ones only.
    encoded: what an encoder made of the request, by the input of the network that takes it; one key, at the first
    token, then says which request it was.
    """

    places: Ints
    vectors: torch.Tensor
    keys: Ints
    rope_positions: Ints | None = None
    ends: Ints | None = None
    encoded: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that there is one vector a place."""
        assert len(self.places) == len(self.vectors) == len(self.keys)

    def within(self, start: int, stop: int) -> slice:
        """Return the slice of vectors at positions from `start` to `stop`."""
        first, last = np.searchsorted(self.places, (start, stop)).tolist()
        return slice(first, last)

    def whole(self, start: int, stop: int) -> int:
        """Return where to end a piece of the prompt from `start`, at `stop` if no token in it sees one after it.

        Otherwise it ends before those tokens, or after the last that they see if they are the first of the piece.
        """
        part = self.within(start, stop)
        if self.ends is None or part.start == part.stop or self.ends[part.stop - 1] <= stop:
            return stop
        end = self.ends[part.stop - 1]
        first = int(self.places[np.searchsorted(self.ends, end)])
        return first if first > start else int(end)

    def rope_at(self, start: int, count: int) -> Ints | None:
        """Return M-RoPE's positions [3, count] from `start` on; after it, all axes count up from its largest."""
        if self.rope_positions is None:
            return None
        length = self.rope_positions.shape[1]
        known = self.rope_positions[:, start : start + count]
        first = int(self.rope_positions.max()) + 1 + max(start - length, 0)
        rest = first + np.arange(count - known.shape[1])
        return np.concatenate([known, np.broadcast_to(rest, (3, len(rest)))], 1)


def run_ends(indices: Ints) -> Ints:
    """Return, for each of ascending `indices` [P], the index after the last of its run of consecutive ones."""
    last = np.append(np.diff(indices) > 1, np.ones(min(len(indices), 1), np.bool_))
    ends: Ints = indices[last][np.cumsum(last) - last] + 1
    return ends


def runs_of(values: Ints, ends: Ints) -> list[Ints]:
    """Return `values` [P] grouped by runs of consecutive positions, as told apart by `run_ends`."""
    return np.split(values, np.flatnonzero(np.diff(ends)) + 1)


def pieces(length: int, size: int, soft: SoftTokens | None) -> Iterator[slice]:
    """Yield a prompt's chunks of `size` tokens, shorter or longer to keep images together."""
    start = 0
    while start < length:
        stop = min(start + size, length)
        stop = stop if soft is None else soft.whole(start, stop)
        yield slice(start, stop)
        start = stop


def shared_length(one: SoftTokens | None, other: SoftTokens | None) -> int | None:
    """Return the length of the prefix that two prompts of equal ids share; None if their vectors are all equal."""
    ends = []
    for mine, theirs in ((one, other), (other, one)):
        keys = {} if theirs is None else dict(zip(theirs.places.tolist(), theirs.keys.tolist(), strict=True))
        pairs = [] if mine is None else zip(mine.places.tolist(), mine.keys.tolist(), strict=True)
        ends += [index for index, key in pairs if keys.get(index) != key][:1]
    return min(ends, default=None)
