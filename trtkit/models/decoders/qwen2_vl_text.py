"""The language model of Qwen2-VL and Qwen2.5-VL: Qwen 2 with M-RoPE."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import attention_part, decoder_part, late_windows, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = {"qwen2_vl_text": "Qwen2VLTextModel", "qwen2_5_vl_text": "Qwen2_5_VLTextModel"}
# Defaults of HF's `Qwen2VLTextConfig`.
DEFAULTS = {
    "max_position_embeddings": 32768,
    "max_window_layers": 80,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "sliding_window": 4096,
}


def spec(config: HfConfig) -> DecoderSpec:
    attention = attention_part(config, has_qkv_bias=True)
    rope = rope_spec(config, attention.head_dim, has_sections=True)
    layers = layers_part(config, attention, mlp_part(config), rope, late_windows(config))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
