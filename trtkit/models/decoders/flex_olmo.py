"""FlexOlmo: OLMo 2 with experts."""

from dataclasses import replace

from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import EXPERT_NAMES, POST_NORMS, llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "FlexOlmoForCausalLM"
DEFAULTS = {"max_position_embeddings": 4096, "num_experts": 7, "num_experts_per_tok": 5}


def spec(config: HfConfig) -> DecoderSpec:
    norm = rms_norm_part(config)
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="all")
    routing = RoutingSpec(
        int(config.need("num_experts_per_tok")), norm_topk_prob=bool(config.get("norm_topk_prob", False))
    )
    moe = mixture_part(config, int(config.need("num_experts")), routing, mlp_part(config))
    layers = layers_part(config, attention, moe, rope_spec(config, attention.head_dim, theta=500000.0))
    model = decoder_part(config, layers, norm, llama_names({}, {**EXPERT_NAMES, **POST_NORMS}))
    return replace(model, block=BlockSpec(norm, tuple(POST_NORMS)))
