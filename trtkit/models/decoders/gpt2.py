"""GPT-2. Its checkpoints store matrices as [in, out]."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import GPT2_ALIASES, gpt2_names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.spec import DecoderSpec, EmbeddingSpec, LearnedPositions

HF_CLASS = "GPT2LMHeadModel"
ALIASES = GPT2_ALIASES
DEFAULTS = {"hidden_act": "gelu_new", "tie_word_embeddings": True}
NAMES = gpt2_names(
    {
        "attention.qkv": "attn.c_attn",
        "attention.o": "attn.c_proj",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    }
)


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("scale_attn_by_inverse_layer_idx", False)
    config.refuse("add_cross_attention", False)
    attention = attention_part(config, has_qkv_bias=True, has_output_bias=True)
    attention = replace(attention, qkv="concatenated")
    if not config.get("scale_attn_weights", True):
        attention = replace(attention, scale=1.0)
    layers = layers_part(config, attention, plain_mlp_part(config), None)
    model = decoder_part(config, layers, layer_norm_part(config), NAMES)
    positions = EmbeddingSpec(positions=LearnedPositions(model.max_position_embeddings))
    return replace(model, embedding=positions, is_in_out=True, prefix="transformer.")
