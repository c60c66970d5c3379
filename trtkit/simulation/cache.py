"""Caches that hold nothing: what the scheduler asks of a SequenceCache, whose copies only take time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from trtkit.llm.cache import PageTables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from trtkit.llm.execution.saved import SavedSequence
    from trtkit.llm.sequences import Ints
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


class _Data(NamedTuple):
    nbytes: int


class _Saved(NamedTuple):
    data: _Data
    tokens: int


class _Rows:
    """Host memory without bytes."""

    def __getitem__(self, row: int) -> None:
        return None


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

    def memory(self, count: int) -> torch.Tensor:  # noqa: ARG002
        """Return rows without bytes."""
        return cast("torch.Tensor", _Rows())


class SimulatedCache:
    """What the scheduler asks of a SequenceCache without recurrent states: its page tables, and copies.

    Copies within a device are not timed; those to and from the host, and from other replicas, are.
    """

    has_states = has_slot_memory = False
    model = ""
    positions: Ints

    def __init__(self, options: ReplicaOptions, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self.pages: PageTables | None = None
        if options.pages is not None:
            self.pages = PageTables(options.slots, options.pages + 1, options.page_tokens, options.slot_tokens)

    def copy(self, source: int, target: int, tokens: slice) -> None:
        """Let `target` read the pages of `source`."""
        if self.pages is not None:
            self.pages.share(source, target, tokens.stop)

    def share(self, source: int, target: int, count: int) -> None:
        """Do nothing: slots hold nothing."""

    def load(self, slot: int, saved: SavedSequence) -> None:
        """Let the time pass that copying what another replica has computed takes."""
        if self.pages is not None:
            self.pages.release(slot)
            self.pages.grow(slot, saved.tokens)
        self._clock.now_s += saved.tokens * self._options.times.copy_s_per_token

    def blocks(self, tokens: int) -> _Blocks:
        """Return what copies blocks of so many tokens."""
        return _Blocks(tokens, self._options, self._clock)

    def form(self, tokens: int) -> _Form:
        """Return the size of a sequence's cache."""
        return _Form(tokens * self._options.token_bytes)

    def saved(self, tokens: int) -> SavedSequence:
        """Return the first tokens of a sequence as another replica sends them."""
        return cast("SavedSequence", _Saved(_Data(tokens * self._options.token_bytes), tokens))
