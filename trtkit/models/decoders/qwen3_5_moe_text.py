"""The language model of Qwen 3.5 mixtures: gated delta nets, some of them replaced by gated attention; experts."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import shared_expert_mixture
from trtkit.models.names import QWEN_EXPERT_NAMES, llama_names
from trtkit.models.recurrent_parts import (
    DELTA_NAMES,
    delta_net_decoder,
    delta_net_part,
)
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Qwen3_5MoeForCausalLM"
DEFAULTS = {
    "head_dim": 256,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 512,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
}
SECTIONS = (11, 11, 10)


def spec(config: HfConfig) -> DecoderSpec:
    moe = shared_expert_mixture(config, norm_topk_prob=True, count=256, top_k=8)
    names = llama_names({}, {**DELTA_NAMES, **QWEN_EXPERT_NAMES})
    return delta_net_decoder(config, moe, delta_net_part(config), names, SECTIONS)
