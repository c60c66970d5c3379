"""Phi 3, 3.5 and 4: Llama with fused projections, and LongRoPE."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part, sliding_windows
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Phi3ForCausalLM"
DEFAULTS = {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096}
INSIDE = {"attention.qkv": "self_attn.qkv_proj", "mlp.gate_up": "mlp.gate_up_proj"}


def spec(config: HfConfig) -> DecoderSpec:
    attention = replace(attention_part(config), qkv="concatenated")
    mlp = replace(mlp_part(config), is_fused=True)
    rope = rope_spec(config, attention.head_dim, partial=1.0)
    layers = layers_part(config, attention, mlp, rope, sliding_windows(config))
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, INSIDE))
