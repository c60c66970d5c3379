"""CWM: Llama with sliding layers; every fourth layer, from the first on, is full."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, layers_part, mlp_part, rms_norm_part, sliding_windows
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "CwmForCausalLM"
DEFAULTS = {"head_dim": 128, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": 8192}
ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(config)
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    rope = rope_spec(config, attention.head_dim, theta=1e6, parameters=ROPE)
    types = ["sliding_attention" if i % 4 else "full_attention" for i in range(int(config.need("num_hidden_layers")))]
    layers = layers_part(config, attention, mlp, rope, sliding_windows(config, types))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
