"""Qwen 3 mixtures: Qwen 3 with experts."""

from dataclasses import replace

from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import EXPERT_NAMES, llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    layers_part,
    mlp_part,
    optional_windows,
    rms_norm_part,
    with_dense_layers,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Qwen3MoeForCausalLM"
ALIASES = {"num_experts": "num_local_experts"}
DEFAULTS = {"num_key_value_heads": 4, "sliding_window": 4096}


def spec(config: HfConfig) -> DecoderSpec:
    norm = rms_norm_part(config)
    attention = biased_attention_part(config)
    attention = replace(attention, norm=norm, qk_norm="head")
    count, top_k = int(config.get("num_experts", 128)), int(config.get("num_experts_per_tok", 8))
    routing = RoutingSpec(top_k, norm_topk_prob=bool(config.get("norm_topk_prob", False)))
    moe = mixture_part(config, count, routing, mlp_part(config, size="moe_intermediate_size"))
    layers = layers_part(config, attention, moe, rope_spec(config, attention.head_dim), optional_windows(config))
    layers = with_dense_layers(config, layers)
    return decoder_part(config, layers, norm, llama_names({}, EXPERT_NAMES))
