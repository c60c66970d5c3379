"""GLM: interleaved rotary pairs in a part of each head, gate and up in one matrix."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "GlmForCausalLM"
DEFAULTS = {"head_dim": 128, "num_key_value_heads": 2, "rms_norm_eps": 1.5625e-7}
INSIDE = {"mlp.gate_up": "mlp.gate_up_proj"}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(config, has_qkv_bias=bool(config.get("attention_bias", True)))
    mlp = replace(mlp_part(config), is_fused=True)
    rope = rope_spec(config, attention.head_dim, partial=0.5, is_interleaved=True)
    layers = layers_part(config, attention, mlp, rope)
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, INSIDE))
