"""Bamba: Mamba-2 layers, some of them replaced by attention."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.recurrent_parts import BAMBA_MLP_NAMES, MAMBA_NAMES, mamba_part, with_mixer
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "BambaForCausalLM"
DEFAULTS = {
    "intermediate_size": 14336,
    "mamba_d_head": "auto",
    "mamba_d_state": 256,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "max_position_embeddings": 262144,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
}
NAMES = llama_names({"final_norm": "model.final_layernorm"}, {**BAMBA_MLP_NAMES, **MAMBA_NAMES})


def spec(config: HfConfig) -> DecoderSpec:
    config.get("num_logits_to_keep")  # an option of transformers' generation
    config.get("z_loss_coefficient")
    attention, mamba = biased_attention_part(config), mamba_part(config)
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    full, count = config.get("attn_layer_indices", []), int(config.need("num_hidden_layers"))
    types = ["full_attention" if index in full else "linear_attention" for index in range(count)]
    rope = rope_spec(config, attention.head_dim, partial=0.5)
    layers = with_mixer(layers_part(config, attention, mlp, rope), types, "linear_attention", mamba)
    return decoder_part(config, layers, rms_norm_part(config), NAMES)
