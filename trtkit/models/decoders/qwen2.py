"""Qwen 2 and 2.5: Llama with biases on queries, keys and values."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, late_windows, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Qwen2ForCausalLM"
DEFAULTS = {"sliding_window": 4096, "num_key_value_heads": 32}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(config, has_qkv_bias=True)
    rope = rope_spec(config, attention.head_dim)
    layers = layers_part(config, attention, mlp_part(config), rope, late_windows(config))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
