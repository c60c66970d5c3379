from __future__ import annotations

import numpy as np
import pytest

from trtkit.llm.scheduler.batch import CallForm, Chunk, group_chunks, idle_tokens, in_whole_tiles
from trtkit.llm.scheduler.slots import Slots


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


@pytest.mark.parametrize(
    ("rows", "counts", "cut"),
    [
        (8, [512], [504]),  # 8 + 504 = 8 tiles of 64
        (0, [512], [511]),  # an engine's call has a row that decodes, if only an idle one
        (8, [504], [504]),
        (8, [240], [240]),  # 3 tiles: reading weights takes longer than computing a fourth
        (300, [100], [100]),  # 84 tokens for 6 tiles are fewer per tile than 100 for 7
        (295, [100], [89]),  # 89 for 6 are more
        (375, [60], [60]),
        (2, [300, 300], [300, 274]),  # the last chunk is cut
        (2, [300, -300], [274, -300]),  # negative: the prompt's end, which is not cut
        (2, [-300], [-300]),
        (2, [300, 5], [249, 5]),  # 51 tokens are too many, and the last chunk has 5
    ],
)
def test_a_prompt_that_goes_on_is_cut_to_whole_tiles(rows: int, counts: list[int], cut: list[int]) -> None:
    slots = Slots(3, 1024)
    slots.sequences.lengths[: len(counts)] = [1000 if count > 0 else 100 - count for count in counts]
    chunks = [Chunk(slot, 100, abs(count)) for slot, count in enumerate(counts)]
    found = in_whole_tiles(chunks, rows, 64, slots)
    assert [chunk.count for chunk in found] == list(map(abs, cut))
    assert all((one.slot, one.start) == (other.slot, other.start) for one, other in zip(found, chunks, strict=True))
    tokens = max(rows, 1) + sum(chunk.count for chunk in found)
    assert idle_tokens(rows, sum(chunk.count for chunk in found), 64) == np.ceil(tokens / 64) * 64 - tokens + (not rows)
    assert idle_tokens(rows, sum(counts), 1) == 0
