"""Solar Open: Llama's attention, experts with sigmoid routing."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import grouped_mixture
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import whole_rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "SolarOpenForCausalLM"
ALIASES = {"num_experts": "n_routed_experts"}
DEFAULTS = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 1280,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(config, has_qkv_bias=bool(config.get("attention_bias", False)))
    moe = grouped_mixture(config, mlp_part(config, size="moe_intermediate_size"))
    layers = layers_part(config, attention, moe, whole_rope_spec(config, attention.head_dim, theta=1e6))
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, SHARED_EXPERT_NAMES))
