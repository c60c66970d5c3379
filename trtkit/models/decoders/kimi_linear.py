"""Kimi Linear: Kimi's delta attention, latent attention without a rotary embedding, experts."""

from trtkit.models.hf_config import HfConfig
from trtkit.models.latent_parts import LATENT_NAMES, latent_attention_part
from trtkit.models.mixtures import grouped_mixture, with_dense_types
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.recurrent_parts import KIMI_DELTA_NAMES, kimi_delta_part, kimi_layer_types, with_mixer
from trtkit.models.spec import DecoderSpec

HF_CLASS = "KimiLinearForCausalLM"
ALIASES = {
    "max_position_embeddings": "model_max_length",
    "n_group": "num_expert_group",
    "n_shared_experts": "num_shared_experts",
    "norm_topk_prob": "moe_renormalize",
    "num_experts": "num_local_experts",
    "num_experts_per_tok": "num_experts_per_token",
}
DEFAULTS = {
    "max_position_embeddings": 1048576,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-5,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "moe_intermediate_size": 1024,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.446,
}
NAMES = {
    **LATENT_NAMES,
    **KIMI_DELTA_NAMES,
    **SHARED_EXPERT_NAMES,
    **{f"moe.experts.{{e}}.{name}": f"mlp.experts.{{e}}.w{n}" for name, n in (("gate", 1), ("up", 3), ("down", 2))},
}


def spec(config: HfConfig) -> DecoderSpec:
    for name in ("rope_theta", "rope_scaling", "rope_parameters", "head_dim"):  # no rotary; other fields size heads
        config.get(name)
    config.refuse("tie_word_embeddings", False)  # transformers does not tie them
    config.refuse("mla_use_nope", True)
    config.refuse("moe_router_activation_func", "sigmoid")
    config.refuse("use_grouped_topk", True)
    config.refuse("num_nextn_predict_layers", 0)
    moe = grouped_mixture(config, mlp_part(config, size="moe_intermediate_size"))
    layers = layers_part(config, latent_attention_part(config, None), moe, None)
    layers = with_mixer(layers, kimi_layer_types(config), "linear_attention", kimi_delta_part(config))
    layers = with_dense_types(config, layers, mlp_part(config), int(config.get("first_k_dense_replace", 1)))
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, NAMES))
