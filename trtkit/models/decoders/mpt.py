"""MPT: ALiBi, layer norms without biases."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "MptForCausalLM"
ALIASES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "layer_norm_eps": "layer_norm_epsilon",
}
DEFAULTS = {"tie_word_embeddings": True, "max_position_embeddings": 2048}
# Fields of published configs that transformers does not read: it always computes these values.
FIXED = {"no_bias": True, "logit_scale": 1.0, "expansion_ratio": 4}
ATTENTION = {"attn_type": "multihead_attention", "alibi": True, "alibi_bias_max": 8}
OFF = ("qk_ln", "prefix_lm", "attn_uses_sequence_id")
IMMATERIAL = ("learned_pos_emb", "embedding_fraction", "emb_pdrop", "init_config", "verbose")
NAMES = names(
    "transformer.blocks.{i}.",
    {"embedding": "transformer.wte", "final_norm": "transformer.norm_f", "lm_head": "lm_head"},
    {
        "attention_norm": "norm_1",
        "attention.qkv": "attn.Wqkv",
        "attention.o": "attn.out_proj",
        "mlp_norm": "norm_2",
        "mlp.up": "ffn.up_proj",
        "mlp.down": "ffn.down_proj",
    },
)


def spec(config: HfConfig) -> DecoderSpec:
    for name, fixed in FIXED.items():
        config.refuse(name, fixed)
    config.refuse("norm_type", "low_precision_layernorm", "layernorm")
    for name in IMMATERIAL:
        config.get(name)
    stated = HfConfig(config.get("attn_config", {}), config.where)
    for name, value in ATTENTION.items():
        stated.refuse(name, value)
    for name in OFF:
        stated.refuse(name, False)
    stated.get("attn_impl")
    clip = stated.get("clip_qkv") or None
    attention = replace(attention_part(config), qkv="concatenated", has_alibi=True, qkv_clip=clip)
    attention = replace(attention, scale=float(stated.get("softmax_scale", attention.scale)))
    stated.check_all_read()
    layers = layers_part(config, attention, plain_mlp_part(config, has_bias=False), None)
    return replace(decoder_part(config, layers, layer_norm_part(config, has_bias=False), NAMES), prefix="transformer.")
