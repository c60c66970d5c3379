"""Mixtral: Mistral with a mixture of experts in every layer."""

from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import MIXTRAL_EXPERT_NAMES, llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part, sliding_windows
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "MixtralForCausalLM"
DEFAULTS = {"num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8, "rms_norm_eps": 1e-5}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(config)
    count, top_k = int(config.need("num_local_experts")), int(config.need("num_experts_per_tok"))
    moe = mixture_part(config, count, RoutingSpec(top_k), mlp_part(config))
    layers = layers_part(
        config, attention, moe, rope_spec(config, attention.head_dim, theta=1e6), sliding_windows(config)
    )
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, MIXTRAL_EXPERT_NAMES))
