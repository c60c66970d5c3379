"""Nemotron H: layers of Mamba-2, attention or an MLP alone. HF: `NemotronHForCausalLM`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.models.names import names
from trtkit.models.parts import attention_part, decoder_part, plain_mlp_part, rms_norm_part
from trtkit.models.recurrent_parts import MAMBA_NAMES, mamba_part
from trtkit.models.spec import LayerSpec

if TYPE_CHECKING:
    from trtkit.models.hf_config import HfConfig
    from trtkit.models.spec import DecoderSpec

_OWN_NAMES = """
    hidden_act=mlp_hidden_act mamba_chunk_size=chunk_size mamba_conv_bias=use_conv_bias mamba_d_conv=conv_kernel
    mamba_d_head=mamba_head_dim mamba_d_state=ssm_state_size mamba_dt_min=time_step_min mamba_expand=expand
    mamba_n_groups=n_groups mamba_n_heads=mamba_num_heads rms_norm_eps=layer_norm_epsilon"""
ALIASES = dict(pair.split("=") for pair in _OWN_NAMES.split())
DEFAULTS = {
    **{"head_dim": 128, "hidden_act": "relu2", "intermediate_size": 21504, "max_position_embeddings": 4096},
    **{"mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 8, "mamba_n_heads": 128, "mamba_dt_min": 0.001},
    **{"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
}
# Of experts, which are refused as layers, of later tokens, and of training.
WITHOUT_EFFECT = """
    attention_bias mamba_ssm_cache_dtype moe_intermediate_size moe_latent_size moe_shared_expert_intermediate_size
    moe_shared_expert_overlap mtp_hybrid_override_pattern mtp_layers_block_type n_group n_routed_experts
    n_shared_experts norm_topk_prob num_experts_per_tok num_hidden_layers num_logits_to_keep
    num_nextn_predict_layers rescale_prenorm_residual residual_in_fp32 routed_scaling_factor time_step_floor
    time_step_max topk_group use_mamba_kernels"""
OUTSIDE = {"embedding": "model.embeddings", "final_norm": "model.norm_f", "lm_head": "lm_head"}
INSIDE = {
    **{"attention_norm": "norm", "mlp_norm": "norm", "mlp.up": "mixer.up_proj", "mlp.down": "mixer.down_proj"},
    **{f"attention.{name}": f"mixer.{name}_proj" for name in "qkvo"},
    **{path: name.replace("mamba.", "mixer.") for path, name in MAMBA_NAMES.items()},
}
NAMES = names("model.layers.{i}.", OUTSIDE, INSIDE)
TYPES = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
TYPES |= {"mamba": "linear_attention", "attention": "full_attention"}


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes. Steps are at least `time_step_min`, as HF has it for prompts."""
    config.refuse("tie_word_embeddings", False)  # HF never ties this head
    least, _ = float(config.need("mamba_dt_min")), [config.get(name) for name in WITHOUT_EFFECT.split()]
    activation, has_bias = str(config.get("mamba_hidden_act", "silu")), bool(config.get("use_bias", False))
    mamba = replace(mamba_part(config, has_own_width=True), activation=activation, has_bias=has_bias, least_step=least)
    parts = {
        "linear_attention": LayerSpec(mamba, None),
        "full_attention": LayerSpec(attention_part(config), None),
        "mlp": LayerSpec(None, plain_mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))),
    }
    pattern = list(str(config.get("hybrid_override_pattern", "ME*-")))
    types = [TYPES.get(kind, kind) for kind in config.get("layers_block_type", pattern)]
    for kind in (kind for kind in types if kind not in parts):
        raise config.unsupported("layers_block_type", kind, parts)
    return decoder_part(config, tuple(parts[kind] for kind in types), rms_norm_part(config), NAMES)
