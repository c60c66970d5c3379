"""Does it fit: weights, caches, activations and sampling against a GPU's memory; the largest batch and context."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trtkit.planning.paged import whole_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.planning.counts import NetworkCounts, Point

Json = dict[str, Any]
RESERVE_BYTES = 2**30
"""Kept for the CUDA context and TensorRT's own: an assumption, not a measurement."""
LARGEST_BATCH = 2**20
"""Where the search for a batch ends."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a model takes on a GPU."""

    weights: int
    kv_cache: int
    activations: int
    sampling: int = 0
    adapters: int = 0
    speculator: int = 0
    reserve: int = RESERVE_BYTES

    @property
    def total(self) -> int:
        """The sum."""
        computing = self.weights + self.kv_cache + self.activations + self.sampling
        return computing + self.adapters + self.speculator + self.reserve

    def to_json(self) -> Json:
        """Return all parts with their sum."""
        return {**{f"{key}_bytes": value for key, value in asdict(self).items()}, "total_bytes": self.total}


@dataclass(frozen=True)
class PackedRoom:
    """The new tokens that a packed call has room for. prompts: of all prompts. row: of each slot that decodes.

    logit_bytes: of a token's logits, if there is room for those of all tokens; 0 if for one of each slot, which are
    counted.
    """

    prompts: int
    row: int
    logit_bytes: int = 0

    def parts(self, slots: int, length: int) -> tuple[Point, Point]:
        """Return the largest call of `slots` that hold up to `length` tokens: those that decode, and all prompts."""
        return (slots, min(self.row, length), length), (1, min(self.prompts, slots * length), length)


@dataclass(frozen=True)
class Footprint:
    """What a decoder-only LLM keeps on one GPU.

    weights: bytes. kv_per_token: bytes, of all layers. chunk: new tokens of each slot in a prefill step, which the
    activations follow from unless a call is `packed`. keeps_new: engines whose caches have eight bits or pages give a
    step's keys and values apart. vocab_size: of the logits that are sampled. state_bytes: of a slot's recurrent states,
    which engines write apart, those of each group of a call's rows. adapters: bytes of resident LoRA adapters.
    page_tokens: of pages, of which each sequence takes whole ones, and nobody one; 0 if caches are linear.
    head, head_per_token: bytes of the draft head. hidden_per_token: bytes of the hidden state of a token, if
    `token_ranks` share those of a step; 0 if each has all.
    """

    counts: NetworkCounts
    weights: int
    kv_per_token: int
    chunk: int
    vocab_size: int
    keeps_new: bool = False
    state_bytes: int = 0
    adapters: int = 0
    page_tokens: int = 0
    head: int = 0
    head_per_token: int = 0
    hidden_per_token: int = 0
    token_ranks: int = 1
    packed: PackedRoom | None = None

    def need(self, batch: int, length: int) -> MemoryNeed:
        """Return what `batch` slots of `length` tokens need."""
        parts: tuple[Point, ...] = ((batch, min(self.chunk, length), length),)
        logit_bytes = 0
        if self.packed is not None:
            parts, logit_bytes = self.packed.parts(batch, length), self.packed.logit_bytes
        new = sum(rows * tokens for rows, tokens, _ in parts)
        activations = max(self.counts.activation_bytes(*parts), new * logit_bytes)
        activations -= self.hidden_per_token * (new - -(-new // self.token_ranks))
        tokens = batch * length
        if self.page_tokens:
            tokens = (batch * whole_pages(length, self.page_tokens) + 1) * self.page_tokens
        head = self.head + self.head_per_token * tokens
        tokens += new if self.keeps_new else 0
        caches = self.kv_per_token * tokens + self.states(batch)
        sampling = sampling_bytes(batch, self.vocab_size)
        return MemoryNeed(self.weights, caches, activations, sampling, self.adapters, head)

    def states(self, batch: int) -> int:
        """Return the bytes of `batch` slots' recurrent states, and of those that calls write."""
        groups = 1 if self.packed is None else 2  # rows that decode, and those of prompts
        return (1 + groups) * self.state_bytes * batch

    def largest_batch(self, length: int, memory_bytes: int) -> int:
        """Return the most slots of `length` tokens that fit, 0 where not even one does."""
        return largest(lambda batch: self.need(batch, length).total <= memory_bytes, LARGEST_BATCH)

    def largest_context(self, batch: int, memory_bytes: int, limit: int) -> int:
        """Return the most tokens that each of `batch` slots can hold, up to `limit`; 0 where not even one fits."""
        return largest(lambda length: self.need(batch, length).total <= memory_bytes, limit)


def sampling_bytes(slots: int, vocab_size: int) -> int:
    """Return what sampling on a GPU keeps of its slots, whatever settings they use.

    For each token of the vocabulary that is a score, a number, a bias and a count of 4 bytes, and one bit whether it is
    allowed; 4 bytes for 128 of them, and 64 for 4,096; and 64 for a slot.
    """
    return slots * (
        4 * (4 * vocab_size + -(-vocab_size // 32) + -(-vocab_size // 128)) + 64 * (1 + -(-vocab_size // 4096))
    )


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest number from 1 to `limit` that fits, 0 where none does; what fits below it fits too."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
