"""What a written network knows of each input: the roles of its axes, who feeds it, its shapes in a profile."""

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
"""What a request brings; what follows from where its tokens stand; a KV cache; a recurrent state; what an encoder made
of the request, once; one of these as rows of prompts read it; what an earlier stage gives; resident LoRA adapters."""
ENCODED = ("cross_key", "cross_value")
"""What an encoder gives each layer of a decoder."""
ENCODED_MASK = "cross_mask"
"""Which of a slot's places an encoder filled, [B, length]: 1 where it did, 0 where not."""

PROMPT, LOGIT_INDEX, DECODE_POSITION_IDS = "prompt_", "logit_index", "decode_position_ids"
"""In packed networks: before the names of what rows of prompts read and give; which tokens' logits they give; and the
positions of rows that decode [A, S], whose tokens come first."""
PROMPT_PLACES = f"{PROMPT}places"
"""Where the tokens of prompts lie in padded rows [P]: an input of every packed network."""
ADAPTER_IDS, RANK_OWNERS = "adapter_ids", "rank_owners"
"""Each row's LoRA adapter [B], and whose each resident rank is [R]."""
LORA_ENDS = (".lora_a", ".lora_b")
"""How the names of a layer's low-rank matrices [R, in] and [R, out] end, after its path."""


@dataclass(frozen=True)
class Axis:
    """An axis by its role. size: -1 if it is known at run time only."""

    role: Role
    size: int = -1


@dataclass(frozen=True)
class InputSpec:
    """An input.

    updated: of a cache or a state, the output that holds its new contents.
    """

    name: str
    dtype: str
    axes: tuple[Axis, ...]
    feeder: Feeder
    updated: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether a slot keeps it: a KV cache, a recurrent state, or what an encoder made."""
        return self.feeder in ("cache", "state", "encoder")

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes by axis; -1 where known at run time only."""
        return tuple(axis.size for axis in self.axes)

    def shape_at(self, sizes: Mapping[Role, int]) -> tuple[int, ...]:
        """Return the shape with dynamic axes of the `sizes` that their roles have."""
        return tuple(sizes[axis.role] if axis.size < 0 else axis.size for axis in self.axes)

    @property
    def kept_as(self) -> str:
        """The input whose memory it reads: its own, or that of the rows that decode."""
        return self.name.replace(PROMPT, "", 1) if self.feeder == "slots" else self.name

    def size_of(self, role: Role) -> int:
        """Return the size of the axis of a role."""
        return next(axis.size for axis in self.axes if axis.role == role)


def takes_packed_calls(inputs: Iterable[InputSpec]) -> bool:
    """Whether a network with these inputs lets decoding and prompts share a call."""
    return any(spec.name == PROMPT_PLACES for spec in inputs)


def output_of_prompts(cache: InputSpec) -> str:
    """Return the output that holds what rows of prompts add to a cache, in a packed network."""
    return cache.updated.replace("_", f"_{PROMPT}", 1)


def kv_window(used: int, length: int) -> int:
    """Return how many cached tokens attention reads where `used` of a slot's `length` are in use.

    A power of two, at least 64: CUDA graphs are kept by shape, so few sizes are better than exact ones.
    """
    return min(length, max(_LEAST_WINDOW, 1 << (used - 1).bit_length()))


TOKEN_TILE = 64
"""Packed calls of an engine have a multiple of so many tokens: kernels compute whole tiles, and few sizes occur."""
MOST_ROW_TOKENS = 8
"""New tokens that a row which decodes has at most in an engine's packed call: its own, and guesses; trees have more."""


def rank_window(used: int, most: int) -> int:
    """Return how many ranks of adapters a call reads where `used` of `most` are resident: none, or a power of two."""
    return min(most, max(_LEAST_RANKS, 1 << (used - 1).bit_length())) if used else 0


BATCH, NEW_TOKENS, ADAPTER_RANK = Axis("batch"), Axis("new_tokens"), Axis("adapter_rank")
TOKENS, ONE, PROMPTS = Axis("tokens"), Axis("new_tokens", 1), Axis("prompts")
"""Of packed calls: all new tokens, each a row of one; and the rows of prompts."""
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
