"""OLMoE: experts in every layer, a norm over all query heads and one over all key heads."""

from dataclasses import replace

from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import EXPERT_NAMES, llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "OlmoeForCausalLM"
DEFAULTS = {"rms_norm_eps": 1e-5, "num_experts": 64, "num_experts_per_tok": 8}


def spec(config: HfConfig) -> DecoderSpec:
    clip = config.get("clip_qkv")
    norm, attention = rms_norm_part(config), biased_attention_part(config)
    attention = replace(attention, norm=norm, qk_norm="all", qkv_clip=None if clip is None else float(clip))
    count, top_k = int(config.need("num_experts")), int(config.need("num_experts_per_tok"))
    routing = RoutingSpec(top_k, norm_topk_prob=bool(config.get("norm_topk_prob", False)))
    moe = mixture_part(config, count, routing, mlp_part(config))
    layers = layers_part(config, attention, moe, rope_spec(config, attention.head_dim))
    return decoder_part(config, layers, norm, llama_names({}, EXPERT_NAMES))
