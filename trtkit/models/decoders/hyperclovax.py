"""HyperCLOVA X: Granite with optional norms after each part."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import (
    biased_attention_part,
    decoder_part,
    granite_scaled,
    layers_part,
    mlp_part,
    rms_norm_part,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "HyperCLOVAXForCausalLM"
INSIDE = {"post_attention_norm": "post_norm1", "post_mlp_norm": "post_norm2"}


def spec(config: HfConfig) -> DecoderSpec:
    norm, attention = rms_norm_part(config), biased_attention_part(config)
    attention = replace(attention, scale=float(config.get("attention_multiplier", attention.scale)))
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim))
    model = granite_scaled(config, decoder_part(config, layers, norm, llama_names({}, INSIDE)))
    norms = (*BlockSpec(norm).norms, *(INSIDE if config.get("use_post_norm", True) else ()))
    return replace(
        model,
        block=replace(model.block, norms=norms),
        head=replace(model.head, logit_scale=float(config.get("logits_scaling", 1.0))),
    )
