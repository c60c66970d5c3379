"""BitNet b1.58: Llama with norms before the output projections of attention and MLP."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "BitNetForCausalLM"
DEFAULTS = {"hidden_act": "relu2", "rms_norm_eps": 1e-5, "rope_theta": 500000.0}
_NAMES = {"attention.o_norm": "self_attn.attn_sub_norm", "mlp.norm": "mlp.ffn_sub_norm"}


def spec(config: HfConfig) -> DecoderSpec:
    norm = rms_norm_part(config)
    attention = replace(biased_attention_part(config), output_norm=norm)
    mlp = replace(mlp_part(config), norm=norm)
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    return decoder_part(config, layers, norm, llama_names(inside=_NAMES))
