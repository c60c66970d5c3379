"""The engine's own slots, with ids of blocks instead of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.scheduler.slots import Slots

if TYPE_CHECKING:
    from trtkit.llm.sequences import Ints
    from trtkit.simulation.requests import SimulatedRequest


class SimulatedSlots(Slots):
    """Slots of tokens that are alike where prompts have the same blocks, and differ from all others elsewhere.

    block_tokens: of a block that has an id; 0: nothing is shared.
    """

    def __init__(self, count: int, max_length: int, block_tokens: int) -> None:
        super().__init__(count, max_length)
        self._block_tokens = block_tokens

    def start(self, request: SimulatedRequest, cached: int) -> None:
        """Begin a request's sequence in its slot, of whose tokens `cached` are there; its answer is known already."""
        slot, width = request.slot, self.sequences.tokens.shape[1]
        count = min(request.prompt_tokens + request.output_tokens, width)
        self.sequences.tokens[slot, :count] = self.tokens_of(request, count)
        self.cached[slot], self.sequences.lengths[slot] = cached, request.length

    def tokens_of(self, request: SimulatedRequest, count: int) -> Ints:
        """Return the first `count` tokens of a request."""
        own = (request.number + 1) << 32  # the first of its own: no other's, and no block's
        tokens: Ints = np.arange(own, own + count, dtype=np.int64)
        if self._block_tokens and request.hashes:
            shared = np.repeat(np.array(request.hashes, np.int64), self._block_tokens)
            shared = shared[: min(request.prompt_tokens, count)]
            tokens[: len(shared)] = shared
        return tokens
