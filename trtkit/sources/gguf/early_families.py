"""What llama.cpp calls things, and how it stores them: architectures of before 2024."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.sources.gguf.layout import (
    ATTENTION,
    FIELDS,
    GATED_MLP,
    GPT2_BLOCKS,
    GPT2_NAMES,
    LLAMA_BLOCKS,
    NAMES,
    PERMUTED,
    RMS_FIELDS,
    GgufFamily,
)
from trtkit.sources.gguf.metadata import head_dim

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.metadata import Fields, Metadata

_EPS = {"attention.layer_norm_epsilon": "layer_norm_epsilon"}
_WORDS = {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f", "output": "lm_head"}
_DENSE_MLP = {"ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
_JOINED_ATTENTION = {"attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense"}
_WQKV = {"attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj"}


def _falcon_groups(metadata: Metadata, _: GgufFile) -> Fields:
    """Return whether queries share keys in groups: those of Falcon 2 do, the first 7B has one key head for all."""
    is_new = int(metadata.get("attention.head_count_kv", 1)) > 1
    return {"new_decoder_architecture": is_new, **({"num_ln_in_parallel_attn": 1} if is_new else {})}


_FALCON = GgufFamily(
    "falcon",
    {
        **{key: field for key, field in FIELDS.items() if key != "attention.key_length"},
        **_EPS,
        "attention.head_count_kv": "num_kv_heads",
        "feed_forward_length": "ffn_hidden_size",
    },
    _WORDS,
    {"attn_norm": "input_layernorm", **_JOINED_ATTENTION, **_DENSE_MLP},
    layers="transformer.h.{i}.",
    changes={"attn_qkv": ("ungroup_shared",)},
    fixed={"alibi": False, "multi_query": True, "parallel_attn": True},
    flags={"bias": "attn_qkv.bias"},
    derived=_falcon_groups,
)
_FALCON_40B = replace(
    _FALCON,
    blocks={"attn_norm": "ln_mlp", "attn_norm_2": "ln_attn", **_JOINED_ATTENTION, **_DENSE_MLP},
    fixed={**_FALCON.fixed, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 2},
    derived=None,
)
_BLOOM = GgufFamily(
    "bloom",
    {"block_count": "n_layer", "embedding_length": "hidden_size", "attention.head_count": "n_head", **_EPS},
    {**_WORDS, "token_embd_norm": "transformer.word_embeddings_layernorm"},
    {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        **_JOINED_ATTENTION,
        **_DENSE_MLP,
    },
    layers="transformer.h.{i}.",
    changes={"attn_qkv": ("ungroup",)},
    ignored=("context_length", "feed_forward_length"),
    has_rope=False,
)
_STARCODER = GgufFamily(
    "gpt_bigcode",
    {
        "block_count": "n_layer",
        "context_length": "n_positions",
        "embedding_length": "n_embd",
        "feed_forward_length": "n_inner",
        "attention.head_count": "n_head",
        "attention.head_count_kv": "num_key_value_heads",
        **_EPS,
    },
    GPT2_NAMES,
    GPT2_BLOCKS,
    layers="transformer.h.{i}.",
    fixed={"multi_query": True},
    required={"attention.head_count_kv": 1},
    has_rope=False,
)


def _mpt_attention(metadata: Metadata, _: GgufFile) -> Fields:
    """Return `attn_config`; a bias of 0 is none at all."""
    largest = int(metadata.get("attention.max_alibi_bias", 0))
    clip = metadata.get("attention.clamp_kqv")
    return {"attn_config": {"alibi": largest > 0, "alibi_bias_max": largest, "clip_qkv": clip}}


_MPT = GgufFamily(
    "mpt",
    {
        "block_count": "n_layers",
        "context_length": "max_seq_len",
        "embedding_length": "d_model",
        "attention.head_count": "n_heads",
        **_EPS,
    },
    {"token_embd": "transformer.wte", "output_norm": "transformer.norm_f", "output": "lm_head"},
    {
        "attn_norm": "norm_1",
        **_WQKV,
        "ffn_norm": "norm_2",
        "ffn_up": "ffn.up_proj",
        "ffn_down": "ffn.down_proj",
    },
    layers="transformer.blocks.{i}.",
    derived=_mpt_attention,
    ignored=("feed_forward_length",),
    has_rope=False,
)
_OLMO = GgufFamily(
    "olmo",
    {**FIELDS, "attention.clamp_kqv": "clip_qkv"},
    NAMES,
    {name: hf for name, hf in {**ATTENTION, **GATED_MLP}.items() if name != "attn_norm"},
    changes=PERMUTED,
    required={"attention.layer_norm_epsilon": 1e-5},
)


def _glm_attention(metadata: Metadata, file: GgufFile) -> Fields:
    """Return the size of heads, which files leave out, and whether queries have a bias, however they are stored."""
    names = ("blk.0.attn_q.bias", "blk.0.attn_qkv.bias")
    return {"head_dim": head_dim(metadata), "attention_bias": any(name in file.tensors for name in names)}


_GLM = GgufFamily(
    "glm",
    RMS_FIELDS,
    NAMES,
    {name: hf for name, hf in LLAMA_BLOCKS.items() if name != "ffn_gate"} | {"ffn_up": "mlp.gate_up_proj"},
    split={"attn_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")},
    derived=_glm_attention,
    is_rope_partial=True,
)

EARLY = {
    "falcon": _FALCON,
    "bloom": _BLOOM,
    "starcoder": _STARCODER,
    "mpt": _MPT,
    "olmo": _OLMO,
    "chatglm": _GLM,
}
EARLY_VARIANTS = {"falcon": {"blk.0.attn_norm_2.weight": _FALCON_40B}}
