"""Options for writing a decoder as a network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtkit.dtypes import FP16, INT32

if TYPE_CHECKING:
    from trtkit.dtypes import DType
    from trtkit.models.speculators import FusionSpec
    from trtkit.quantized_matrix import KvQuantization
    from trtkit.quantized_model import ExpertsRead


@dataclass(frozen=True)
class DecoderOptions:
    """How a model becomes a network.

    dtype: type of weights, caches and arithmetic: fp32, fp16 or bf16.
    max_sequence_length: T, the length of each slot's cache.
    has_all_logits: `logits` [B, S, V] of every token; otherwise [B, V] of the tokens at `last_token_index` [B].
    has_embeds_input: `inputs_embeds` [B, S, D], scaled like embeddings, instead of `input_ids`.
    has_rope_positions: M-RoPE's sections turn by the input `rope_position_ids` [3, B, S]; otherwise all turn by
        `position_ids`, as those of text do.
    deepstack: vectors that follow in `inputs_embeds` [B, S, (1 + deepstack) * D]; one is added after each of the first
        layers.
    has_hidden_states: also return `hidden_states` [B, S, D], after the final norm.
    has_native_lengths: pass `kv_lengths` to the attention layer, besides masking by them, so that it may skip the rest.
    has_kv_window: let attention read as many cached tokens as the input `key_positions` [T'] has, and not all T.
    page_tokens: tokens of a page, if caches are paged: `past_*` [P, K, page_tokens, H] are then pools of pages, which
        are read-only; `page_table` [B, n] names each slot's in order, and `key_positions`, if a layer gathers them, has
        n * page_tokens.
    has_pages_in_place: let attention read pages where they are, by the custom op PagedAttention, in layers that its
        plugin can compute; see `paged_layers`. The others gather copies.
    has_visible_lengths: the input `visible_lengths` [B, S] says how many cached tokens each new token sees, which may
        be later ones too: of an image, those of all of it.
    expands_latent: latent attention computes keys and values of all cached tokens in each call, for the native layer;
        otherwise queries are turned into the space of the cached vectors.
    experts: whose matrices mixtures read: with `chosen`, if a step has fewer choices than experts, those chosen.
    kv_cache: 8-bit caches, with each layer's scales. They are read-only.
    adapted: paths of linear layers that add what adapters give, whose matrices are inputs.
    fusion: what a draft head reads of the layers' hidden states, if there is one.
    gives_last_hidden: let a head read the hidden state after the final norm instead.
    has_tree: the input `branch_ends` [B, S] lets new tokens form a tree: each sees cached tokens and its ancestors.
    is_packed: decoding and prompts share a call, in which all layers but attention see new tokens without padding;
        logits are of the tokens at `logit_index` [N]. See `build_decoder`.

    `present_*` of a read-only cache holds only the new keys and values, [B, K, S, H], which the runtime writes into it.
    """

    dtype: DType = FP16
    max_sequence_length: int = 2048
    ids_dtype: DType = INT32
    has_all_logits: bool = False
    has_embeds_input: bool = False
    has_rope_positions: bool = False
    deepstack: int = 0
    has_hidden_states: bool = False
    has_native_lengths: bool = False
    has_kv_window: bool = False
    page_tokens: int | None = None
    has_pages_in_place: bool = False
    has_visible_lengths: bool = False
    expands_latent: bool = False
    experts: ExpertsRead = "all"
    kv_cache: KvQuantization | None = None
    adapted: frozenset[str] = frozenset()
    fusion: FusionSpec | None = None
    gives_last_hidden: bool = False
    has_tree: bool = False
    is_packed: bool = False

    @property
    def has_read_only_caches(self) -> bool:
        """Whether the runtime writes new keys and values, not the network."""
        return self.kv_cache is not None or self.page_tokens is not None
