"""BLOOM: ALiBi, layer norms, and a norm on the embedding."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.spec import DecoderSpec, EmbeddingSpec

HF_CLASS = "BloomForCausalLM"
ALIASES = {
    "hidden_size": "n_embed",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "layer_norm_eps": "layer_norm_epsilon",
}
DEFAULTS = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}
NAMES = names(
    "transformer.h.{i}.",
    {
        "embedding": "transformer.word_embeddings",
        "embedding_norm": "transformer.word_embeddings_layernorm",
        "final_norm": "transformer.ln_f",
        "lm_head": "lm_head",
    },
    {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "attention.qkv": "self_attention.query_key_value",
        "attention.o": "self_attention.dense",
        "mlp.up": "mlp.dense_h_to_4h",
        "mlp.down": "mlp.dense_4h_to_h",
    },
)


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("apply_residual_connection_post_layernorm", False)
    norm = layer_norm_part(config)
    attention = attention_part(config, has_qkv_bias=True, has_output_bias=True)
    attention = replace(attention, qkv="grouped", has_alibi=True)
    layers = layers_part(config, attention, plain_mlp_part(config), None)
    model = decoder_part(config, layers, norm, NAMES)
    return replace(model, embedding=EmbeddingSpec(norm=norm), prefix="transformer.")
