"""Qwen 1.5 and 2 mixtures of experts, with a shared expert."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import shared_expert_mixture
from trtkit.models.names import QWEN_EXPERT_NAMES, llama_names
from trtkit.models.parts import (
    attention_part,
    decoder_part,
    late_windows,
    layers_part,
    rms_norm_part,
    with_dense_layers,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Qwen2MoeForCausalLM"
DEFAULTS = {"num_key_value_heads": 16, "sliding_window": 4096}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(config, has_qkv_bias=bool(config.get("qkv_bias", True)))
    is_normed = bool(config.get("norm_topk_prob", False))
    moe = shared_expert_mixture(config, norm_topk_prob=is_normed, count=60, top_k=4)
    layers = layers_part(config, attention, moe, rope_spec(config, attention.head_dim), late_windows(config))
    layers = with_dense_layers(config, layers)
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, QWEN_EXPERT_NAMES))
