"""Which rank caches which position."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trtkit.models.context import ALL_POSITIONS, ContextShare, context_of
from trtkit.models.share import WHOLE, Share

RANKS, BLOCKS, TOKENS = st.integers(2, 9), st.integers(1, 20), st.integers(0, 300)


@given(RANKS, BLOCKS, TOKENS)
def test_every_position_is_on_one_rank_and_ranks_have_equally_many(ranks: int, block: int, tokens: int) -> None:
    positions, counts = torch.arange(tokens), []
    owners = torch.zeros(tokens, dtype=torch.int64)
    for rank in range(ranks):
        share = ContextShare(Share(rank, ranks), block)
        here = share.is_here(positions)
        owners += here
        counts.append(share.count(tokens))
        assert counts[-1] == int(here.sum())
        assert share.places(positions[here]).tolist() == list(range(counts[-1]))
        assert share.positions(counts[-1]).tolist() == positions[here].tolist()
    assert bool((owners == 1).all())
    assert max(counts) - min(counts) <= block


@given(RANKS, BLOCKS, st.integers(1, 300))
def test_linear_caches_have_a_place_that_no_token_of_a_slot_takes(ranks: int, block: int, tokens: int) -> None:
    shares = [ContextShare(Share(rank, ranks), block) for rank in range(ranks)]
    (length,) = {share.linear_length(tokens) for share in shares}
    for share in shares:
        assert share.positions(length)[-1] >= tokens
        assert length >= share.count(tokens) + 1


def test_a_block_that_is_saved_is_equally_large_on_all_ranks_wherever_it_begins() -> None:
    for ranks, block in ((2, 16), (3, 5), (8, 2)):
        shares = [ContextShare(Share(rank, ranks), block) for rank in range(ranks)]
        size = shares[0].multiple
        parts = {share.count((turn + 1) * size) - share.count(turn * size) for share in shares for turn in range(4)}
        assert parts == {block}


@pytest.mark.parametrize("tokens", [0, 1, 17])
def test_one_rank_has_all_positions(tokens: int) -> None:
    assert context_of(WHOLE, 16).is_whole
    assert ALL_POSITIONS.count(tokens) == ALL_POSITIONS.linear_length(tokens) == tokens
    assert np.array_equal(ALL_POSITIONS.positions(tokens), np.arange(tokens))


def test_pages_are_dealt_out_within() -> None:
    """Whatever page holds tokens, each rank has as many of them: page tables are the same on all ranks."""
    share = context_of(Share(1, 4), 32)
    assert share.block == 8
    assert share.positions(16).tolist() == [*range(8, 16), *range(40, 48)]
