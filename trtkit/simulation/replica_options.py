"""What an engine of a simulation is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.llm.scheduler import DEFAULT_SCHEDULE

if TYPE_CHECKING:
    from trtkit.llm.scheduler import ScheduleOptions
    from trtkit.simulation.times import StepTimes


@dataclass(frozen=True)
class ReplicaOptions:
    """An engine. slots: sequences at once. slot_tokens: the longest sequence. max_prefill: new tokens of a call.

    budget: new tokens of a step; those of a call if None. pages: of page_tokens tokens; None for slots of full length.
    block_tokens: of prompts' blocks that are shared; 0 if nothing is. host_tokens: that host memory has room for, each
    of token_bytes; host_block_tokens: of slots' caches that it keeps as one. min_shared_tokens: the shortest prefix
    worth sharing. gpus: that share the model. is_packed: whether prompts share the calls of decoding slots.
    token_tile: tokens that such a call computes together. copies_in_background: whether steps run while caches are
    copied to the host and back.
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
