"""InternLM 3: Llama with head_dim 128. The reference is `LlamaForCausalLM` with an `InternLM3Config`."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "LlamaForCausalLM"
ALIASES = {"attention_bias": "qkv_bias", "mlp_bias": "bias"}
DEFAULTS = {"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 32768}


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes. Raises SourceError if only one of attention and MLP has biases."""
    attention = biased_attention_part(config)
    config.refuse("mlp_bias", attention.has_qkv_bias)
    mlp = mlp_part(config, has_bias=attention.has_qkv_bias)
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
