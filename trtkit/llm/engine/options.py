"""Options of the engine, and the scheduler options that follow from them."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from trtkit.errors import RequestError
from trtkit.llm.scheduler.options import ScheduleOptions, SchedulerOptions, SharingOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.llm.engine.proposers import Proposer
    from trtkit.llm.execution import DecoderExecution
    from trtkit.llm.execution.execution import PackedCalls
    from trtkit.serving_options import ServingOptions


@dataclass(frozen=True, kw_only=True)
class EngineOptions(SharingOptions):
    """How requests share an engine.

    proposer: drafts tokens for speculative decoding.
    overlap: launch a step before the host knows the last one's tokens; None for automatic, if the decoder is
    asynchronous. kernel: sample with the Triton kernel (interpreted on a CPU); None for automatic, if logits are on a
    GPU. clock: returns the time in seconds, for metrics, deadlines and schedules that measure.
    """

    proposer: Proposer | None = None
    overlap: bool | None = None
    kernel: bool | None = None
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def from_serving(cls, options: ServingOptions) -> EngineOptions:
        """Return the engine options that serving options state; fields of equal name mean the same."""
        names = {item.name for item in fields(SharingOptions)} & {item.name for item in fields(options)}
        values = {name: getattr(options, name) for name in names}
        values["schedule"] = ScheduleOptions.of(options.schedule, options.shares)
        return cls(**values, token_budget=options.prefill_budget, in_blocks=options.offload is not None)

    def of(self, execution: DecoderExecution) -> SchedulerOptions:
        """Return the scheduler options for a decoder."""
        shared = {item.name: getattr(self, item.name) for item in fields(SharingOptions)}
        guesses = 0 if self.proposer is None else self.proposer.most_guesses
        sizes = execution.slots, execution.max_length, execution.max_prefill_length
        packed = self.packed_calls(execution)
        tile = 1 if packed is None else packed.token_tile
        copies_in_background = execution.is_asynchronous  # the link of one that streams weights is busy in every step
        return SchedulerOptions(*sizes, guesses, packed is not None, tile, copies_in_background, **shared)

    def packed_calls(self, execution: DecoderExecution) -> PackedCalls | None:
        """Return the packed calls in which decoding, guesses and prompts share a call; None if they have a call each.

        They have a call each if the network is not packed, or takes fewer guesses per slot than the proposer makes.
        """
        packed, proposer = execution.packed, self.proposer
        if packed is None or proposer is None or 1 + proposer.most_guesses <= packed.row_tokens:
            return packed
        return None


def check_options(options: EngineOptions, execution: DecoderExecution) -> None:
    """Raise RequestError for options that the execution does not allow."""
    budget, proposer = options.token_budget, options.proposer
    if budget is not None and budget < 1:
        raise RequestError(f"a budget of {budget} tokens per step computes nothing", "token_budget", "give 1 or more")
    if proposer is not None and not execution.has_all_logits:
        what = "speculation needs logits of every token; the engine outputs those of the last only"
        raise RequestError(what, "speculation", "build with `--set llm.logits=all`")
