"""StarCoder 2: grouped-query attention, layer norms, ungated MLPs."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import (
    attention_part,
    decoder_part,
    layer_norm_part,
    layers_part,
    plain_mlp_part,
    sliding_windows,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Starcoder2ForCausalLM"
ALIASES = {"layer_norm_eps": "norm_epsilon"}
DEFAULTS = {"hidden_act": "gelu_pytorch_tanh", "num_key_value_heads": 2, "tie_word_embeddings": True}
INSIDE = {"mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("mlp_type", "default")
    config.refuse("norm_type", "layer_norm")
    has_bias = bool(config.get("use_bias", True))
    attention = attention_part(config, has_qkv_bias=has_bias, has_output_bias=has_bias)
    mlp, rope = plain_mlp_part(config, has_bias=has_bias), rope_spec(config, attention.head_dim)
    layers = layers_part(config, attention, mlp, rope, sliding_windows(config))
    return decoder_part(config, layers, layer_norm_part(config), llama_names({}, INSIDE))
