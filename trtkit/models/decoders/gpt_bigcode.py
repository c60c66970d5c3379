"""SantaCoder and StarCoder: GPT-2 with one key/value head. HF: `GPTBigCodeForCausalLM`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.models.names import names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.spec import EmbeddingSpec, LearnedPositions

if TYPE_CHECKING:
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import DecoderSpec

ALIASES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
    "hidden_act": "activation_function",
    "layer_norm_eps": "layer_norm_epsilon",
}
DEFAULTS = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}
_AT = "transformer."
_TABLES = {"embedding": _AT + "wte", "position_embedding": _AT + "wpe"}
_OUTSIDE = {**_TABLES, "final_norm": _AT + "ln_f", "lm_head": "lm_head"}
_ATTENTION = {"attention_norm": "ln_1", "attention.qkv": "attn.c_attn", "attention.o": "attn.c_proj"}
_MLP = {"mlp_norm": "ln_2", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
NAMES = names(_AT + "h.{i}.", _OUTSIDE, {**_ATTENTION, **_MLP})


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes."""
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
