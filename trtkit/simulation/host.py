"""Host memory in counts: the engine's own bookkeeping of blocks, whose copies only take time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import torch

from trtkit.llm.cache.host.tier import HostOptions, HostTier

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trtkit.llm.cache import PageTables
    from trtkit.llm.execution.execution import SequenceCache
    from trtkit.llm.scheduler.costs import StepCosts
    from trtkit.llm.scheduler.slots import Slots
    from trtkit.simulation.replica_options import ReplicaOptions


@dataclass
class Clock:
    """An engine's time in seconds."""

    now_s: float = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


class _Form(NamedTuple):
    size_bytes: int


class _Blocks:
    """A CacheBlocks that holds nothing; the clock goes on while blocks are copied."""

    is_waited_for = True

    def __init__(self, tokens: int, options: ReplicaOptions, clock: Clock) -> None:
        self.tokens, self.size_bytes = tokens, tokens * options.token_bytes
        self._copy_s, self._clock = tokens * options.times.copy_s_per_token, clock

    def last_copy(self) -> None:
        """Return None: who copies measures it by the clock."""

    def places(self, slot: int, first: int, count: int) -> list[int]:  # noqa: ARG002
        """Return a place for each block; nothing is there."""
        return [0] * count

    def save(self, places: Sequence[int], rows: Sequence[torch.Tensor]) -> Callable[[], bool]:  # noqa: ARG002
        """Let the time pass that copying blocks to the host takes."""
        self._clock.now_s += len(places) * self._copy_s
        return lambda: True

    def load(self, places: Sequence[int], rows: Sequence[torch.Tensor]) -> None:  # noqa: ARG002
        """Let the time pass that copying blocks from the host takes."""
        self._clock.now_s += len(places) * self._copy_s

    def settle(self) -> None:
        """Do nothing: no copy is under way."""

    def memory(self, count: int) -> torch.Tensor:
        """Return rows without bytes."""
        return torch.empty(count, 0, dtype=torch.uint8)


class _Cache:
    """What host memory asks of a SequenceCache without recurrent states."""

    has_states = False

    def __init__(self, options: ReplicaOptions, pages: PageTables | None, clock: Clock) -> None:
        self.pages, self._options, self._clock = pages, options, clock

    def blocks(self, tokens: int) -> _Blocks:
        """Return what copies blocks of so many tokens."""
        return _Blocks(tokens, self._options, self._clock)

    def form(self, tokens: int) -> _Form:
        """Return the size of a sequence's cache."""
        return _Form(tokens * self._options.token_bytes)


def host_tier(
    options: ReplicaOptions, slots: Slots, pages: PageTables | None, clock: Clock, costs: StepCosts
) -> HostTier:
    """Return an engine's host memory for `host_tokens` tokens."""
    cache = cast("SequenceCache", _Cache(options, pages, clock))
    limits = HostOptions(options.host_tokens * options.token_bytes, options.host_block_tokens)
    return HostTier(cache, slots, limits, clock, costs)
