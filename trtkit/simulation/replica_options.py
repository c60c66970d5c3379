"""Options of a simulated engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.cache.page_groups import like_lengths
from trtkit.llm.scheduler import DEFAULT_SCHEDULE
from trtkit.network.input_spec import kv_window
from trtkit.planning.paged import read_window

if TYPE_CHECKING:
    from trtkit.llm.scheduler import ScheduleOptions
    from trtkit.llm.sequences import Ints
    from trtkit.simulation.times import StepTimes


@dataclass(frozen=True)
class ReadWindows:
    """Windows of cached tokens that steps copy and then read: each sequence of a call as many as the longest one needs.

    slot_tokens: of the longest sequence. page_tokens: tokens per page; 0 for windows of linear caches, of which a step
    has one for all. call_tokens: copied tokens that cost as much as the weights which another call reads; None if all
    sequences share a call.
    """

    slot_tokens: int
    page_tokens: int = 0
    call_tokens: int | None = None

    def of(self, tokens: int) -> int:
        """Return how many tokens are read for a sequence of `tokens` tokens that is the longest of its call."""
        return read_window(tokens, self.slot_tokens, self.page_tokens)

    def calls(self, lengths: Ints) -> list[tuple[int, int]]:
        """Return each call's rows in a decode step, and the tokens read per row. lengths: [R], with new tokens."""
        groups = None if self.call_tokens is None else like_lengths(lengths, self.call_tokens)
        if groups is None:
            return [(len(lengths), self.of(int(lengths.max())))]
        parts = (lengths[groups == group] for group in np.unique(groups))
        return [(len(part), self.of(int(part.max()))) for part in parts]

    def steps_alike(self, lengths: Ints) -> int:
        """Return how many steps pass before a sequence outgrows its power of two."""
        ends = np.array([kv_window(length, self.slot_tokens) for length in lengths.tolist()])
        return max(1, int((ends - lengths).min()) + 1)


@dataclass(frozen=True)
class ReplicaOptions:
    """An engine. slots: sequences at once. slot_tokens: the longest sequence. max_prefill: new tokens of a call.

    budget: new tokens of a step; those of a call if None. pages: of page_tokens tokens; None for slots of full length.
    block_tokens: of prompts' blocks that are shared; 0 if nothing is. host_tokens: that host memory has room for, each
    of token_bytes; host_block_tokens: of slots' caches that it keeps as one. min_shared_tokens: the shortest prefix
    worth sharing. gpus: that share the model. is_packed: whether prompts share the calls of decoding slots.
    token_tile: tokens that such a call computes together. copies_in_background: whether steps run while caches are
    copied to the host and back. windows: what steps copy of caches before they read it; None if they read what is
    cached, or whole slots. in_blocks: whether requests start together once all earlier ones have ended, as for stages
    in turn.
    """

    times: StepTimes
    slots: int
    slot_tokens: int
    max_prefill: int = 512
    budget: int | None = None
    pages: int | None = None
    page_tokens: int = 16
    block_tokens: int = 0
    host_tokens: int = 0
    token_bytes: int = 1
    host_block_tokens: int = 16
    min_shared_tokens: int = 16
    schedule: ScheduleOptions = DEFAULT_SCHEDULE
    gpus: int = 1
    is_packed: bool = False
    token_tile: int = 1
    copies_in_background: bool = False
    windows: ReadWindows | None = None
    in_blocks: bool = False
