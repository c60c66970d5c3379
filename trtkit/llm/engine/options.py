"""How requests share a machine."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.errors import RequestError
from trtkit.llm.cache.host.tier import HostOptions
from trtkit.llm.scheduler import DEFAULT_SCHEDULE, ScheduleOptions
from trtkit.llm.scheduler.memory import SchedulerOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.llm.cache.host.tier import CacheFolder
    from trtkit.llm.engine.proposers import Proposer
    from trtkit.llm.execution import DecoderExecution


@dataclass(frozen=True)
class EngineOptions:
    """How requests share the machine.

    token_budget: new tokens of one step, decoding and prompts together; the engine's prefill length where None.
    max_queue: requests that may wait; None: any number. min_shared_tokens: the shortest prefix worth sharing.
    proposer: guesses tokens ahead, for speculative decoding.
    most_imported_bytes: host memory for prefixes that other engines computed.
    host_cache_bytes: host memory for what caches have no room for: preempted requests first, then prefixes of
    prompts. host_block_tokens: how much of a slot's cache it keeps as one; pages are kept as they are.
    cache_folder: for what host memory has, which outlives the engine.
    snapshot_tokens: how far apart the prefixes end that recurrent models save on their way.
    overlap: launch a step before the host knows the last one's tokens; None: where the decoder computes meanwhile.
    kernel: sample with the Triton kernel, which is interpreted on a CPU; None: where logits are on a GPU.
    clock: gives the time in seconds, for metrics, deadlines and schedules that measure.
    """

    token_budget: int | None = None
    max_queue: int | None = None
    min_shared_tokens: int = 16
    proposer: Proposer | None = None
    most_imported_bytes: int = 1 << 30
    host_cache_bytes: int = 2 << 30
    host_block_tokens: int = 16
    cache_folder: CacheFolder | None = None
    snapshot_tokens: int = 512
    overlap: bool | None = None
    kernel: bool | None = None
    schedule: ScheduleOptions = DEFAULT_SCHEDULE
    clock: Callable[[], float] = time.monotonic

    def of(self, execution: DecoderExecution) -> SchedulerOptions:
        """Return what a scheduler shares out of a decoder."""
        return SchedulerOptions(
            execution.slots,
            execution.max_length,
            execution.max_prefill_length,
            self.token_budget,
            self.schedule,
            self.max_queue,
            self.min_shared_tokens,
            0 if self.proposer is None else self.proposer.most_guesses,
            self.snapshot_tokens,
            self.most_imported_bytes,
            HostOptions(self.host_cache_bytes, self.host_block_tokens, self.cache_folder),
            is_packed=execution.packed is not None and self.proposer is None,
        )


def check_options(options: EngineOptions, execution: DecoderExecution) -> None:
    """Raise RequestError for options that the execution does not allow."""
    budget, proposer = options.token_budget, options.proposer
    if budget is not None and budget < 1:
        raise RequestError(f"a budget of {budget} tokens per step computes nothing", "token_budget", "give 1 or more")
    if proposer is not None and not execution.has_all_logits:
        what = "speculation needs logits of every token; the engine outputs those of the last only"
        raise RequestError(what, "speculation", "build with `--set llm.logits=all`")
