"""What the scheduler knows of a request, and how a request ends."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from trtkit.llm.adapters.adapters import LoadedAdapter
    from trtkit.llm.scheduler.options import SchedulingParams
    from trtkit.llm.scheduler.policy import Standing
    from trtkit.llm.sequences import AdapterId, Ints
    from trtkit.llm.soft_tokens import SoftTokens

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(slots=True)
class Metrics:
    """Times in seconds of the engine's clock, and token counts.

    reused: prompt tokens found in a cache. restored: those of them found in host memory. drafted, accepted: tokens of
    speculative decoding.
    """

    arrived_s: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None
    finished_s: float | None = None
    reused: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    restored: int = 0


class Schedulable(Protocol):
    """A request as the scheduler sees it.

    generated: tokens generated before a preemption. retained: keys of blocks that the host keeps for it.
    standing: its rank in the schedule, set by the queue.
    """

    standing: Standing
    generated: list[int]
    retained: list[bytes]
    metrics: Metrics

    @property
    def id(self) -> str:
        """Unique name."""

    @property
    def scheduling(self) -> SchedulingParams:
        """Priority, user and deadline."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""

    @property
    def max_new_tokens(self) -> int:
        """Limit on generated tokens."""

    @property
    def slots(self) -> int:
        """Number of slots it takes: one per beam."""

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether no cached prefix may be used, as for log probabilities of the prompt."""

    @property
    def soft(self) -> SoftTokens | None:
        """Vectors in its prompt, such as an image's."""

    @property
    def adapter(self) -> LoadedAdapter | None:
        """Its LoRA adapter, or None."""

    @property
    def adapter_id(self) -> AdapterId:
        """Identity of its adapter; zeros if it has none."""

    def known_ids(self) -> Ints:
        """Return the prompt and the tokens generated before a preemption."""


T = TypeVar("T", bound=Schedulable)
R = TypeVar("R")


@dataclass(frozen=True)
class Hypothesis:
    """One answer of a beam search. score: length-penalised log probability."""

    token_ids: list[int]
    score: float


class Ended(NamedTuple, Generic[R]):
    """A request that has ended.

    generated: its tokens, or those of its best beam; `token_ids` has them as a list.
    stop_reason: the stop string or token that ended it; the error's text if it failed.
    beams: the answers of a beam search, best first.
    """

    request: R
    generated: Ints | list[int]
    reason: FinishReason
    stop_reason: int | str | None = None
    beams: tuple[Hypothesis, ...] = ()

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens."""
        return self.generated if isinstance(self.generated, list) else self.generated.tolist()
