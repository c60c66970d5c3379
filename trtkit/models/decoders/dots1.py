"""dots.llm1: Qwen 3's attention, experts with sigmoid routing."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import grouped_mixture, with_first_dense
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    layers_part,
    mlp_part,
    rms_norm_part,
    sliding_windows,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Dots1ForCausalLM"
ALIASES = {"num_experts": "n_routed_experts"}
DEFAULTS = {"num_key_value_heads": 32, "norm_topk_prob": False, "sliding_window": 4096}


def spec(config: HfConfig) -> DecoderSpec:
    norm = rms_norm_part(config)
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="head")
    first, count = int(config.get("max_window_layers", 62)), int(config.need("num_hidden_layers"))
    types = ["full_attention" if index < first else "sliding_attention" for index in range(count)]
    rope = rope_spec(config, attention.head_dim)
    moe = grouped_mixture(config, mlp_part(config, size="moe_intermediate_size"))
    layers = layers_part(config, attention, moe, rope, sliding_windows(config, types))
    layers = with_first_dense(config, layers, mlp_part(config))
    return decoder_part(config, layers, norm, llama_names({}, SHARED_EXPERT_NAMES))
