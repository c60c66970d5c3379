from __future__ import annotations

import pytest

from trtkit.llm.scheduler.batch import CallForm, Chunk, group_chunks


@pytest.mark.parametrize(
    ("counts", "calls"),
    [
        ([8, 8, 8], [[8, 8, 8]]),
        ([8, 5], [[8, 5]]),  # 16 tokens instead of 13
        ([8, 4], [[8], [4]]),  # 16 instead of 12: a third more
        ([8, 8, 3, 3], [[8, 8], [3, 3]]),
    ],
)
def test_a_call_for_prompts_computes_at_most_a_quarter_more_than_their_tokens(
    counts: list[int], calls: list[list[int]]
) -> None:
    chunks = [Chunk(slot, 0, count) for slot, count in enumerate(counts)]
    assert [[chunk.count for chunk in group] for group in group_chunks(chunks, CallForm(64))] == calls
