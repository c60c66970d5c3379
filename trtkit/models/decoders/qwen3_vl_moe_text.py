"""The language model of Qwen3-VL mixtures: Qwen 3's mixture with interleaved M-RoPE."""

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
    rms_norm_part,
    with_dense_layers,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Qwen3VLMoeTextModel"
ALIASES = {"num_experts": "num_local_experts"}
DEFAULTS = {"max_position_embeddings": 128000, "moe_intermediate_size": 1408, "num_key_value_heads": 16}
SECTIONS = (24, 20, 20)


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("norm_topk_prob", True)
    norm = rms_norm_part(config)
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="head")
    count, top_k = int(config.get("num_experts", 60)), int(config.get("num_experts_per_tok", 4))
    routing = RoutingSpec(top_k, norm_topk_prob=True)
    moe = mixture_part(config, count, routing, mlp_part(config, size="moe_intermediate_size"))
    # Sections are always interleaved, whatever the config states.
    names = ("mrope_interleaved",)
    rope = rope_spec(config, attention.head_dim, theta=500000.0, default_sections=SECTIONS, ignored=names)
    layers = with_dense_layers(config, layers_part(config, attention, moe, rope))
    return decoder_part(config, layers, norm, llama_names({}, EXPERT_NAMES))
