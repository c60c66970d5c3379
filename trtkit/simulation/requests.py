"""What is to be simulated: requests as columns, and one request on its way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trtkit.llm.scheduler import DEFAULT_SCHEDULING, SchedulingParams, Turn

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtkit.arrays import Array

BLOCK_TOKENS = 512
"""Tokens of a prompt's block that has a hash id, as in Mooncake's traces."""


@dataclass(frozen=True, eq=False)
class Traffic:
    """Requests in the order of their arrival. arrival_s, input_tokens, output_tokens: [N].

    hash_ids: of each prompt's beginning in blocks of `block_tokens`, of all requests or of none: prompts with the same
    ids begin alike. scheduling: of all or of none.
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
        """Yield each request when its turn has come, so that a million of them are never there at once."""
        columns = zip(self.arrival_s.tolist(), self.input_tokens.tolist(), self.output_tokens.tolist(), strict=True)
        for number, (arrival_s, inputs, outputs) in enumerate(columns):
            hashes = self.hash_ids[number] if self.hash_ids else ()
            scheduling = self.scheduling[number] if self.scheduling else DEFAULT_SCHEDULING
            yield SimulatedRequest(number, arrival_s, inputs, outputs, hashes, scheduling)


@dataclass(eq=False, slots=True)
class SimulatedRequest:
    """A request by its counts. generated: tokens it had when it last gave way. imported: tokens of it that another
    replica has computed. claims: keys of what the host keeps for it.

    slot: where it runs. cached, tick: how many tokens were cached when it began to decode, and when that was.
    end: the length at which it is complete. is_prompt_alone: only the prompt is computed; is_handed_on: it has
    been, by another replica. is_unread: its prompt is still to be read.
    """

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    hashes: tuple[int, ...] = ()
    scheduling: SchedulingParams = DEFAULT_SCHEDULING
    turn: Turn = field(default_factory=Turn)
    generated: int = 0
    imported: int = 0
    claims: list[bytes] = field(default_factory=list)
    slot: int = -1
    cached: int = 0
    tick: int = 0
    end: int = 0
    first_token_s: float = math.nan
    preemptions: int = 0
    is_prompt_alone: bool = False
    is_handed_on: bool = False
    is_unread: bool = True

    @property
    def id(self) -> str:
        """Its number as a name."""
        return str(self.number)

    @property
    def length(self) -> int:
        """Tokens known when it gets a slot."""
        return self.prompt_tokens + self.generated
