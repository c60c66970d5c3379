"""A generation request: prompt, settings and generated tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from trtkit.errors import RequestError
from trtkit.llm.scheduler import DEFAULT_SCHEDULING, SchedulingParams, Standing
from trtkit.llm.scheduler.request import Ended, Metrics
from trtkit.llm.sequences import NO_ADAPTER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trtkit.llm.adapters import LoadedAdapter
    from trtkit.llm.sampling.sampled import TokenLogprobs
    from trtkit.llm.sampling.settings import Settings
    from trtkit.llm.sequences import AdapterId, Ints
    from trtkit.llm.soft_tokens import SoftTokens


class Watcher(Protocol):
    """Receives every token as it is generated, for streaming and stop strings."""

    def add(self, tokens: Sequence[int]) -> str | None:
        """Add new tokens; return the stop string that they complete, if any."""
        ...


@dataclass(eq=False)
class Request:
    """A request and its progress.

    generated: tokens generated before a preemption. logprobs: one per generated token.
    prompt_logprobs: one per prompt token except the first. soft: vectors in the prompt, such as an image's.
    standing: its rank in the schedule, set by the queue. retained: keys of blocks that the host keeps for it.
    adapter: its LoRA adapter, or None.
    """

    id: str
    prompt_ids: Sequence[int]
    settings: Settings
    scheduling: SchedulingParams = DEFAULT_SCHEDULING
    watcher: Watcher | None = None
    generated: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)
    soft: SoftTokens | None = None
    standing: Standing = field(default_factory=Standing)
    retained: list[bytes] = field(default_factory=list)
    adapter: LoadedAdapter | None = None
    _ids: Ints | None = field(default=None, repr=False)

    @property
    def slots(self) -> int:
        """Number of slots it takes: one per beam."""
        return self.settings.params.num_beams

    @property
    def adapter_id(self) -> AdapterId:
        """Identity of its adapter; `NO_ADAPTER` if it has none."""
        return NO_ADAPTER if self.adapter is None else self.adapter.id

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt_ids)

    @property
    def max_new_tokens(self) -> int:
        """Limit on generated tokens."""
        return self.settings.params.max_tokens

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether no cached prefix may be used: prompt log probabilities need every token computed."""
        return self.settings.params.prompt_logprobs is not None

    def known_ids(self) -> Ints:
        """Return the prompt and the tokens generated before a preemption."""
        if self._ids is None or len(self._ids) != len(self.prompt_ids) + len(self.generated):
            self._ids = np.array([*self.prompt_ids, *self.generated], np.int64)
        return self._ids


Finished: TypeAlias = Ended[Request]
"""A request that has ended."""


class Limits(Protocol):
    """Limits that requests must fit."""

    @property
    def vocab_size(self) -> int:
        """V, the number of logits."""

    @property
    def max_length(self) -> int:
        """Tokens that a slot holds."""

    @property
    def slots(self) -> int:
        """Number of slots."""

    @property
    def has_all_logits(self) -> bool:
        """Whether the network outputs logits of every token, not only of the last."""


def check_request(request: Request, limits: Limits) -> None:
    """Raise RequestError for a request that can never be served."""
    ids, params = np.asarray(request.prompt_ids, np.int64), request.settings.params
    if not ids.size:
        raise RequestError("the prompt has no tokens", request.id, "give at least one")
    if ids.min() < 0 or ids.max() >= limits.vocab_size:
        what = f"token {ids[(ids < 0) | (ids >= limits.vocab_size)][0]} is not in the vocabulary"
        raise RequestError(what, request.id, f"use 0 to {limits.vocab_size - 1}")
    if ids.size > limits.max_length:
        raise too_long(ids.size, limits.max_length, request.id)
    if request.slots > limits.slots:
        what = f"{request.slots} beams need {request.slots} slots; the engine has {limits.slots}"
        raise RequestError(what, "num_beams", "use fewer beams, or open the bundle with more slots")
    if params.prompt_logprobs is not None and not limits.has_all_logits:
        what = "the engine outputs logits of the last token only"
        raise RequestError(what, "prompt_logprobs", "build with `--set llm.logits=all`")


def too_long(tokens: int, max_length: int, where: str) -> RequestError:
    """Return the error for a prompt longer than a slot."""
    fix = "shorten it, or build with a larger `llm.max_sequence_length`"
    return RequestError(f"the prompt has {tokens} tokens; a slot holds {max_length}", where, fix)
