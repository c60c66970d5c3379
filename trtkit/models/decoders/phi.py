"""Phi 1, 1.5 and 2: parallel attention and MLP with a single norm."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "PhiForCausalLM"
DEFAULTS = {"hidden_act": "gelu_new"}
INSIDE = {
    "attention.o": "self_attn.dense",
    "attention.q_norm": "self_attn.q_layernorm",
    "attention.k_norm": "self_attn.k_layernorm",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}


def spec(config: HfConfig) -> DecoderSpec:
    norm = layer_norm_part(config)
    attention = attention_part(config, has_qkv_bias=True, has_output_bias=True)
    if config.get("qk_layernorm", False):
        attention = replace(attention, norm=norm, qk_norm="head")
    layers = layers_part(config, attention, plain_mlp_part(config), rope_spec(config, attention.head_dim, partial=0.5))
    model = decoder_part(config, layers, norm, llama_names({"final_norm": "model.final_layernorm"}, INSIDE))
    block = BlockSpec(norm, ("attention_norm",), is_parallel=True)
    return replace(model, block=block, head=replace(model.head, has_bias=True))
