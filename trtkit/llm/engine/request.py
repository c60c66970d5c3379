"""A request for text: its prompt, its settings, and what has been generated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from trtkit.errors import RequestError
from trtkit.llm.scheduler import DEFAULT_SCHEDULING, SchedulingParams, Turn
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
    """Told every token as it is made: for streams and for stop strings."""

    def add(self, tokens: Sequence[int]) -> str | None:
        """Take new tokens; return the stop string that they complete, if any."""
        ...


@dataclass(eq=False)
class Request:
    """A request, and how far it is.

    generated: tokens made before a preemption. logprobs: one a generated token.
    prompt_logprobs: one a prompt token but the first. soft: vectors that are in the prompt, such as an image's.
    turn: where it stands among the others, of which the queue keeps track. claims: keys of what the host keeps for it.
    adapter: the LoRA adapter that computes it.
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
    turn: Turn = field(default_factory=Turn)
    claims: list[bytes] = field(default_factory=list)
    adapter: LoadedAdapter | None = None
    _ids: Ints | None = field(default=None, repr=False)

    @property
    def slots(self) -> int:
        """Slots that it takes."""
        return self.settings.params.num_beams

    @property
    def adapter_id(self) -> AdapterId:
        """Which adapter it has, if any."""
        return NO_ADAPTER if self.adapter is None else self.adapter.id

    @property
    def prompt_tokens(self) -> int:
        """How long its prompt is."""
        return len(self.prompt_ids)

    @property
    def max_new_tokens(self) -> int:
        """The most tokens that it generates."""
        return self.settings.params.max_tokens

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether all of its prompt has to be computed: log probabilities are those of computed tokens."""
        return self.settings.params.prompt_logprobs is not None

    def known_ids(self) -> Ints:
        """Return its prompt, and the tokens that it had generated before it was preempted."""
        if self._ids is None or len(self._ids) != len(self.prompt_ids) + len(self.generated):
            self._ids = np.array([*self.prompt_ids, *self.generated], np.int64)
        return self._ids


Finished: TypeAlias = Ended[Request]
"""A request that has ended."""


class Limits(Protocol):
    """What requests must fit."""

    @property
    def vocab_size(self) -> int:
        """V, as many as the network has logits."""

    @property
    def max_length(self) -> int:
        """Tokens that a slot holds."""

    @property
    def slots(self) -> int:
        """Sequences at once."""

    @property
    def has_all_logits(self) -> bool:
        """Whether there are logits of every token, not of the last only."""


def check_request(request: Request, limits: Limits) -> None:
    """Raise RequestError for a request that no run could serve."""
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
    """Return the error for a prompt of more tokens than a slot holds."""
    fix = "shorten it, or build with a larger `llm.max_sequence_length`"
    return RequestError(f"the prompt has {tokens} tokens; a slot holds {max_length}", where, fix)
