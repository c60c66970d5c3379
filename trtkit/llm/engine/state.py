"""An engine's parts that carry out batches: decoder, sampler, and the stop tokens and watchers of each slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trtkit.llm.engine.beams import BeamSearch
from trtkit.llm.engine.transfers import TransferRunner
from trtkit.llm.sampling.sampler import Sampler
from trtkit.llm.scheduler.batch import SlotLeft, SlotMoved, SlotTaken

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.engine.request import Request
    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.scheduler.scheduler import Scheduler
    from trtkit.llm.scheduler.slots import Bools
    from trtkit.llm.sequences import Ints

_NO_TOKEN = -1


class State:
    """An engine's decoder, caches and sampler, kept in step with its scheduler's slots.

    stops: [slots, K], stop tokens, padded with -1. is_watched: [slots], whether every token must be reported.
    has_kernel: whether the Triton kernel samples.
    """

    def __init__(self, execution: DecoderExecution, scheduler: Scheduler[Request], *, has_kernel: bool = False) -> None:
        self.execution, self.scheduler = execution, scheduler
        self.slots, self.running, self.statistics = scheduler.slots, scheduler.running, scheduler.statistics
        self.stops: Ints = np.full((execution.slots, 1), _NO_TOKEN, np.int64)
        self.is_watched: Bools = np.zeros(execution.slots, np.bool_)
        self.transfers = TransferRunner(execution.cache, scheduler, scheduler.clock)
        tokens = execution.tokens if has_kernel else None
        self.sampler = Sampler(self.slots.sequences, execution.vocab_size, tokens)

    def apply_changes(self) -> None:
        """Apply the scheduler's slot changes to the sampler, stop tokens and watchers."""
        changes = self.scheduler.changes
        for change in changes:
            if isinstance(change, SlotTaken):
                self._begin(change.slot, change.request)
            elif isinstance(change, SlotLeft):
                self.sampler.release(change.slot)
            elif isinstance(change, SlotMoved):
                self.sampler.copy(change.source, change.target)
                self.stops[change.target] = self.stops[change.source]
                self.is_watched[change.target] = self.is_watched[change.source]
                self.sampler.release(change.source)
        changes.clear()

    def fork(self, copies: Sequence[tuple[int, int]]) -> None:
        """Copy each source's sequence, cache and sampler state to its target now: which depends on drawn tokens."""
        for source, target in copies:
            self.scheduler.memory.fork(source, target)
            self.sampler.copy(source, target)
        if copies:
            self.transfers.run(self.scheduler.copies())

    def _begin(self, slot: int, request: Request) -> None:
        """Set a slot up to draw a request's tokens."""
        request.prompt_logprobs.clear()
        self.sampler.admit(slot, request.settings)
        stops = request.settings.stop_ids
        missing = len(stops) - self.stops.shape[1]
        if missing > 0:
            self.stops = np.pad(self.stops, ((0, 0), (0, missing)), constant_values=_NO_TOKEN)
        self.stops[slot] = _NO_TOKEN
        self.stops[slot, : len(stops)] = stops
        self.is_watched[slot] = request.watcher is not None or request.settings.params.logprobs is not None
        if (group := self.running.groups.get(slot)) is not None:
            most = int(self.running.ends[slot] - self.slots.sequences.prompt_lengths[slot])
            group.search = BeamSearch(request.settings, most)
