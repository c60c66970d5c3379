"""Caches that hold nothing: what decisions about caches depend on, and copies that only take time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

from trtkit.llm.cache import PageTables
from trtkit.llm.cache.transfers import AwaitBlocks, DropSequence, LoadBlocks, LoadSequence, SaveBlocks

if TYPE_CHECKING:
    from trtkit.llm.cache.host import BlockTier
    from trtkit.llm.cache.host.tier import HostTier
    from trtkit.llm.execution.saved import SavedSequence
    from trtkit.llm.scheduler.batch import Batch
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

    def first(self, tokens: int) -> _Saved:
        return _Saved(_Data(self.data.nbytes // self.tokens * tokens), tokens)


class SimulatedCache:
    """A CacheLayout without recurrent states: its page tables, and what copies take.

    Copies within a device are not timed; those to and from the host, and from other replicas, are. In the background
    one runs after the other, and steps go on unless they need what is loaded, or more is saved than the device stages.
    """

    has_states = has_slot_memory = False
    block_multiple = 1
    positions: Ints

    def __init__(self, options: ReplicaOptions, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self.pages: PageTables | None = None
        if options.pages is not None:
            self.pages = PageTables(options.slots, options.pages + 1, options.page_tokens, options.slot_tokens)
        self._copied_s = 0.0  # when the last copy in the background is over
        self._arrivals: dict[int, float] = {}

    def form(self, tokens: int) -> _Form:
        """Return the size of a sequence's cache."""
        return _Form(tokens * self._options.token_bytes)

    def saved(self, tokens: int) -> SavedSequence:
        """Return the first tokens of a sequence as another replica sends them."""
        return cast("SavedSequence", _Saved(_Data(tokens * self._options.token_bytes), tokens))

    def run(self, batch: Batch, host: HostTier) -> None:
        """Let the time pass that a batch's copies between host and device take, and note what saves have taken."""
        for transfer in batch.transfers:
            match transfer:
                case SaveBlocks() | LoadBlocks() if host.blocks is not None:
                    self._copy(transfer, host.blocks, host.link.staged_bytes)
                case AwaitBlocks(number):
                    self._clock.now_s = max(self._clock.now_s, self._arrivals[number])
                    self._arrivals = {later: due_s for later, due_s in self._arrivals.items() if later > number}
                case LoadSequence(tokens=tokens):
                    self._clock.now_s += tokens * self._options.times.copy_s_per_token
                case DropSequence(number):
                    del host.saved.data[number]
                case _:
                    pass

    def _copy(self, transfer: SaveBlocks | LoadBlocks, blocks: BlockTier, staged_bytes: int) -> None:
        """Copy blocks to the host or back."""
        count, clock = len(transfer.places), self._clock
        seconds = count * (blocks.tokens * self._options.times.copy_s_per_token)
        if isinstance(transfer, SaveBlocks):
            blocks.rate.note(seconds, count * blocks.size_bytes)
        if not self._options.copies_in_background:
            clock.now_s += seconds
            return
        self._copied_s = max(clock.now_s, self._copied_s) + seconds
        if isinstance(transfer, LoadBlocks):
            self._arrivals[transfer.number] = self._copied_s
        else:
            staged_s = staged_bytes / blocks.size_bytes * blocks.tokens * self._options.times.copy_s_per_token
            clock.now_s = max(clock.now_s, self._copied_s - staged_s)
