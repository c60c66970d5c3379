"""Qwen 3 Next: gated delta nets, gated attention in every fourth layer, experts."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import shared_expert_mixture
from trtkit.models.names import QWEN_EXPERT_NAMES, llama_names
from trtkit.models.parts import with_dense_layers
from trtkit.models.recurrent_parts import (
    DELTA_NAMES,
    delta_net_decoder,
    delta_net_part,
)
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Qwen3NextForCausalLM"
DEFAULTS = {
    "head_dim": 256,
    "intermediate_size": 5632,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 512,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
}


def spec(config: HfConfig) -> DecoderSpec:
    is_normed = bool(config.get("norm_topk_prob", True))
    moe = shared_expert_mixture(config, norm_topk_prob=is_normed, count=512, top_k=10)
    delta = replace(delta_net_part(config), is_grouped=True)
    model = delta_net_decoder(config, moe, delta, llama_names({}, {**DELTA_NAMES, **QWEN_EXPERT_NAMES}))
    return replace(model, layers=with_dense_layers(config, model.layers))
