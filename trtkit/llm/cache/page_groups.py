"""Which rows of a call run together: those of similar length, since each row reads as many pages as the longest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.network.input_spec import kv_window

if TYPE_CHECKING:
    from trtkit.llm.sequences import Ints

_ANY = 1 << 62


def like_lengths(lengths: Ints, call_tokens: int) -> Ints | None:
    """Return each row's group so that the call takes the least time; None if a single group is best.

    A group of n rows reads n times the window of its longest row, plus the weights, which cost as much as `call_tokens`
    tokens. lengths: [R], tokens of each row including new ones. Idle rows, of length 0, get group -1.
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
    )  # for the first rows, by count: the least cost, and where their last group starts
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
