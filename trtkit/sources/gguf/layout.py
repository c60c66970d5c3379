"""Descriptions of GGUF architectures, and what many of them share.

Source: llama.cpp's convert_hf_to_gguf.py and src/llama-model.cpp, gguf-py's tensor_mapping.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.metadata import Fields, Metadata

Change = Literal[
    "permute_q", "permute_k", "add_one", "transpose", "ungroup", "ungroup_shared", "squeeze", "log_negate", "flatten",
    "expand", "as_row", "untile", "untile_values", "untile_columns",
]  # fmt: skip
"""Changes that llama.cpp's converter makes to weights: see `trtkit.sources.gguf.weights`."""
Join = Literal["rows", "latent", "delta"]
"""How Hugging Face stores weights that the converter split: see `trtkit.sources.gguf.weights`."""
Names = Mapping[str, str]
LATER = "num_nextn_predict_layers"
"""Blocks after the model's own that predict later tokens; a file counts them with the others."""


@dataclass(frozen=True)
class JoinedTensors:
    """Tensors of a block that are a single weight in Hugging Face's model. module: its name there."""

    module: str
    tensors: tuple[str, ...]
    how: Join = "rows"


@dataclass(frozen=True)
class GgufFamily:
    """Storage description of one architecture.

    model_type: Hugging Face's. fields: HF's field by metadata key, without the architecture prefix. names: HF's module
    by llama.cpp's, with `{e}` if the tensor holds several; those in `blocks` are prefixed with `blk.{i}.` and `layers`.
    A name with a suffix applies to that tensor only, and so does its HF name. changes: by module in a block, in the
    order in which to undo them. experts: HF's modules with `{e}` for tensors that hold all experts. joined: weights
    that the file holds in parts. split: HF's queries, keys and values of one tensor. fixed: fields that the
    architecture implies if the file does not state them. flags: fields that are true if the file has a tensor. derived:
    returns fields that follow from several keys, or from the tensors. yarn: parameters of YaRN that the architecture
    implies. grows: whether queries are scaled by their position. yarn_weight: how the file stores `mscale_all_dim`: a
    tenth of it, if `mscale` is the same, or all of it, if that is 1. required: values of metadata keys, if the file has
    them. ignored: metadata keys that change nothing. heads: `listed` if the file lists key heads by layer, `latent` if
    keys are compressed. is_rope_partial: whether `rope.dimension_count` may be less than head_dim. has_two_ropes:
    whether sliding-window layers have their own RoPE. near_theta: its base if the file states none; None for that of
    the other layers. has_layer_types: whether the file, if there is a window, lists the layers that use it.
    head_scaled_at: with this number of blocks, scores are scaled by hidden_size / heads, as `query_pre_attn_scalar`
    states.
    """

    model_type: str
    fields: Names
    names: Names
    blocks: Names
    layers: str = "model.layers.{i}."
    changes: Mapping[str, tuple[Change, ...]] = field(default_factory=dict)
    experts: Names = field(default_factory=dict)
    joined: tuple[JoinedTensors, ...] = ()
    split: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    stated: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    fixed: Fields = field(default_factory=dict)
    flags: Names = field(default_factory=dict)
    derived: Callable[[Metadata, GgufFile], Fields] | None = None
    yarn: Fields = field(default_factory=dict)
    yarn_weight: Literal["none", "tenth", "whole"] = "none"
    grows: bool = False
    required: Fields = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    heads: Literal["plain", "listed", "latent", "none"] = "plain"
    has_rope: bool = True
    is_rope_partial: bool = False
    has_two_ropes: bool = False
    near_theta: float | None = None
    has_layer_types: bool = False
    head_scaled_at: int | None = None


FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
}
RMS_FIELDS = {**FIELDS, "attention.layer_norm_rms_epsilon": "rms_norm_eps"}
LAYER_NORM_FIELDS = {**FIELDS, "attention.layer_norm_epsilon": "layer_norm_eps"}
EXPERT_FIELDS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
}
GPT2_NAMES = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
GPT2_BLOCKS = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
QK_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
GATED_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
LLAMA_BLOCKS = {**ATTENTION, "ffn_norm": "post_attention_layernorm", **GATED_MLP}
SANDWICH_BLOCKS = {
    **ATTENTION,
    **GATED_MLP,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
MOE_BLOCKS = {**ATTENTION, "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate"}
MOE_EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{e}.gate_proj",
    "ffn_up_exps": "mlp.experts.{e}.up_proj",
    "ffn_down_exps": "mlp.experts.{e}.down_proj",
}
MIXTRAL_EXPERTS = {
    "ffn_gate_exps": "block_sparse_moe.experts.{e}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{e}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{e}.w2",
}
FULL_ATTENTION = {"attn_q.weight": "full_attention"}
SOFTMAX, SIGMOID = 1, 2
"""llama.cpp's numbers for the functions that score experts."""
WINDOW = {"attention.sliding_window": "sliding_window"}
PERMUTED: Mapping[str, tuple[Change, ...]] = {"attn_q": ("permute_q",), "attn_k": ("permute_k",)}
BIASES = {"attention_bias": "attn_q.bias"}
GELU = {"hidden_activation": "gelu_pytorch_tanh"}
GRANITE_FIELDS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
