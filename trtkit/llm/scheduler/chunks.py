"""Which pieces of which prompts a step computes, and which of them in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.execution import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.scheduler.slots import Slots


@dataclass(frozen=True)
class Chunk:
    """The next tokens of one slot: from `start` on, `count` of them."""

    slot: int
    start: int
    count: int


def plan_chunks(waiting: Sequence[int], slots: Slots, budget: int, largest: int) -> list[Chunk]:
    """Return what the slots `waiting`, in the order of their turns, get of a budget of tokens.

    An image that has to be computed whole may exceed the budget.
    """
    chunks = []
    for slot in waiting:
        if budget <= 0:
            break
        start = int(slots.cached[slot])
        count = min(int(slots.sequences.lengths[slot]) - start, largest, budget)
        soft = slots.sequences.soft.get(slot)
        count = count if soft is None else soft.whole(start, start + count) - start
        chunks.append(Chunk(slot, start, count))
        budget -= count
    return chunks


def group_chunks(chunks: Sequence[Chunk], max_length: int) -> list[list[Chunk]]:
    """Return chunks that one call takes together: neighbours of like size, so that padding stays small and fits."""
    groups: list[list[Chunk]] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.slot):
        if groups and _fit([*groups[-1], chunk], max_length):
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


def _fit(group: list[Chunk], max_length: int) -> bool:
    """Whether a group's last chunk may join the others."""
    counts = [chunk.count for chunk in group]
    is_neighbour = group[-1].slot == group[-2].slot + 1
    has_room = max(chunk.start for chunk in group) + max(counts) <= max_length
    return is_neighbour and has_room and len(counts) * max(counts) <= 2 * sum(counts)


def prefill_call(group: Sequence[Chunk], slots: Slots) -> Call:
    """Return the call that computes neighbouring chunks."""
    starts, counts = (np.array([getattr(chunk, name) for chunk in group], np.int64) for name in ("start", "count"))
    ids = np.zeros((len(group), int(counts.max())), np.int64)
    for row, chunk in zip(ids, group, strict=True):
        row[: chunk.count] = slots.sequences.tokens[chunk.slot, chunk.start : chunk.start + chunk.count]
    first = group[0].slot
    adapters = slots.sequences.adapters[first : first + len(group)]
    return Call(first, ids, starts, counts, slots.sequences.soft, adapters=adapters)
