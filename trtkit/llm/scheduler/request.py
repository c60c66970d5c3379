"""What the scheduler knows of a request: numbers, and how it has ended."""

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
    """Times of the engine's clock, in seconds, and counts of tokens.

    reused: prompt tokens whose keys and values were already in a cache. restored: those of them that the host had.
    drafted, accepted: by speculation.
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
    """A request, as far as the scheduler is concerned.

    generated: tokens made before a preemption. retained: keys of what the host keeps for it.
    standing: among the other requests, kept by the queue.
    """

    standing: Standing
    generated: list[int]
    retained: list[bytes]
    metrics: Metrics

    @property
    def id(self) -> str:
        """Its name."""

    @property
    def scheduling(self) -> SchedulingParams:
        """Its priority, user and deadline."""

    @property
    def prompt_tokens(self) -> int:
        """How long its prompt is."""

    @property
    def max_new_tokens(self) -> int:
        """The most tokens that it generates."""

    @property
    def slots(self) -> int:
        """Slots that it takes: one for each beam."""

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether all of its prompt has to be computed, as for log probabilities of the prompt's tokens."""

    @property
    def soft(self) -> SoftTokens | None:
        """Vectors that are in its prompt, such as an image's."""

    @property
    def adapter(self) -> LoadedAdapter | None:
        """The LoRA adapter that computes it."""

    @property
    def adapter_id(self) -> AdapterId:
        """Which adapter it has, if any."""

    def known_ids(self) -> Ints:
        """Return its prompt, and the tokens that it had generated before it was preempted."""


T = TypeVar("T", bound=Schedulable)
R = TypeVar("R")


@dataclass(frozen=True)
class Hypothesis:
    """One answer of a beam search, best first among its request's. score: its length-penalised log probability."""

    token_ids: list[int]
    score: float


class Ended(NamedTuple, Generic[R]):
    """A request that has ended.

    generated: its tokens, or those of its best beam; `token_ids` are the same as a list.
    stop_reason: the stop string, or the token, that ended it; the error's text where it failed.
    beams: the answers of a beam search.
    """

    request: R
    generated: Ints | list[int]
    reason: FinishReason
    stop_reason: int | str | None = None
    beams: tuple[Hypothesis, ...] = ()

    @property
    def token_ids(self) -> list[int]:
        """The tokens that it has generated."""
        return self.generated if isinstance(self.generated, list) else self.generated.tolist()
