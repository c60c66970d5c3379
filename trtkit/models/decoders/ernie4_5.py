"""ERNIE 4.5, dense: Llama with interleaved rotary pairs."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "Ernie4_5ForCausalLM"
DEFAULTS = {"head_dim": 128, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}


def spec(config: HfConfig) -> DecoderSpec:
    has_bias = bool(config.get("use_bias", False))
    attention = attention_part(config, has_qkv_bias=has_bias, has_output_bias=has_bias)
    rope = rope_spec(config, attention.head_dim, theta=500000.0, is_interleaved=True)
    layers = layers_part(config, attention, mlp_part(config, has_bias=has_bias), rope)
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
