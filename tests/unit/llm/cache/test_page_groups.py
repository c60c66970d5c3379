"""Rows of like length run together: less is read than by any other division into groups."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trtkit.llm.cache.page_groups import like_lengths
from trtkit.network.input_spec import kv_window


def reads(groups: list[list[int]], call_tokens: int) -> int:
    return sum(len(group) * kv_window(int(max(group)), 1 << 30) + call_tokens for group in groups)


def fewest_reads(lengths: list[int], call_tokens: int) -> int:
    """Return the least that any division of the lengths, in order, reads: all of them are tried."""
    ordered, places = sorted(lengths), range(1, len(lengths))
    divisions = (cuts for count in range(len(lengths)) for cuts in combinations(places, count))
    groups = ([list(part) for part in np.split(ordered, cuts)] for cuts in divisions)
    return min(reads(each, call_tokens) for each in groups)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=8), st.integers(0, 20_000))
def test_no_other_division_reads_less(lengths: list[int], call_tokens: int) -> None:
    groups, real = like_lengths(np.array(lengths), call_tokens), [length for length in lengths if length]
    if groups is None:
        assert not real or reads([real], call_tokens) == fewest_reads(real, call_tokens)
        return
    assert [group < 0 for group in groups.tolist()] == [length == 0 for length in lengths]
    chosen = [[lengths[row] for row in (groups == group).nonzero()[0]] for group in range(groups.max() + 1)]
    assert all(chosen)
    assert reads(chosen, call_tokens) == fewest_reads(real, call_tokens)


def test_one_long_row_does_not_slow_the_short_ones() -> None:
    lengths = np.array([100, 2000, 90, 0, 120])
    assert like_lengths(lengths, 0).tolist() == [0, 1, 0, -1, 0]  # type: ignore[union-attr]
    assert like_lengths(lengths, 10_000) is None  # another pass over the weights would cost more
