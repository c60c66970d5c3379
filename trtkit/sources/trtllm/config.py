"""Conversion of a TensorRT-LLM checkpoint's config to the fields of a Hugging Face config.json.

Format: TensorRT-LLM's docs/source/architecture/checkpoint.md and its `models/*/config.py`, release 1.2.
"""

from collections.abc import Collection, Iterator
from typing import Any

from trtkit.errors import AGAIN, Problem, ProblemsError, SourceError
from trtkit.sources.quantized.trtllm import ALGORITHMS, CACHES
from trtkit.sources.trtllm.families import FAMILIES, family_of
from trtkit.sources.trtllm.fields import Family, Fields, head_size, inner_size, key_value_heads

_MAX_RANKS = 4096
_SIZES = ("num_hidden_layers", "num_attention_heads", "hidden_size", "vocab_size", "max_position_embeddings")
# Fields that affect the computation -> their neutral values.
_NEUTRAL: dict[str, tuple[float | str | None, ...]] = {
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
    "use_logn_attn": (None, False),
    "embedding_scale": (None, 1.0),
    "final_logit_softcapping": (None,),
    "attn_logit_softcapping": (None,),
    "inter_layernorms": (None, False),
    "clip_qkv": (None,),
    "partial_rotary_factor": (None, 1.0),
    "do_layer_norm_before": (None, True),
    "fc_after_embed": (None, False),
    "use_input_layernorm_in_first_layer": (None, True),
    "use_last_layernorm": (None, True),
    "layer_idx_offset": (None, 0),
}


_SCALED_GEMMA3 = (34, 48, 62)
"""Layers of Gemma 3 with 4, 12 and 27 billion parameters."""


def check_config(config: Fields, where: str) -> None:
    """Raise SourceError for an unknown architecture, ProblemsError for everything else that cannot be read."""
    architecture = config.get("architecture")
    if architecture not in FAMILIES:
        known = f"known: {', '.join(FAMILIES)}"
        raise SourceError(f"architecture `{architecture}` is not supported", where, known)
    family, needed = family_of(config), (*_SIZES, "hidden_act")
    problems = [f"`{name}` is missing" for name in (*needed, *family.needs) if config.get(name) is None]
    neutral = {name: values for name, values in _NEUTRAL.items() if name not in family.read}
    neutral["position_embedding_type"] = (None, *family.positions)
    if family.activations:
        neutral["hidden_act"] = (None, *family.activations)
    problems += [f"`{name}` is `{config[name]}`" for name, values in neutral.items() if config.get(name) not in values]
    problems += [*_quantization(config), *_experts(config, family), *_ranks_apart(config, family)]
    problems += [*_lost_scaling(config, family)]
    if problems:
        raise ProblemsError(
            "this TensorRT-LLM checkpoint is not supported", [Problem(what, where) for what in problems]
        )


def _quantization(config: Fields) -> Iterator[str]:
    quantization = config.get("quantization") or {}
    for name, readable in (("quant_algo", ALGORITHMS), ("kv_cache_quant_algo", CACHES)):
        if quantization.get(name) not in (None, *readable):
            yield f"`quantization.{name}` is `{quantization[name]}`: known: {', '.join(readable)}"


def _experts(config: Fields, family: Family) -> Iterator[str]:
    moe = config.get("moe") or {}
    if family.experts is None:
        if moe.get("num_experts"):
            yield f"`moe.num_experts` is `{moe['num_experts']}`"
        return
    for name in ("num_experts", "top_k"):
        if not moe.get(name):
            yield f"`moe.{name}` is missing"
    if moe.get("normalization_mode") not in family.experts.modes:
        yield f"`moe.normalization_mode` is `{moe.get('normalization_mode')}`"
    ranks = (config.get("mapping") or {}).get("moe_ep_size", 1)
    if ranks not in (1, -1):
        yield f"`mapping.moe_ep_size` is `{ranks}`: write the checkpoint with `moe_ep_size` 1"


def _ranks_apart(config: Fields, family: Family) -> Iterator[str]:
    if family.swapped is not None and tensor_size(config) > 1:
        yield f"`mapping.tp_size` is `{tensor_size(config)}`: write the checkpoint with `tp_size` 1"
    if family.model_type == "gpt_bigcode" and key_value_heads(config) != 1:
        yield f"`num_key_value_heads` is `{key_value_heads(config)}`"


def _lost_scaling(config: Fields, family: Family) -> Iterator[str]:
    """Gemma 3 of 4B parameters and more scales the positions of global layers by 8, which the converter leaves out."""
    layers = config.get("num_hidden_layers")
    if family.model_type == "gemma3_text" and layers in _SCALED_GEMMA3 and not config.get("rotary_scaling"):
        yield f"`rotary_scaling` is missing, which Gemma 3 of {layers} layers has: build from the original checkpoint"


def tensor_size(config: Fields) -> int:
    """Return the number of tensor-parallel ranks."""
    return _ranks(config, "tp_size")


def pipeline_size(config: Fields) -> int:
    """Return the number of pipeline stages."""
    return _ranks(config, "pp_size")


def _ranks(config: Fields, name: str) -> int:
    count = (config.get("mapping") or {}).get(name, 1)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MAX_RANKS:
        what = f"`mapping.{name}` is `{str(count)[:60]}`; expected an integer from 1 to {_MAX_RANKS}"
        raise SourceError(what, "config.json", AGAIN)
    return count


def hf_config(config: Fields, tensors: Collection[str]) -> dict[str, Any]:
    """Return the fields of a config.json. tensors: names in a rank, which show what has a bias and what is tied."""
    family = family_of(config)
    stated = {"norm_epsilon": 1e-5, **{name: value for name, value in config.items() if value is not None}}
    for name, module in (("attn_bias", "attention.qkv"), ("mlp_bias", "mlp.fc")):
        stated[name] = f"transformer.layers.0.{module}.bias" in tensors
    sizes = {**stated, "head_size": head_size(config), "num_key_value_heads": key_value_heads(config)}
    sizes["intermediate_size"] = inner_size(config)
    return {
        "model_type": family.model_type,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        **{hf: sizes[name] for name, hf in family.sizes.items()},
        **family.more(stated),
    }
