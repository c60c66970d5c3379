"""IQuest-Coder: Llama with head_dim 128. The reference is `LlamaForCausalLM` with an `IQuestCoderConfig`."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "LlamaForCausalLM"
DEFAULTS = {"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 131072}


def spec(config: HfConfig) -> DecoderSpec:
    config.refuse("clip_qkv")
    config.refuse("use_sliding_window", False)
    attention = biased_attention_part(config)
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    return decoder_part(config, layers, rms_norm_part(config), llama_names())
