"""Falcon: 7B (multi-query), 40B and 180B (grouped-query), and the models with ALiBi."""

from dataclasses import replace

from trtkit.models.attention import RopeSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "FalconForCausalLM"
ALIASES = {
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "ffn_hidden_size",
    "hidden_act": "activation",
    "layer_norm_eps": "layer_norm_epsilon",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
}
DEFAULTS = {"tie_word_embeddings": True, "max_position_embeddings": 2048}
_AT, _LAYER = "transformer.", "transformer.h.{i}."
_OUTSIDE = {"embedding": _AT + "word_embeddings", "final_norm": _AT + "ln_f", "lm_head": "lm_head"}
_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
_ATTENTION = {"attention.qkv": "self_attention.query_key_value", "attention.o": "self_attention.dense"}
_MLP = {"mlp.up": "mlp.dense_h_to_4h", "mlp.down": "mlp.dense_4h_to_h"}
NAMES = names(_LAYER, _OUTSIDE, {**_NORMS, **_ATTENTION, **_MLP})
TWO_NORMS = {"layers.{i}.attention_norm": _LAYER + "ln_attn", "layers.{i}.mlp_norm": _LAYER + "ln_mlp"}


def spec(config: HfConfig) -> DecoderSpec:
    is_new, is_multi_query = bool(config.get("new_decoder_architecture", False)), bool(config.get("multi_query", True))
    is_parallel = bool(config.get("parallel_attn", True)) or is_new
    has_two_norms = is_new and int(config.get("num_ln_in_parallel_attn", 2)) == 2
    has_bias, norm = bool(config.get("bias", False)), layer_norm_part(config)
    attention = attention_part(config, has_qkv_bias=has_bias, has_output_bias=has_bias)
    heads = attention.num_key_value_heads if is_new else 1 if is_multi_query else attention.num_attention_heads
    is_joined = is_multi_query and not is_new
    attention = replace(attention, num_key_value_heads=heads, qkv="concatenated" if is_joined else "grouped")
    rope: RopeSpec | None = rope_spec(config, attention.head_dim)
    if config.get("alibi", False):
        attention, rope = replace(attention, has_alibi=True, alibi_scale=attention.scale), None
    layers = layers_part(config, attention, plain_mlp_part(config, has_bias=has_bias), rope)
    model = decoder_part(config, layers, norm, NAMES | (TWO_NORMS if has_two_norms else {}))
    norms = ("attention_norm", "mlp_norm") if has_two_norms or not is_parallel else ("attention_norm",)
    return replace(model, block=BlockSpec(norm, norms, is_parallel), prefix="transformer.")
