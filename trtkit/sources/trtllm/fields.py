"""Conversion of the family-specific part of a TensorRT-LLM config to fields of a Hugging Face config.json.

`attn_bias` and `mlp_bias` state what the tensors have. TensorRT-LLM keeps no sliding window, so there is none.

Format: TensorRT-LLM's `models/*/config.py` and its conversion scripts, release 1.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

QkvRows = Literal["apart", "joined", "by key head"]

SAME = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
SIZES = {**{name: name for name in SAME}, "intermediate_size": "intermediate_size"}
GROUPED = {**SIZES, "num_key_value_heads": "num_key_value_heads"}
GROUPS_AND_HEADS = {**GROUPED, "head_size": "head_dim"}


@dataclass(frozen=True)
class Experts:
    """HF's names of experts, all of which are in one tensor of a layer, up first.

    module: of each expert, by number. shared: HF's module of the expert for all tokens, if there is one. modes:
    supported values of `moe.normalization_mode`: 0 for unnormalized shares, 1 for shares that sum to 1.
    """

    module: str
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str | None = None
    modes: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Family:
    """One architecture, with transformers' `model_type`.

    outside, inside: HF's modules by TensorRT-LLM's, without and with the prefix of `layers` and a number. qkv: HF's
    modules of queries, keys and values; a single one if HF joins them. rows: the order of its rows. sizes: HF's fields
    by TensorRT-LLM's. more: the other fields. positions: supported kinds of position embedding. read: fields that most
    architectures may not state. needs: required fields. is_in_out: whether HF stores matrices as [in, out]. plus_one:
    norms that are stored with 1 added. swapped: the module with gate and up, up first. activations: permitted ones, if
    transformers always uses the same.
    """

    model_type: str
    outside: Mapping[str, str]
    inside: Mapping[str, str]
    qkv: tuple[str, ...]
    more: Callable[[Fields], Fields]
    layers: str = "model.layers"
    rows: QkvRows = "apart"
    sizes: Mapping[str, str] = field(default_factory=lambda: GROUPS_AND_HEADS)
    positions: tuple[str, ...] = ("rope_gpt_neox",)
    read: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_in_out: bool = False
    plus_one: tuple[str, ...] = ()
    swapped: str | None = None
    experts: Experts | None = None
    activations: tuple[str, ...] = ()


APART = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


Fields = Mapping[str, Any]
# TensorRT-LLM's `gelu` is the tanh form, under every name.
GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
"""Names of it."""


def key_value_heads(config: Fields) -> int:
    """Return the number of key/value heads."""
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def head_size(config: Fields) -> int:
    """Return the size of one head."""
    return int(config.get("head_size") or config["hidden_size"] // config["num_attention_heads"])


def inner_size(config: Fields) -> int:
    """Return the feed-forward layer's inner size: TensorRT-LLM's default if none is stated."""
    return int(config.get("intermediate_size") or 4 * config["hidden_size"])


def rope(config: Fields) -> dict[str, Any]:
    """Return `rope_parameters`. `rotary_scaling` has HF's names; the base defaults to 10000."""
    scaling = dict(config.get("rotary_scaling") or {})
    kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    scaling.pop("type", None)
    base = config.get("rotary_base") or config.get("rotary_emb_base") or 10000.0
    return {"rope_theta": float(base), "rope_type": kind, **scaling}


def _partial_rope(config: Fields) -> dict[str, Any]:
    part = config.get("rotary_pct")
    return {**rope(config), "partial_rotary_factor": 1.0 if part is None else float(part)}


def gelu_tanh(config: Fields) -> str:
    """Return the activation, with HF's name if it is a GELU."""
    return "gelu_pytorch_tanh" if config["hidden_act"] in GELU else str(config["hidden_act"])


def rotary(config: Fields) -> Fields:
    """Return the fields of most models with RMS norms and rotary embeddings."""
    return {
        "rms_norm_eps": config["norm_epsilon"],
        "hidden_act": config["hidden_act"],
        "rope_parameters": rope(config),
    }


def llama(config: Fields) -> Fields:
    """Return the fields of Llama."""
    return {**rotary(config), "attention_bias": config["attn_bias"], "mlp_bias": config["mlp_bias"]}


def granite(config: Fields) -> Fields:
    """Return the fields of Granite. Its attention factor is stored multiplied by the root of the head size."""
    return {
        **llama(config),
        "attention_multiplier": config["attention_multiplier"] / head_size(config) ** 0.5,
        "embedding_multiplier": config["embedding_multiplier"],
        "residual_multiplier": config["residual_multiplier"],
        "logits_scaling": 1 / config["output_multiplier_scale"],
    }


def mistral(config: Fields) -> Fields:
    """Return the fields of Mistral."""
    return {**rotary(config), "sliding_window": None}


def qwen2(config: Fields) -> Fields:
    """Return the fields of Qwen2."""
    return {**rotary(config), "use_sliding_window": False}


def qwen3(config: Fields) -> Fields:
    """Return the fields of Qwen3."""
    return {**qwen2(config), "attention_bias": config["attn_bias"]}


def _mixture(config: Fields) -> Fields:
    moe = config["moe"]
    sizes = {"num_experts": moe["num_experts"], "num_experts_per_tok": moe["top_k"]}
    sizes["moe_intermediate_size"] = config["moe_intermediate_size"]
    return {**sizes, "norm_topk_prob": bool(moe["normalization_mode"]), "hidden_act": "silu"}


def qwen2_moe(config: Fields) -> Fields:
    """Return the fields of Qwen's first mixtures, with a shared expert."""
    shared = config["moe_shared_expert_intermediate_size"]
    return {**qwen2(config), **_mixture(config), "shared_expert_intermediate_size": shared}


def qwen3_moe(config: Fields) -> Fields:
    """Return the fields of Qwen3's mixtures."""
    return {**qwen3(config), **_mixture(config)}


def mixtral(config: Fields) -> Fields:
    """Return the fields of Mixtral."""
    moe = config["moe"]
    sizes = {"num_local_experts": moe["num_experts"], "num_experts_per_tok": moe["top_k"]}
    return {**mistral(config), **sizes, "hidden_act": "silu"}


def gemma(config: Fields) -> Fields:
    """Return the fields of Gemma."""
    return {**rotary(config), "hidden_act": gelu_tanh(config)}


def gemma2(config: Fields) -> Fields:
    """Return the fields of Gemma 2. Its window is not stated: transformers' default, as in all published models."""
    names = ("query_pre_attn_scalar", "final_logit_softcapping", "attn_logit_softcapping")
    return {**gemma(config), **{name: config.get(name) for name in names}}


def gemma3(config: Fields) -> Fields:
    """Return the fields of Gemma 3: of its text model."""
    fields = {name: config.get(name) for name in ("query_pre_attn_scalar", "final_logit_softcapping", "sliding_window")}
    local = float(config["rope_local_base_freq"])
    fields["sliding_window_pattern"] = config["_sliding_window_pattern"]
    turned = {"sliding_attention": {"rope_type": "default", "rope_theta": local}, "full_attention": rope(config)}
    return {**gemma(config), **fields, "rope_parameters": turned}


def starcoder2(config: Fields) -> Fields:
    """Return the fields of StarCoder2."""
    fields = {"norm_epsilon": config["norm_epsilon"], "use_bias": config["attn_bias"]}
    return {**fields, "sliding_window": None, "hidden_act": gelu_tanh(config), "rope_parameters": rope(config)}


def nemotron(config: Fields) -> Fields:
    """Return the fields of Nemotron."""
    squared = config["hidden_act"] in ("squared-relu", "relu2")
    return {
        "norm_eps": config["norm_epsilon"],
        "hidden_act": "relu2" if squared else config["hidden_act"],
        "rope_parameters": _partial_rope(config),
        "attention_bias": config["attn_bias"],
        "mlp_bias": config["mlp_bias"],
    }


def phi(config: Fields) -> Fields:
    """Return the fields of Phi."""
    fields = {"layer_norm_eps": config["norm_epsilon"], "hidden_act": config["hidden_act"]}
    return {**fields, "rope_parameters": _partial_rope(config)}


def phi3(config: Fields) -> Fields:
    """Return the fields of Phi-3. `swiglu` means gated SiLU."""
    parameters = _partial_rope(config)
    kept = {}
    if config.get("position_embedding_type") == "long_rope":
        kept["original_max_position_embeddings"] = config["original_max_position_embeddings"]
        factors = {f"{name}_factor": config[f"longrope_scaling_{name}_factors"] for name in ("short", "long")}
        parameters |= {"rope_type": "longrope", **factors, **kept}
    activation = "silu" if config["hidden_act"] == "swiglu" else config["hidden_act"]
    return {**mistral(config), "hidden_act": activation, "rope_parameters": parameters, **kept}


def cohere(config: Fields) -> Fields:
    """Return the fields of Command R."""
    return {
        "layer_norm_eps": config["norm_epsilon"],
        "logit_scale": config["output_multiplier_scale"],
        "hidden_act": config["hidden_act"],
        "rope_parameters": rope(config),
        "attention_bias": config["attn_bias"],
        "use_qk_norm": bool(config.get("qk_layernorm")),
    }


def gpt_neox(config: Fields) -> Fields:
    """Return the fields of GPT-NeoX. TensorRT-LLM always adds attention and feed-forward to the same input."""
    fields = {"layer_norm_eps": config["norm_epsilon"], "attention_bias": config["attn_bias"]}
    fields |= {"hidden_act": config["hidden_act"], "use_parallel_residual": True}
    return {**fields, "rope_parameters": _partial_rope(config)}


def gptj(config: Fields) -> Fields:
    """Return the fields of GPT-J."""
    fields = {"layer_norm_epsilon": config["norm_epsilon"], "activation_function": "gelu_new"}
    return {**fields, "rotary_dim": config["rotary_dim"]}


def gpt2(config: Fields) -> Fields:
    """Return the fields of GPT-2."""
    activation = "gelu_new" if config["hidden_act"] in GELU else config["hidden_act"]
    return {"layer_norm_epsilon": config["norm_epsilon"], "activation_function": activation}


def gpt_bigcode(config: Fields) -> Fields:
    """Return the fields of StarCoder: one key head."""
    return {**gpt2(config), "activation_function": gelu_tanh(config), "multi_query": True}


def bloom(config: Fields) -> Fields:
    """Return the fields of BLOOM."""
    return {"layer_norm_epsilon": config["norm_epsilon"]}


def opt(config: Fields) -> Fields:
    """Return the fields of OPT. Projections of narrower embeddings are multiplied into them."""
    return {
        "activation_function": config["hidden_act"],
        "do_layer_norm_before": config.get("do_layer_norm_before", True),
        "word_embed_proj_dim": config["hidden_size"],
    }


def mpt(config: Fields) -> Fields:
    """Return the fields of MPT."""
    attention = {"alibi": True, "clip_qkv": config.get("clip_qkv"), "alibi_bias_max": config.get("alibi_bias_max", 8)}
    ratio = inner_size(config) // config["hidden_size"]
    return {"attn_config": attention, "layer_norm_epsilon": config["norm_epsilon"], "expansion_ratio": ratio}


def falcon(config: Fields) -> Fields:
    """Return the fields of Falcon, whose rotary base TensorRT-LLM does not store: 10000."""
    keys, is_new = key_value_heads(config), bool(config.get("new_decoder_architecture"))
    return {
        "layer_norm_epsilon": config["norm_epsilon"],
        "bias": config["mlp_bias"],
        "alibi": str(config.get("position_embedding_type")).startswith("alibi"),
        "new_decoder_architecture": is_new,
        "parallel_attn": bool(config.get("parallel_attention")),
        "multi_query": keys == 1 and not is_new,
        "num_kv_heads": keys,
        "ffn_hidden_size": inner_size(config),
        "rope_parameters": rope(config),
    }
