"""K-EXAONE: EXAONE 4's attention, experts with sigmoid routing."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import grouped_mixture, with_dense_types
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import (
    attention_part,
    decoder_part,
    layers_part,
    mlp_part,
    patterned_windows,
    rms_norm_part,
    sliding_ropes,
)
from trtkit.models.rope import rope_spec
from trtkit.models.spec import DecoderSpec

HF_CLASS = "ExaoneMoeForCausalLM"
ALIASES = {"n_shared_experts": "num_shared_experts"}
DEFAULTS = {
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 2048,
    "sliding_window": 4096,
    "sliding_window_pattern": 4,
    "moe_intermediate_size": 1024,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
}

# Of the modules that predict later tokens, with values of the right types.
LATER_TOKENS = {
    "num_nextn_predict_layers": 0,
    "mtp_layer_types": [],
    "mtp_sliding_windows": [],
    "mtp_share_layers": False,
    "mtp_loss_scaling_factor": 0.0,
}
INSIDE = {**SHARED_EXPERT_NAMES, "moe.choice_bias": "mlp.e_score_correction_bias"}


def spec(config: HfConfig) -> DecoderSpec:
    for name, usual in LATER_TOKENS.items():
        config.get(name, usual)
    norm = rms_norm_part(config)
    attention = replace(attention_part(config), norm=norm, qk_norm="head")
    windows = patterned_windows(config)
    ropes = sliding_ropes(config, rope_spec(config, attention.head_dim), windows)
    moe = grouped_mixture(config, mlp_part(config, size="moe_intermediate_size"))
    layers = layers_part(config, attention, moe, ropes, windows)
    first = int(config.get("first_k_dense_replace", 1))
    layers = with_dense_types(config, layers, mlp_part(config), first)
    config.refuse("is_moe_layer", [layer.feed_forward is moe for layer in layers])
    config.refuse("sliding_windows", [window or 0 for window in windows])
    model = decoder_part(config, layers, norm, llama_names({}, INSIDE))
    return replace(model, unused=("mtp.",))
