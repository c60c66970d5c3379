"""DeepSeek-V2 and V2-Lite: latent attention, grouped experts, shared experts."""

from dataclasses import replace

from trtkit.models.feed_forward import MoeSpec, RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.latent_parts import LATENT_NAMES, latent_attention_part, latent_rope
from trtkit.models.mixtures import mixture_part, shared_part, with_first_dense
from trtkit.models.names import SHARED_EXPERT_NAMES, llama_names
from trtkit.models.parts import decoder_part, layers_part, mlp_part, rms_norm_part
from trtkit.models.spec import DecoderSpec

HF_CLASS = "DeepseekV2ForCausalLM"
DEFAULTS = {
    "max_position_embeddings": 2048,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "moe_intermediate_size": 1407,
}


def spec(config: HfConfig) -> DecoderSpec:
    attention = latent_attention_part(config, latent_rope(config, is_interleaved=True))
    mlp = mlp_part(config, has_bias=bool(config.get("mlp_bias", False)))
    layers = layers_part(config, attention, _mixture(config, has_bias=mlp.has_bias), attention.rope)
    layers = with_first_dense(config, layers, mlp)
    return decoder_part(config, layers, rms_norm_part(config), llama_names({}, {**LATENT_NAMES, **SHARED_EXPERT_NAMES}))


def _mixture(config: HfConfig, *, has_bias: bool) -> MoeSpec:
    """Return the mixture. Refuses `norm_topk_prob`, which transformers ignores and the model's own code does not."""
    config.refuse("norm_topk_prob", False)
    config.refuse("scoring_func", "softmax")
    config.refuse("moe_layer_freq", 1)
    for name in ("ep_size", "aux_loss_alpha", "seq_aux"):  # for training
        config.get(name)
    config.refuse("topk_method", "greedy", "group_limited_greedy")
    routing = RoutingSpec(
        int(config.need("num_experts_per_tok")),
        norm_topk_prob=False,
        scale=float(config.get("routed_scaling_factor", 1.0)),
        is_fp32=True,
    )
    groups, top_groups = config.get("n_group"), config.get("topk_group")
    if config.get("topk_method", "greedy") != "greedy":
        routing = replace(routing, groups=int(groups or 0), top_groups=int(top_groups or 0))
    expert = mlp_part(config, size="moe_intermediate_size")
    shared = replace(shared_part(config, expert), has_bias=has_bias)
    return mixture_part(config, int(config.need("n_routed_experts")), routing, expert, shared)
