"""LFM 2: gated short convolutions, some of them replaced by attention."""

from dataclasses import replace

from trtkit.models.attention import NormSpec
from trtkit.models.feed_forward import MlpSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layer_types, layers_part
from trtkit.models.recurrent_parts import conv_part, with_mixer
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Lfm2ForCausalLM"
ALIASES = {"intermediate_size": "block_ff_dim", "tie_word_embeddings": "tie_embedding"}
DEFAULTS = {"intermediate_size": 12288, "tie_word_embeddings": True, "block_ffn_dim_multiplier": 1.0, "norm_eps": 1e-5}
# Fields of published configs that transformers does not read: it always computes these values.
FIXED = {"block_use_swiglu": True, "use_pos_enc": True}
TWICE = {"block_dim": "hidden_size", "conv_dim": "hidden_size", "conv_dim_out": "hidden_size"}
TWICE |= {"num_heads": "num_attention_heads", "block_norm_eps": "norm_eps"}
OUTSIDE = {"final_norm": "model.embedding_norm"}
INSIDE = {
    **{"attention_norm": "operator_norm", "mlp_norm": "ffn_norm"},
    "attention.o": "self_attn.out_proj",
    "attention.q_norm": "self_attn.q_layernorm",
    "attention.k_norm": "self_attn.k_layernorm",
    **{"conv.in": "conv.in_proj", "conv.taps": "conv.conv", "conv.out": "conv.out_proj"},
    **{"mlp.gate": "feed_forward.w1", "mlp.up": "feed_forward.w3", "mlp.down": "feed_forward.w2"},
}


def spec(config: HfConfig) -> DecoderSpec:
    norm = NormSpec("rms", float(config.need("norm_eps")))
    for name, supported in {**FIXED, **{name: config.get(same) for name, same in TWICE.items()}}.items():
        config.refuse(name, supported)
    attention = replace(attention_part(config), norm=norm, qk_norm="head")
    rope, count = rope_spec(config, attention.head_dim, theta=1000000.0), int(config.need("num_hidden_layers"))
    full = config.get("full_attn_idxs", list(range(count)))
    usual = ["full_attention" if index in full else "conv" for index in range(count)]
    types = layer_types(config, usual, ("full_attention", "conv"))
    layers = with_mixer(layers_part(config, attention, _mlp(config), rope), types, "conv", conv_part(config))
    return decoder_part(config, layers, norm, llama_names(OUTSIDE, INSIDE))


def _mlp(config: HfConfig) -> MlpSpec:
    """Return the MLP. If the config adjusts its size: two thirds of it, times a factor, rounded up."""
    size, factor = int(config.need("intermediate_size")), config.get("block_ffn_dim_multiplier")
    multiple = int(config.get("block_multiple_of", 256))
    if not config.get("block_auto_adjust_ff_dim", True):
        return MlpSpec(size, "silu")
    size = int(2 * size / 3)
    if factor is not None:
        size = -(-int(float(factor) * size) // multiple) * multiple
    return MlpSpec(size, "silu")
