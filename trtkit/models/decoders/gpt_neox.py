"""GPT-NeoX and Pythia: parallel attention and MLP, each with its own norm."""

from dataclasses import replace

from trtkit.models.attention import RopeSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.names import names
from trtkit.models.parts import attention_part, decoder_part, layer_norm_part, layers_part, plain_mlp_part
from trtkit.models.rope import rope_spec
from trtkit.models.spec import BlockSpec, DecoderSpec

HF_CLASS = "GPTNeoXForCausalLM"
NAMES = names(
    "gpt_neox.layers.{i}.",
    {"embedding": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm", "lm_head": "embed_out"},
    {
        "attention_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "attention.qkv": "attention.query_key_value",
        "attention.o": "attention.dense",
        "mlp.up": "mlp.dense_h_to_4h",
        "mlp.down": "mlp.dense_4h_to_h",
    },
)


def spec(config: HfConfig) -> DecoderSpec:
    has_bias, norm = bool(config.get("attention_bias", True)), layer_norm_part(config)
    attention = attention_part(config, has_qkv_bias=has_bias, has_output_bias=has_bias)
    attention = replace(attention, qkv="grouped")
    layers = layers_part(config, attention, plain_mlp_part(config), _rope(config, attention.head_dim))
    model = decoder_part(config, layers, norm, NAMES)
    block = BlockSpec(norm, is_parallel=bool(config.get("use_parallel_residual", True)))
    return replace(model, block=block, prefix="gpt_neox.")


def _rope(config: HfConfig, head_dim: int) -> RopeSpec:
    """Return the rotary embedding. Raises SourceError for other families' fields, which transformers ignores here."""
    theta, partial = float(config.get("rotary_emb_base", 10000.0)), float(config.get("rotary_pct", 0.25))
    stated = config.get("rope_parameters", {}) or config.get("rope_scaling", {})
    config.refuse("rope_theta", stated.get("rope_theta", theta))
    config.refuse("partial_rotary_factor", stated.get("partial_rotary_factor", partial))
    return rope_spec(config, head_dim, theta=theta, partial=partial)
