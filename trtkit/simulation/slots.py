"""The engine's own slots, with ids of blocks in the place of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.runtime.generation.slots import Slots

if TYPE_CHECKING:
    from trtkit.runtime.sequences import Ints
    from trtkit.simulation.requests import SimulatedRequest


class SimulatedSlots(Slots):
    """Slots whose tokens are written only if prompts share beginnings.

    block_tokens: of a block that has an id; 0: nothing is shared.
    """

    def __init__(self, count: int, max_length: int, block_tokens: int) -> None:
        super().__init__(count, max_length)
        self._free, self._block_tokens = count, block_tokens

    @property
    def free(self) -> int:
        """Slots that nobody runs in."""
        return self._free

    def shared(self, request: SimulatedRequest, least: int) -> tuple[int, int]:
        """Return the slot whose cache begins most like a request's prompt, and for how many tokens, 0 below `least`."""
        source, common = self.shared_prefix(self._tokens_of(request))
        return source, common if common >= least else 0

    def place(self, request: SimulatedRequest, source: int, shared: int, cached: int) -> int:
        """Give a request a slot, of whose tokens `cached` are there; return it."""
        slot = self.take(source, shared)
        self._free -= 1
        self.cached[slot], self.sequences.lengths[slot] = cached, request.length
        if self._block_tokens:
            self.sequences.tokens[slot, : request.length] = self._tokens_of(request)
        return slot

    def vacate(self, request: SimulatedRequest, cached: int) -> None:
        """End what runs in a slot, of whose tokens `cached` stay."""
        slot, written = request.slot, request.length
        if self._block_tokens and cached > written:
            own = _own(request)
            self.sequences.tokens[slot, written:cached] = np.arange(own + written, own + cached)
        self.cached[slot] = cached
        self.leave(slot, 1)
        self._free += 1

    def _tokens_of(self, request: SimulatedRequest) -> Ints:
        """Return tokens that are alike where prompts have the same blocks, and differ from all others elsewhere."""
        own = _own(request)
        tokens = np.arange(own, own + request.length, dtype=np.int64)
        shared = np.repeat(np.array(request.hashes, np.int64), self._block_tokens)[: request.prompt_tokens]
        tokens[: len(shared)] = shared
        return tokens


def _own(request: SimulatedRequest) -> int:
    """Return the first of a request's own tokens: no other's, and no block's."""
    return (request.number + 1) << 32
