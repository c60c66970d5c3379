"""StableLM 2 and 3B: Llama with layer norms and a rotary embedding of a part of each head."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, mlp_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "StableLmForCausalLM"
INSIDE = {
    "attention.q_norm.heads.{e}": "self_attn.q_layernorm.norms.{e}",
    "attention.k_norm.heads.{e}": "self_attn.k_layernorm.norms.{e}",
}


def spec(config: HfConfig) -> DecoderSpec:
    norm = layer_norm_part(config)
    attention = attention_part(config, has_qkv_bias=bool(config.get("use_qkv_bias", False)))
    if config.get("qk_layernorm", False):
        attention = replace(attention, norm=replace(norm, has_bias=False), qk_norm="listed_heads")
    layers = layers_part(config, attention, mlp_part(config), rope_spec(config, attention.head_dim, partial=0.25))
    model = decoder_part(config, layers, norm, llama_names({}, INSIDE))
    is_parallel = bool(config.get("use_parallel_residual", False))
    norms = ("attention_norm",) if is_parallel else ("attention_norm", "mlp_norm")
    return replace(model, block=BlockSpec(norm, norms, is_parallel))
