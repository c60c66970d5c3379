"""Memory fit: weights, caches, activations and sampling in a GPU's memory; the largest batch and context."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from trtkit.planning.paged import whole_pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from trtkit.planning.counts import NetworkCounts, Point

Json = dict[str, Any]
RESERVE_BYTES = 2**30
"""Reserve for the CUDA context and TensorRT itself: an assumption, not a measurement."""
LARGEST_BATCH = 2**20
"""Upper bound of the search for a batch."""


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes that a model needs on a GPU."""

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
        """Return all parts and their sum."""
        return {**{f"{key}_bytes": value for key, value in asdict(self).items()}, "total_bytes": self.total}


@dataclass(frozen=True)
class PackedRoom:
    """Capacity of a packed call for new tokens. prompts: for all prompts. row: for each decoding slot.

    logit_bytes: of a token's logits, if there is room for those of all tokens; 0 if only one per slot, which is
    counted.
    """

    prompts: int
    row: int
    logit_bytes: int = 0

    def parts(self, slots: int, length: int) -> tuple[Point, Point]:
        """Return the largest call of `slots` with up to `length` tokens each: the decoding slots, and all prompts."""
        return (slots, min(self.row, length), length), (1, min(self.prompts, slots * length), length)


@dataclass(frozen=True)
class Footprint:
    """Memory of a decoder-only LLM on one GPU.

    weights: bytes. kv_per_token: bytes, over all layers. chunk: new tokens per slot in a prefill step, which determine
    the activations unless calls are `packed`. keeps_new: engines with 8-bit or paged caches return a step's keys and
    values separately. vocab_size: of the sampled logits. state_bytes: of a slot's recurrent states, which engines write
    separately, for each group of a call's rows. adapters: bytes of resident LoRA adapters. page_tokens: tokens per
    page; each sequence takes whole pages, and one page belongs to none; 0 if caches are linear. head, head_per_token:
    bytes of the draft head. hidden_per_token: bytes of a token's hidden state, if `token_ranks` share those of a step;
    0 if each has all.
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
        """Return the bytes that `batch` slots of `length` tokens need."""
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
        """Return the bytes of `batch` slots' recurrent states, including those that calls write."""
        groups = 1 if self.packed is None else 2  # rows that decode, and those of prompts
        return (1 + groups) * self.state_bytes * batch

    def largest_batch(self, length: int, memory_bytes: int) -> int:
        """Return the most slots of `length` tokens that fit; 0 if none fits."""
        return largest(lambda batch: self.need(batch, length).total <= memory_bytes, LARGEST_BATCH)

    def largest_context(self, batch: int, memory_bytes: int, limit: int) -> int:
        """Return the most tokens that each of `batch` slots can hold, up to `limit`; 0 if not even one fits."""
        return largest(lambda length: self.need(batch, length).total <= memory_bytes, limit)


def sampling_bytes(slots: int, vocab_size: int) -> int:
    """Return the bytes of a GPU sampler's state for its slots, independent of settings.

    Per vocabulary token: a score, a number, a bias and a count of 4 bytes each, and one bit for whether it is allowed;
    4 bytes per 128 tokens, and 64 per 4,096; and 64 per slot.
    """
    return slots * (
        4 * (4 * vocab_size + -(-vocab_size // 32) + -(-vocab_size // 128)) + 64 * (1 + -(-vocab_size // 4096))
    )


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest fitting number from 1 to `limit`, 0 if none fits; all numbers below a fitting one must fit."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
