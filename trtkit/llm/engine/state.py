"""What every part of the engine works on: slots, who runs in them, the sampler, and what has ended."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.llm.cache.host.tier import NO_HOST, HostOptions, HostTier
from trtkit.llm.sampling.sampler import Sampler
from trtkit.llm.scheduler.costs import StepCosts
from trtkit.llm.scheduler.request import Finished
from trtkit.llm.scheduler.running import Running
from trtkit.llm.scheduler.slots import Slots
from trtkit.llm.sequences import UNKNOWN, keyed
from trtkit.llm.soft_tokens import shared_length

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.llm.adapters import Adapters
    from trtkit.llm.cache.imports import Imports
    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.scheduler.request import FinishReason, Hypothesis, Request
    from trtkit.llm.sequences import Ints
    from trtkit.llm.soft_tokens import SoftTokens


@dataclass
class Statistics:
    """What an engine has done. prompt_tokens: computed, and those that states read again after a wrong guess;
    reused_tokens: of prompts, found in a cache; imported_tokens: those of them that another engine computed.

    restored_tokens: of prompts, those that were found in host memory; file_tokens: those of them that files had.

    swaps: preemptions whose sequence the host keeps; others are computed again.

    synchronous_steps: decoding steps that the host waited for before it could launch the next: the engine does not
    overlap, or a row is a beam, or a user's function has to see its logits. discarded_tokens: drawn after an end.
    """

    steps: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    imported_tokens: int = 0
    restored_tokens: int = 0
    file_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    swaps: int = 0
    synchronous_steps: int = 0
    discarded_tokens: int = 0


@dataclass(eq=False)
class State:
    """An engine's memory. reserve: places at a slot's end that idle rows may overwrite. imports: see Imports.
    host_options: of host memory for what caches have no room for.

    has_kernel: whether the Triton kernel samples. clock: gives the time, in seconds. costs: what steps have taken.
    adapters: None if the network takes none.
    """

    execution: DecoderExecution
    reserve: int
    imports: Imports
    host_options: HostOptions = NO_HOST
    has_kernel: bool = False
    clock: Callable[[], float] = time.monotonic
    costs: StepCosts = field(default_factory=StepCosts)
    adapters: Adapters | None = None
    statistics: Statistics = field(default_factory=Statistics)
    finished: list[Finished] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make what depends on the number of slots."""
        cache = self.execution.cache
        self.pages = cache.pages
        self.finds_by_content = cache.pages is not None and not cache.has_slot_memory
        self.slots = Slots(
            self.execution.slots, self.execution.max_length, cache.positions if cache.has_states else None
        )
        self.host = HostTier(cache, self.slots, self.host_options, self.clock, self.costs)
        self.running = Running(self.execution.slots)
        tokens = self.execution.tokens if self.has_kernel else None
        self.sampler = Sampler(self.slots.sequences, self.execution.vocab_size, tokens)

    def fork(self, source: int, target: int) -> None:
        """Make `target` the same sequence as `source`: its cache, but for what is the same already, and its draws."""
        slots, tokens = self.slots, self.slots.sequences.tokens
        length = int(slots.cached[source])
        keys = slots.sequences.adapter_keys
        known = min(length, int(slots.cached[target])) if keys[source] == keys[target] else 0
        is_other = tokens[source, :known] != tokens[target, :known]
        start = int(is_other.argmax()) if is_other.any() else known
        alike = shared_length(slots.sequences.soft.get(source), slots.sequences.soft.get(target))
        start = start if alike is None else min(start, alike)
        self.execution.cache.copy(source, target, slice(start, length))
        slots.sequences.copy(source, target)
        slots.cached[target] = length
        self.sampler.copy(source, target)

    def keep_beginning(self, slot: int, start: int, spacing: int) -> None:
        """Save a prompt's states where a piece of it, from `start`, has passed a multiple of `spacing` tokens."""
        count = int(self.slots.cached[slot])
        if not self.execution.cache.has_states or count // spacing == start // spacing:
            return
        if count < self.slots.sequences.prompt_lengths[slot]:
            self.host.keep(slot)

    def can_hold(self, request: Request) -> bool:
        """Whether a request's adapter is in the device's memory, or has room there."""
        adapter = request.adapter
        return self.adapters is None or adapter is None or self.adapters.can_hold(adapter, self.running.adapters)

    def is_harmless(self, request: Request, first: Request) -> bool:
        """Whether a request keeps no ranks that `first` waits for: it has no adapter, or one that may stay in use."""
        running, adapter = self.running.adapters, first.adapter
        if self.adapters is None or adapter is None or request.adapter is None:
            return True
        return request.adapter.id.number in self.adapters.beside(adapter, running)

    def hold(self, request: Request) -> None:
        """Bring the adapter of a request that `can_hold` into the device's memory."""
        if self.adapters is not None and request.adapter is not None:
            self.adapters.hold(request.adapter, self.running.adapters)

    def leave(self, slot: int) -> Request:
        """Free a slot; return who ran in it."""
        self.vacate(slot)
        return self.running.remove(slot)

    def shared_prefix(self, ids: Ints, soft: SoftTokens | None = None, adapter_key: int = 0) -> tuple[int, int]:
        """Return the slot whose cache begins most like a prompt, and for how many tokens; pages are found in none."""
        if self.pages is not None and self.finds_by_content:
            return 0, len(self.pages.match(keyed(ids, adapter_key), soft)) * self.pages.page_tokens
        return self.slots.shared_prefix(ids, soft, adapter_key)

    def release(self, request: Request) -> None:
        """Let go of what the host keeps for a request."""
        self.host.release(request.claims)
        request.claims = []

    def vacate(self, slot: int) -> None:
        """Free a slot. What it holds of a sequence can still be shared, in the slot or in its pages."""
        self.sampler.release(slot)
        self.register(slot)
        self.slots.leave(slot, self.reserve)
        if self.finds_by_content:
            self.empty(slot)

    def register(self, slot: int) -> None:
        """Let other requests find what a slot has cached, as far as the host knows its tokens."""
        if self.pages is not None and self.finds_by_content:
            sequences = self.slots.sequences
            ids = sequences.tokens[slot, : self.slots.cached[slot]]
            unknown = (ids == UNKNOWN).nonzero()[0]
            ids = sequences.keyed(slot, ids[: unknown[0]] if unknown.size else ids)
            self.pages.register(slot, ids, sequences.soft.get(slot))

    def put_away(self, slot: int) -> None:
        """Let the host keep what a slot has, which will be overwritten; pages are kept when they are."""
        if not self.finds_by_content:
            self.host.keep(slot)

    def take_over(self, slot: int, common: int = 0) -> None:
        """Let a slot begin with its first `common` tokens; the host keeps what else it had."""
        if common < self.slots.cached[slot]:
            self.put_away(slot)
        if not common:
            self.empty(slot)

    def empty(self, slot: int) -> None:
        """Forget what a slot has cached."""
        self.slots.cached[slot] = 0
        if self.pages is not None:
            self.pages.release(slot)

    def finish(self, slot: int, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """End the request that runs in a slot, in all its slots."""
        group = self.running.groups.get(slot)
        generated = self.slots.sequences.known(slot)
        if group is None:
            self.report(self.leave(slot), generated, reason, stop_reason)
            return
        for each in group.all_slots:
            self.leave(each)
        beams = group.search.hypotheses
        self.report(group.request, beams[0].token_ids if beams else generated, reason, stop_reason, beams)

    def report(
        self,
        request: Request,
        token_ids: list[int],
        reason: FinishReason,
        stop_reason: int | str | None = None,
        beams: tuple[Hypothesis, ...] = (),
    ) -> None:
        """Put a request that has ended among the next step's results."""
        request.metrics.finished_s = self.clock()
        self.release(request)
        self.finished.append(Finished(request, token_ids, reason, stop_reason, beams))

    def ready(self) -> Ints:
        """Return the slots, in order, whose last token alone is not in the cache, and that have more to generate."""
        lengths = self.slots.sequences.lengths
        is_ready = (self.slots.cached == lengths - 1) & (lengths < self.running.ends)
        ready: Ints = (self.slots.is_running & is_ready).nonzero()[0]
        return ready

    def unread(self) -> Ints:
        """Return the slots, in order, with more to read than that."""
        is_behind = self.slots.cached < self.slots.sequences.lengths - 1
        unread: Ints = (self.slots.is_running & is_behind).nonzero()[0]
        return unread
