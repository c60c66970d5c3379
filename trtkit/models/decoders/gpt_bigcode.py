"""SantaCoder and StarCoder: GPT-2 with one key/value head."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import GPT2_ALIASES, gpt2_names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.spec import DecoderSpec, EmbeddingSpec, LearnedPositions

HF_CLASS = "GPTBigCodeForCausalLM"
ALIASES = GPT2_ALIASES
DEFAULTS = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}
NAMES = gpt2_names(
    {
        "attention.qkv": "attn.c_attn",
        "attention.o": "attn.c_proj",
        "mlp.up": "mlp.c_fc",
        "mlp.down": "mlp.c_proj",
    }
)


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("add_cross_attention", False)
    is_multi_query = bool(config.get("multi_query", True))
    attention = attention_part(config, has_qkv_bias=True, has_output_bias=True)
    heads = 1 if is_multi_query else attention.num_attention_heads
    attention = replace(attention, num_key_value_heads=heads, qkv="concatenated" if is_multi_query else "grouped")
    if not config.get("scale_attn_weights", True):
        attention = replace(attention, scale=1.0)
    layers = layers_part(config, attention, plain_mlp_part(config), None)
    model = decoder_part(config, layers, layer_norm_part(config), NAMES)
    positions = EmbeddingSpec(positions=LearnedPositions(model.max_position_embeddings))
    return replace(model, embedding=positions, prefix="transformer.")
