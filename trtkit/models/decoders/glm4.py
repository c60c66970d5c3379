"""GLM 4 (0414): GLM with norms before and after each part."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "Glm4ForCausalLM"
DEFAULTS = {"head_dim": 128, "num_key_value_heads": 2, "rms_norm_eps": 1.5625e-7}
INSIDE = {"mlp.gate_up": "mlp.gate_up_proj"}
NORMS = {
    "attention_norm": "input_layernorm",
    "post_attention_norm": "post_self_attn_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "post_mlp_norm": "post_mlp_layernorm",
}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(config, has_qkv_bias=bool(config.get("attention_bias", True)))
    mlp = replace(mlp_part(config), is_fused=True)
    rope = rope_spec(config, attention.head_dim, partial=0.5, is_interleaved=True)
    layers = layers_part(config, attention, mlp, rope)
    norm = rms_norm_part(config)
    model = decoder_part(config, layers, norm, llama_names({}, {**INSIDE, **NORMS}))
    return replace(model, block=BlockSpec(norm, tuple(NORMS)))
