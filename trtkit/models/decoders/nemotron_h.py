"""Nemotron H: each layer is Mamba-2, attention, an MLP or experts, alone."""

from dataclasses import replace

from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import latent_mixture
from trtkit.models.names import LATENT_EXPERT_NAMES, names
from trtkit.models.parts import attention_part, decoder_part, plain_mlp_part, rms_norm_part
from trtkit.models.recurrent_parts import MAMBA_NAMES, mamba_part
from trtkit.models.spec import DecoderSpec, LayerSpec

HF_CLASS = "NemotronHForCausalLM"
_OWN_NAMES = """
    hidden_act=mlp_hidden_act mamba_chunk_size=chunk_size mamba_conv_bias=use_conv_bias mamba_d_conv=conv_kernel
    mamba_d_head=mamba_head_dim mamba_d_state=ssm_state_size mamba_dt_min=time_step_min mamba_expand=expand
    mamba_n_groups=n_groups mamba_n_heads=mamba_num_heads rms_norm_eps=layer_norm_epsilon
    num_experts=n_routed_experts"""
ALIASES = dict(pair.split("=") for pair in _OWN_NAMES.split())
DEFAULTS = {
    **{"head_dim": 128, "hidden_act": "relu2", "intermediate_size": 21504, "max_position_embeddings": 4096},
    **{"mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 8, "mamba_n_heads": 128, "mamba_dt_min": 0.001},
    **{"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "num_experts": 8, "num_experts_per_tok": 2},
}
WITHOUT_EFFECT = """
    attention_bias mamba_ssm_cache_dtype moe_shared_expert_overlap mtp_hybrid_override_pattern mtp_layers_block_type
    n_shared_experts num_hidden_layers num_logits_to_keep num_nextn_predict_layers use_mamba_kernels"""
OUTSIDE = {"embedding": "model.embeddings", "final_norm": "model.norm_f", "lm_head": "lm_head"}
INSIDE = {
    **{"attention_norm": "norm", "mlp_norm": "norm", "mlp.up": "mixer.up_proj", "mlp.down": "mixer.down_proj"},
    **{f"attention.{name}": f"mixer.{name}_proj" for name in "qkvo"},
    **{path: f"mixer.{name.split('.', 1)[1]}" for path, name in {**LATENT_EXPERT_NAMES, **MAMBA_NAMES}.items()},
}
NAMES = names("model.layers.{i}.", OUTSIDE, INSIDE)
_TYPES = "M=linear_attention *=full_attention -=mlp E=moe mamba=linear_attention attention=full_attention"
TYPES = dict(pair.split("=") for pair in _TYPES.split())


def spec(config: HfConfig) -> DecoderSpec:
    """Return the model that a config describes. Steps are at least `time_step_min`, as HF computes prompts."""
    config.refuse("tie_word_embeddings", False)  # HF never ties this head
    least, _ = float(config.need("mamba_dt_min")), [config.get(name) for name in WITHOUT_EFFECT.split()]
    mamba, has_bias = mamba_part(config, has_own_width=True), bool(config.get("use_bias", False))
    activation = str(config.get("mamba_hidden_act", "silu"))
    mamba = replace(mamba, activation=activation, has_bias=has_bias, has_output_bias=has_bias, min_step=least)
    parts = {
        "linear_attention": LayerSpec(mamba, None),
        "full_attention": LayerSpec(attention_part(config), None),
        "mlp": LayerSpec(None, plain_mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))),
        "moe": LayerSpec(None, latent_mixture(config)),
    }
    pattern = str(config.get("hybrid_override_pattern", "ME*-"))
    types = [TYPES.get(kind, kind) for kind in config.get("layers_block_type", list(pattern))]
    if unknown := sorted(set(types) - parts.keys()):
        raise config.unsupported("layers_block_type", unknown[0], parts)
    return decoder_part(config, tuple(parts[kind] for kind in types), rms_norm_part(config), NAMES)
