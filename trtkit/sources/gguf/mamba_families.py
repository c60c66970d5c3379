"""llama.cpp's names and storage layouts for architectures with Mamba-2 or short convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.sources.gguf.layout import (
    ATTENTION,
    BIASES,
    FULL_ATTENTION,
    LATER,
    NAMES,
    PERMUTED,
    RMS_FIELDS,
    SIGMOID,
    Change,
    GgufFamily,
    JoinedTensors,
)
from trtkit.sources.gguf.metadata import key_heads, kinds, mamba_head
from trtkit.sources.gguf.mixture_families import GRANITE_MOE_SHARED, GRANITE_SHARED, ROUTED_FIELDS

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.metadata import Fields, Metadata

_LISTED_FIELDS = {key: field for key, field in RMS_FIELDS.items() if key != "attention.head_count_kv"}
_OF_LAYERS = ("block_count", "attention.layer_norm_rms_epsilon")
_SSM_FIELDS = {
    "ssm.conv_kernel": "mamba_d_conv",
    "ssm.state_size": "mamba_d_state",
    "ssm.group_count": "mamba_n_groups",
    "ssm.time_step_rank": "mamba_n_heads",
}
_SSM_FLAGS = {"mamba_conv_bias": "ssm_conv1d.bias", "mamba_proj_bias": "ssm_in.bias"}
_MAMBA_CHANGES: dict[str, tuple[Change, ...]] = {
    "ssm_a": ("log_negate",),
    "ssm_d": ("flatten",),
    "ssm_conv1d": ("expand",),
    "ssm_norm": ("flatten",),
}


def _mamba(module: str) -> dict[str, str]:
    """Return the names of a Mamba-2 layer."""
    return {
        "ssm_in": f"{module}.in_proj",
        "ssm_conv1d": f"{module}.conv1d",
        "ssm_dt.bias": f"{module}.dt_bias",
        "ssm_a": f"{module}.A_log",
        "ssm_d": f"{module}.D",
        "ssm_norm": f"{module}.norm",
        "ssm_out": f"{module}.out_proj",
    }


def _expansion(metadata: Metadata) -> float:
    """Return a Mamba-2 layer's width relative to the model's."""
    return float(metadata.need("ssm.inner_size")) / float(metadata.need("embedding_length"))


def _lfm2_layers(metadata: Metadata, file: GgufFile) -> Fields:
    return {**key_heads(metadata), "layer_types": kinds(metadata, file, FULL_ATTENTION, "conv")}


_LFM2 = GgufFamily(
    "lfm2",
    {
        **{key: field for key, field in _LISTED_FIELDS.items() if key not in ("attention.key_length", _OF_LAYERS[1])},
        "attention.layer_norm_rms_epsilon": "norm_eps",
        "shortconv.l_cache": "conv_L_cache",
    },
    {"token_embd": "model.embed_tokens", "token_embd_norm": "model.embedding_norm", "output": "lm_head"},
    {
        **ATTENTION,
        "attn_norm": "operator_norm",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
        **{f"shortconv.{name}": f"conv.{name}" for name in ("in_proj", "conv", "out_proj")},
    },
    changes={"shortconv.conv": ("expand",)},
    fixed={"block_auto_adjust_ff_dim": False},
    flags={"conv_bias": "shortconv.in_proj.bias"},
    derived=_lfm2_layers,
    heads="listed",
)


def _mamba2_sizes(metadata: Metadata, _: GgufFile) -> Fields:
    return {"head_dim": mamba_head(metadata), "expand": _expansion(metadata)}


_MAMBA2 = GgufFamily(
    "mamba2",
    {
        "block_count": "num_hidden_layers",
        "embedding_length": "hidden_size",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "ssm.conv_kernel": "conv_kernel",
        "ssm.state_size": "state_size",
        "ssm.group_count": "n_groups",
        "ssm.time_step_rank": "num_heads",
    },
    {"token_embd": "backbone.embeddings", "output_norm": "backbone.norm_f", "output": "lm_head"},
    {"attn_norm": "norm", **_mamba("mixer")},
    layers="backbone.layers.{i}.",
    changes=_MAMBA_CHANGES,
    flags={"use_conv_bias": "ssm_conv1d.bias", "use_bias": "ssm_in.bias"},
    derived=_mamba2_sizes,
    ignored=("context_length", "feed_forward_length", "attention.head_count"),
    heads="none",
    has_rope=False,
)


def _falcon_h1_sizes(metadata: Metadata, file: GgufFile) -> Fields:
    """Return the head size. Raises SourceError for a tied head, whose own factor the file omits."""
    if "output.weight" not in file.tensors:
        fix = "build from the model's Hugging Face folder"
        raise SourceError("the head is the embedding, times a factor that the file does not keep", metadata.where, fix)
    return {"mamba_d_head": mamba_head(metadata)}


_ONES = ("embedding", "lm_head", "key", "attention_in", "attention_out", "ssm_in", "ssm_out")
_FALCON_H1 = GgufFamily(
    "falcon_h1",
    {**RMS_FIELDS, **_SSM_FIELDS, "ssm.inner_size": "mamba_d_ssm"},
    {**NAMES, "output_norm": "model.final_layernorm"},
    {
        **ATTENTION,
        **_mamba("mamba"),
        "ffn_norm": "pre_ff_layernorm.weight",
        **{f"ffn_{name}": f"feed_forward.{name}_proj" for name in ("gate", "up", "down")},
    },
    changes=_MAMBA_CHANGES,
    fixed={  # factors are multiplied into the weights
        **{f"{name}_multiplier": 1.0 for name in _ONES},
        "mlp_multipliers": [1.0] * 2,
        "ssm_multipliers": [1.0] * 5,
        "mamba_norm_before_gate": False,
    },
    flags={**_SSM_FLAGS, "mamba_rms_norm": "ssm_norm.weight"},
    derived=_falcon_h1_sizes,
)


def _granite_layers(metadata: Metadata, file: GgufFile) -> Fields:
    return {
        **key_heads(metadata),
        "mamba_d_head": mamba_head(metadata),
        "mamba_expand": _expansion(metadata),
        "layer_types": kinds(metadata, file, FULL_ATTENTION, "linear_attention"),
        "shared_intermediate_size": metadata.get("expert_shared_feed_forward_length")
        or metadata.need("feed_forward_length"),
    }


_GRANITE_HYBRID = replace(
    GRANITE_MOE_SHARED,
    model_type="granitemoehybrid",
    fields={
        **{key: field for key, field in GRANITE_MOE_SHARED.fields.items() if key != "attention.head_count_kv"},
        **_SSM_FIELDS,
    },
    blocks={**GRANITE_MOE_SHARED.blocks, **_mamba("mamba"), "ffn_down": "shared_mlp.output_linear"},
    changes={**PERMUTED, **_MAMBA_CHANGES},
    joined=(GRANITE_SHARED, JoinedTensors("shared_mlp.input_linear", ("ffn_gate", "ffn_up"))),
    fixed={"num_local_experts": 0, "position_embedding_type": "nope"},
    flags={**BIASES, **_SSM_FLAGS},
    derived=_granite_layers,
    ignored=("rope.dimension_count", "rope.freq_base"),
    heads="listed",
    has_rope=False,
)


def _bamba_layers(metadata: Metadata, file: GgufFile) -> Fields:
    types = kinds(metadata, file, FULL_ATTENTION, "linear_attention")
    return {
        **key_heads(metadata),
        "mamba_d_head": mamba_head(metadata),
        "mamba_expand": _expansion(metadata),
        "attn_layer_indices": [index for index, kind in enumerate(types) if kind == "full_attention"],
    }


_BAMBA = GgufFamily(
    "bamba",
    {**_LISTED_FIELDS, **_SSM_FIELDS},
    {**NAMES, "output_norm": "model.final_layernorm"},
    {
        **ATTENTION,
        **_mamba("mamba"),
        "ffn_norm": "pre_ff_layernorm",
        **{f"ffn_{name}": f"feed_forward.{name}_proj" for name in ("gate", "up", "down")},
    },
    changes={**PERMUTED, **_MAMBA_CHANGES},
    flags={**BIASES, **_SSM_FLAGS},
    derived=_bamba_layers,
    heads="listed",
    is_rope_partial=True,
)


def _nemotron_layers(metadata: Metadata, file: GgufFile) -> Fields:
    """Return the types of layers, and the MLP size, which files set to 0 for other layers."""
    tensors = {**FULL_ATTENTION, "ffn_gate_inp.weight": "moe", "ffn_up.weight": "mlp"}
    types = kinds(metadata, file, tensors, "linear_attention")
    count = len(types) - int(metadata.get("nextn_predict_layers", 0))
    return {
        **key_heads(metadata),
        "mamba_head_dim": mamba_head(metadata),
        "layers_block_type": types[:count],
        "intermediate_size": max(int(width) for width in metadata.listed("feed_forward_length")),
    }


_NEMOTRON_H = GgufFamily(
    "nemotron_h",
    {
        **{key: field for key, field in _LISTED_FIELDS.items() if key != "feed_forward_length"},
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "ssm.conv_kernel": "conv_kernel",
        "ssm.state_size": "ssm_state_size",
        "ssm.group_count": "n_groups",
        "ssm.time_step_rank": "mamba_num_heads",
        "nextn_predict_layers": LATER,
    },
    {"token_embd": "model.embeddings", "output_norm": "model.norm_f", "output": "lm_head"},
    {
        "attn_norm": "norm",
        **{f"attn_{name}": f"mixer.{name}_proj" for name in "qkv"},
        "attn_output": "mixer.o_proj",
        **_mamba("mixer"),
        "ffn_up": "mixer.up_proj",
        "ffn_down": "mixer.down_proj",
    },
    changes={**PERMUTED, **_MAMBA_CHANGES},
    flags={"use_conv_bias": "ssm_conv1d.bias", "use_bias": "ssm_in.bias", "mlp_bias": "ffn_up.bias"},
    derived=_nemotron_layers,
    ignored=("rope.dimension_count", "rope.freq_base"),
    heads="listed",
    has_rope=False,
)
_OF_EXPERTS = {key: field for key, field in ROUTED_FIELDS.items() if key.startswith("expert_")}
_NEMOTRON_H_MOE = replace(
    _NEMOTRON_H,
    fields={
        **_NEMOTRON_H.fields,
        **_OF_EXPERTS,
        "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
        "moe_latent_size": "moe_latent_size",
    },
    blocks={
        **_NEMOTRON_H.blocks,
        "ffn_gate_inp": "mixer.gate",
        "exp_probs_b.bias": "mixer.gate.e_score_correction_bias",
        "ffn_latent_down": "mixer.fc1_latent_proj",
        "ffn_latent_up": "mixer.fc2_latent_proj",
        **{f"ffn_{name}_shexp": f"mixer.shared_experts.{name}_proj" for name in ("up", "down")},
    },
    experts={f"ffn_{name}_exps": f"mixer.experts.{{e}}.{name}_proj" for name in ("up", "down")},
    required={"expert_gating_func": SIGMOID},
)


MAMBAS = {
    "lfm2": _LFM2,
    "mamba2": _MAMBA2,
    "falcon-h1": _FALCON_H1,
    "granitehybrid": _GRANITE_HYBRID,
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H_MOE,
}
MAMBA_VARIANTS = {"granitehybrid": {"rope.scaling.finetuned": _BAMBA}}
