"""Requests to simulate: as columns, and one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from trtkit.llm.scheduler import DEFAULT_SCHEDULING, SchedulingParams, Standing
from trtkit.llm.scheduler.request import Metrics
from trtkit.llm.sequences import NO_ADAPTER

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.arrays import Array
    from trtkit.llm.sequences import AdapterId, Ints

BLOCK_TOKENS = 512
"""Tokens per hashed block of a prompt, as in Mooncake's traces."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests in the order of their arrival. arrival_s, input_tokens, output_tokens: [N].

    hash_ids: of each prompt's prefix in blocks of `block_tokens`, for all requests or none; prompts with equal ids
    share a prefix. scheduling: for all requests or none.
    """

    arrival_s: Array
    input_tokens: Array
    output_tokens: Array
    hash_ids: Sequence[tuple[int, ...]] = ()
    scheduling: Sequence[SchedulingParams] = ()
    block_tokens: int = BLOCK_TOKENS

    def __len__(self) -> int:
        return len(self.arrival_s)

    def requests(self) -> Iterator[SimulatedRequest]:
        """Yield each request when its time has come, so that not all of them exist at once."""
        columns = zip(self.arrival_s.tolist(), self.input_tokens.tolist(), self.output_tokens.tolist(), strict=True)
        for number, (arrival_s, inputs, outputs) in enumerate(columns):
            hashes = self.hash_ids[number] if self.hash_ids else ()
            scheduling = self.scheduling[number] if self.scheduling else DEFAULT_SCHEDULING
            yield SimulatedRequest(number, arrival_s, inputs, outputs, hashes, scheduling, self.block_tokens)


@dataclass(eq=False, slots=True)
class SimulatedRequest:
    """A request by its counts, as the scheduler takes it; without beams, images or adapter.

    generated: tokens it had when it was last preempted. imported: tokens of it that another replica has computed.
    retained: keys of blocks that the host keeps for it. is_prompt_alone: only the prompt is computed; is_handed_on:
    another replica has computed it. is_unread: its prompt is still to be read.
    """

    slots: ClassVar[int] = 1
    needs_whole_prompt: ClassVar[bool] = False
    soft: ClassVar[None] = None
    adapter: ClassVar[None] = None
    adapter_id: ClassVar[AdapterId] = NO_ADAPTER

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[int, ...] = ()
    scheduling: SchedulingParams = DEFAULT_SCHEDULING
    block_tokens: int = BLOCK_TOKENS
    standing: Standing = field(init=False)
    metrics: Metrics = field(default_factory=Metrics)
    generated: list[int] = field(default_factory=list)
    imported: int = 0
    retained: list[bytes] = field(default_factory=list)
    first_token_s: float = math.nan
    is_prompt_alone: bool = False
    is_handed_on: bool = False
    is_unread: bool = True
    _ids: Ints | None = None

    @property
    def id(self) -> str:
        """Its number as a name."""
        return str(self.number)

    @property
    def is_new(self) -> bool:
        """Whether it has neither been preempted nor partly computed by another replica."""
        return not self.metrics.preemptions and not self.is_handed_on

    @property
    def max_new_tokens(self) -> int:
        """Number of tokens that it generates here."""
        return 1 if self.is_prompt_alone else self.output_tokens

    @property
    def ids(self) -> Ints:
        """Its prompt and answer: equal in prompt blocks of equal hash, different from all other requests elsewhere."""
        if self._ids is None:
            first = (self.number + 1) << 32  # used by no other request and no block
            self._ids = np.arange(first, first + self.prompt_tokens + self.output_tokens, dtype=np.int64)
            if self.hashes:
                shared = np.repeat(np.array(self.hashes, np.int64), self.block_tokens)[: self.prompt_tokens]
                self._ids[: len(shared)] = shared
        return self._ids

    def known_ids(self) -> Ints:
        """Return the prompt and the tokens generated before a preemption."""
        return self.ids[: self.prompt_tokens + len(self.generated)]
