"""Which rows of a call run together: those of like length, since all of them read as many pages as the longest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.input_spec import kv_window

if TYPE_CHECKING:
    from trtkit.llm.sequences import Ints

_ANY = 1 << 62


def like_lengths(lengths: Ints, call_tokens: int) -> Ints | None:
    """Return a group for each row of a call, so that all is read in the shortest time; None if one is best.

    A group of n rows reads n times the window of its longest, and as much as `call_tokens` tokens besides: weights.
    lengths: [R], tokens of each row with its new ones. Rows of none are in no group: -1.
    """
    real = lengths[lengths > 0]
    if not real.size or kv_window(int(real.min()), _ANY) == kv_window(int(real.max()), _ANY):
        return None
    windows = np.array([kv_window(length, _ANY) if length else 0 for length in lengths.tolist()], np.int64)
    sizes, counts = np.unique(windows[windows > 0], return_counts=True)
    rows = np.r_[0, np.cumsum(counts)]
    best, firsts = (
        [0],
        [],
    )  # of the rows up to each size: the fewest bytes that are read, and where the last group begins
    for stop, size in enumerate(sizes.tolist(), 1):
        reads = [best[first] + int(rows[stop] - rows[first]) * size + call_tokens for first in range(stop)]
        firsts.append(int(np.argmin(reads)))
        best.append(min(reads))
    starts, stop = [], len(sizes)
    while stop:
        stop = firsts[stop - 1]
        starts.append(int(sizes[stop]))
    if len(starts) == 1:
        return None
    group: Ints = np.searchsorted(np.array(starts[::-1]), windows, side="right") - 1
    return group
