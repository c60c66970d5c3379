"""Specs of a written network's inputs: the roles of their axes, their feeders, their shapes in a profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Role = Literal[
    "batch",
    "new_tokens",
    "tokens",
    "prompts",
    "prompt_length",
    "prompt_tokens",
    "prompt_window",
    "prompt_pages",
    "logit_rows",
    "cached_tokens",
    "kv_window",
    "pages",
    "page_tokens",
    "row_pages",
    "hidden_size",
    "key_value_heads",
    "head_dim",
    "rope_sections",
    "state",
    "encoded",
    "adapter_rank",
    "inputs",
    "outputs",
]
Feeder = Literal["request", "scheduler", "cache", "state", "encoder", "slots", "stage", "adapter"]
"""A request's data; data that follows from its tokens' positions; a KV cache; a recurrent state; an encoder's output,
computed once per request; one of these as prompt rows read it; an earlier stage's output; resident LoRA adapters."""
ENCODED = ("cross_key", "cross_value")
"""Inputs of a decoder's layers that an encoder fills."""
ENCODED_MASK = "cross_mask"
"""Valid positions of a slot's encoder outputs, [B, length]: 1 if filled, else 0."""

PROMPT, LOGIT_INDEX, DECODE_POSITION_IDS = "prompt_", "logit_index", "decode_position_ids"
"""In packed networks: the prefix of prompt rows' inputs and outputs; the indices of the tokens with logits; and the
positions of decoding rows [A, S], whose tokens come first."""
PROMPT_PLACES = f"{PROMPT}places"
"""Positions of prompt tokens in the padded rows [P]: an input of every packed network."""
ADAPTER_IDS, RANK_OWNERS = "adapter_ids", "rank_owners"
"""Each row's LoRA adapter [B], and the adapter of each resident rank [R]."""
LORA_ENDS = (".lora_a", ".lora_b")
"""Suffixes, after a layer's path, of the names of its low-rank matrices [R, in] and [R, out]."""


@dataclass(frozen=True)
class Axis:
    """An axis by its role. size: -1 if it is known at run time only."""

    role: Role
    size: int = -1


@dataclass(frozen=True)
class InputSpec:
    """An input.

    updated: for a cache or a state, the output that holds its new contents.
    """

    name: str
    dtype: str
    axes: tuple[Axis, ...]
    feeder: Feeder
    updated: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether it is kept per slot: a KV cache, a recurrent state, or an encoder's output."""
        return self.feeder in ("cache", "state", "encoder")

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes by axis; -1 where known at run time only."""
        return tuple(axis.size for axis in self.axes)

    def shape_at(self, sizes: Mapping[Role, int]) -> tuple[int, ...]:
        """Return the shape with dynamic axes set to the sizes of their roles."""
        return tuple(sizes[axis.role] if axis.size < 0 else axis.size for axis in self.axes)

    @property
    def kept_as(self) -> str:
        """The input whose memory it shares: itself, or that of the decoding rows."""
        return self.name.replace(PROMPT, "", 1) if self.feeder == "slots" else self.name

    def size_of(self, role: Role) -> int:
        """Return the size of the axis of a role."""
        return next(axis.size for axis in self.axes if axis.role == role)


def takes_packed_calls(inputs: Iterable[InputSpec]) -> bool:
    """Whether a network with these inputs takes decoding and prompts in one call."""
    return any(spec.name == PROMPT_PLACES for spec in inputs)


def output_of_prompts(cache: InputSpec) -> str:
    """Return the output with what prompt rows add to a cache in a packed network."""
    return cache.updated.replace("_", f"_{PROMPT}", 1)


def kv_window(used: int, length: int) -> int:
    """Return how many cached tokens attention reads if `used` of a slot's `length` are in use.

    A power of two, at least 64: CUDA graphs are kept per shape, so few sizes are better than exact ones.
    """
    return min(length, max(_LEAST_WINDOW, 1 << (used - 1).bit_length()))


TOKEN_TILE = 64
"""An engine's packed calls have a multiple of this many tokens: kernels compute whole tiles, and few sizes occur."""
MOST_ROW_TOKENS = 8
"""Most new tokens of a decoding row in an engine's packed call: its own and guesses; trees have more."""


def rank_window(used: int, most: int) -> int:
    """Return how many adapter ranks a call reads if `used` of `most` are resident: none, or a power of two."""
    return min(most, max(_LEAST_RANKS, 1 << (used - 1).bit_length())) if used else 0


BATCH, NEW_TOKENS, ADAPTER_RANK = Axis("batch"), Axis("new_tokens"), Axis("adapter_rank")
TOKENS, ONE, PROMPTS = Axis("tokens"), Axis("new_tokens", 1), Axis("prompts")
"""Axes of packed calls: all new tokens, each a row of one; and the rows of prompts."""
_LEAST_WINDOW, _LEAST_RANKS = 64, 16


@dataclass(frozen=True)
class ProfileShapes:
    """The shapes of one input in an optimization profile."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


# By dynamic input.
ResolvedProfile = dict[str, ProfileShapes]
# The smallest, the typical and the largest size.
MinOptMax = tuple[int, int, int]
