"""Apertus: ungated MLPs with a learned activation (xIELU), a norm on each query and key head."""

from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import llama_names
from trtkit.models.parts import biased_attention_part, decoder_part, layers_part, plain_mlp_part, rms_norm_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "ApertusForCausalLM"
DEFAULTS = {"hidden_act": "xielu", "rms_norm_eps": 1e-5}
INSIDE = {
    "attention_norm": "attention_layernorm",
    "mlp_norm": "feedforward_layernorm",
    **{f"mlp.act.{name}": f"mlp.act_fn.{name}" for name in ("alpha_p", "alpha_n", "beta", "eps")},
}


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes. Raises SourceError if it states no rotary embedding."""
    for name, value in (("mlp_bias", False), ("post_norm", False), ("qk_norm", True)):
        config.refuse(name, value)
    if not (config.get("rope_parameters") or config.get("rope_scaling")):  # transformers then ignores `rope_theta` too
        raise SourceError("`rope_parameters` is missing", config.where, "write the one that the model was trained with")
    norm, attention = rms_norm_part(config), biased_attention_part(config)
    attention = replace(attention, norm=norm, qk_norm="head")
    mlp = plain_mlp_part(config, has_bias=False)
    mlp = replace(mlp, has_learned_activation=mlp.activation == "xielu")
    layers = layers_part(config, attention, mlp, rope_spec(config, attention.head_dim, theta=12e6))
    return decoder_part(config, layers, norm, llama_names({}, INSIDE))
