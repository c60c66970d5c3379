"""What llama.cpp calls things, and how it stores them: architectures with latent attention.

DeepSeek's heads are stored as keys and values that the cache's vectors are multiplied by, in files of before May 2025
as one weight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.sources.gguf.layout import (
    BIASES,
    GATED_MLP,
    LATER,
    MOE_EXPERTS,
    NAMES,
    RMS_FIELDS,
    SIGMOID,
    SOFTMAX,
    GgufFamily,
    Joined,
)
from trtkit.sources.gguf.mixture_families import ROUTED_FIELDS, ROUTED_MLP

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.metadata import Fields, Metadata

_OF_HEADS = ("attention.head_count_kv", "attention.key_length")
_RANKS = {"attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank"}
_DENSE_FIELDS = {**{key: field for key, field in RMS_FIELDS.items() if key not in _OF_HEADS}, **_RANKS}
_OF_EXPERTS = {key: field for key, field in ROUTED_FIELDS.items() if key not in RMS_FIELDS}
_BLOCKS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
}


def _sizes(metadata: Metadata, _: GgufFile) -> Fields:
    """Return the sizes of heads: by their own keys where the others are those of compressed vectors."""
    keys, values = (
        int(metadata.get(f"attention.{name}_length_mla") or metadata.need(f"attention.{name}_length"))
        for name in ("key", "value")
    )
    metadata.ignore(*_OF_HEADS, "attention.value_length")
    return _rotated(metadata, keys) | {"v_head_dim": values}


def _rotated(metadata: Metadata, keys: int) -> Fields:
    """Return which part of keys turns, and that every query head has keys of its own."""
    turned = int(metadata.need("rope.dimension_count"))
    heads = metadata.need("attention.head_count")
    return {"qk_rope_head_dim": turned, "qk_nope_head_dim": keys - turned, "num_key_value_heads": heads}


def _groups(metadata: Metadata, file: GgufFile) -> Fields:
    """Return `_sizes`, and whether experts are chosen by group."""
    count = int(metadata.get("expert_group_count", 1))
    return _sizes(metadata, file) | {"topk_method": "group_limited_greedy" if count > 1 else "greedy"}


_YOUTU = GgufFamily(
    "youtu",
    _DENSE_FIELDS,
    NAMES,
    {**_BLOCKS, **GATED_MLP},
    joined=(Joined("self_attn.kv_b_proj", ("attn_k_b", "attn_v_b"), "latent"),),
    fixed={"q_lora_rank": None},
    flags=BIASES,
    derived=_sizes,
    yarn_weight="tenth",
    ignored=("expert_feed_forward_length", "leading_dense_block_count"),
    heads="latent",
)
_ROUTED = replace(
    _YOUTU,
    fields={**_DENSE_FIELDS, **_OF_EXPERTS, "nextn_predict_layers": LATER},
    blocks={**_BLOCKS, **ROUTED_MLP},
    experts=MOE_EXPERTS,
    ignored=(),
)
# What a file does not state is off in llama.cpp, and not in Hugging Face's configs.
_DEEPSEEK_V2 = replace(
    _ROUTED,
    model_type="deepseek_v2",
    fixed={"q_lora_rank": None, "routed_scaling_factor": 1.0},
    derived=_groups,
    required={"expert_gating_func": SOFTMAX},
)
_DEEPSEEK_V3 = replace(
    _ROUTED,
    model_type="deepseek_v3",
    fixed={**_DEEPSEEK_V2.fixed, "n_group": 1, "topk_group": 1, "norm_topk_prob": False},
    required={"expert_gating_func": SIGMOID},
)


def _minicpm3_sizes(metadata: Metadata, file: GgufFile) -> Fields:
    """Return the sizes of heads; that of values is left to the tensors."""
    columns = file.tensors["blk.0.attn_output.weight"].shape[-1] if "blk.0.attn_output.weight" in file.tensors else 0
    keys = int(metadata.need("attention.key_length"))
    metadata.ignore("attention.value_length")
    return _rotated(metadata, keys) | {"v_head_dim": columns // int(metadata.need("attention.head_count"))}


_MINICPM3 = GgufFamily(
    "minicpm3",
    {**_DENSE_FIELDS, "attention.head_count_kv": "num_key_value_heads"},
    NAMES,
    {**_BLOCKS, **GATED_MLP},
    fixed={"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256},  # as published: the file does not say
    derived=_minicpm3_sizes,
    heads="latent",
)

LATENT = {"deepseek2": _YOUTU, "minicpm3": _MINICPM3}
LATENT_VARIANTS = {"deepseek2": {"exp_probs_b.bias": _DEEPSEEK_V3, "expert_count": _DEEPSEEK_V2}}
