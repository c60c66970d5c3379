"""Say in the fields of a Hugging Face config.json what a TensorRT-LLM checkpoint's config says.

Format: TensorRT-LLM's docs/source/architecture/checkpoint.md and its `models/*/config.py`, release 1.2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trtkit.errors import AGAIN, Problem, ProblemsError, SourceError
from trtkit.sources.quantized.trtllm import ALGORITHMS, CACHES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

# HF's `model_type` by TensorRT-LLM's architecture.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "GPT2LMHeadModel": "gpt2",
    "GPTForCausalLM": "gpt2",
}
_MAX_RANKS = 4096
_FIELDS = (
    "num_hidden_layers",
    "num_attention_heads",
    "hidden_size",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
_GPT2_NAMES = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
# Fields that change what is computed -> the values that change nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "rotary_pct": (None, 1.0),
    "embedding_multiplier": (None, 1.0),
    "attention_multiplier": (None, 1.0),
    "residual_multiplier": (None, 1.0),
    "output_multiplier_scale": (None, 1.0),
    "q_scaling": (None, 1.0),
    "residual_mlp": (None, False),
    "qk_layernorm": (None, False),
    "apply_query_key_layer_scaling": (None, False),
    "sliding_window_causal_mask": (None, False),
}
# TensorRT-LLM's `gelu` is the tanh form, whatever it is called.
_GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Raise SourceError for an architecture that is not known, ProblemsError for all else that cannot be read."""
    architecture = config.get("architecture")
    if architecture not in ARCHITECTURES:
        known = f"known: {', '.join(ARCHITECTURES)}"
        raise SourceError(f"architecture `{architecture}` is not supported", where, known)
    needed = (*_FIELDS, "norm_epsilon", "hidden_act")
    problems = [f"`{name}` is missing" for name in needed if config.get(name) is None]
    problems += [f"`{name}` is `{config[name]}`" for name, ok in _NEUTRAL.items() if config.get(name) not in ok]
    quantization, moe = config.get("quantization") or {}, config.get("moe") or {}
    for name, readable in (("quant_algo", ALGORITHMS), ("kv_cache_quant_algo", CACHES)):
        if quantization.get(name) not in (None, *readable):
            listed = ", ".join(readable)
            problems.append(f"`quantization.{name}` is `{quantization[name]}`: known: {listed}")
    if moe.get("num_experts"):
        problems.append(f"`moe.num_experts` is `{moe['num_experts']}`")
    if pipeline_size(config) > 1:
        problems.append(f"`mapping.pp_size` is `{pipeline_size(config)}`: write the checkpoint with `pp_size` 1")
    if problems:
        raise ProblemsError(
            "this TensorRT-LLM checkpoint is not supported", [Problem(what, where) for what in problems]
        )


def tensor_size(config: Mapping[str, Any]) -> int:
    """Return the number of tensor-parallel ranks."""
    return _ranks(config, "tp_size")


def pipeline_size(config: Mapping[str, Any]) -> int:
    """Return the number of pipeline stages."""
    return _ranks(config, "pp_size")


def _ranks(config: Mapping[str, Any], name: str) -> int:
    count = (config.get("mapping") or {}).get(name, 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MAX_RANKS:
        what = f"`mapping.{name}` is `{str(count)[:60]}`; expected an integer from 1 to {_MAX_RANKS}"
        raise SourceError(what, "config.json", AGAIN)
    return count


def key_value_heads(config: Mapping[str, Any]) -> int:
    """Return the number of key/value heads."""
    return int(config.get("num_key_value_heads") or config["num_attention_heads"])


def head_size(config: Mapping[str, Any]) -> int:
    """Return the size of one head."""
    return int(config.get("head_size") or config["hidden_size"] // config["num_attention_heads"])


def hf_config(config: Mapping[str, Any], tensors: Collection[str]) -> dict[str, Any]:
    """Return the fields of a config.json. tensors: names in a rank, which say what has a bias and what is tied."""
    model_type = ARCHITECTURES[config["architecture"]]
    fields = {"model_type": model_type, "tie_word_embeddings": "lm_head.weight" not in tensors}
    if model_type == "gpt2":
        activation = "gelu_new" if config["hidden_act"] in _GELU else config["hidden_act"]
        fields |= {_GPT2_NAMES.get(name, name): config[name] for name in _FIELDS}
        return fields | {"layer_norm_epsilon": config["norm_epsilon"], "activation_function": activation}
    fields |= {name: config[name] for name in _FIELDS}
    fields |= {"num_key_value_heads": key_value_heads(config), "head_dim": head_size(config)}
    fields |= {"rms_norm_eps": config["norm_epsilon"], "hidden_act": config["hidden_act"]}
    fields["rope_parameters"] = _rope(config)
    if model_type == "llama":
        fields["attention_bias"] = "transformer.layers.0.attention.qkv.bias" in tensors
        fields["mlp_bias"] = "transformer.layers.0.mlp.fc.bias" in tensors
    else:
        fields["use_sliding_window"] = False
    return fields


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_parameters`. `rotary_scaling` has HF's names; the base is 10000 where none is stated."""
    scaling = dict(config.get("rotary_scaling") or {})
    kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    scaling.pop("type", None)
    return {"rope_theta": float(config.get("rotary_base") or 10000.0), "rope_type": kind, **scaling}
