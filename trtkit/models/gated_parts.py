"""Attention whose gates have a matrix of their own, and the mixtures of models that have it: Trinity and Laguna."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.attention import GateSpec
from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import EXPERT_NAMES, SHARED_EXPERT_NAMES
from trtkit.models.parts import alternating_types, biased_attention_part, layer_types, mlp_part, window_part
from trtkit.models.rope import rope_spec, ropes_by_type_alone

if TYPE_CHECKING:
    from trtkit.models.attention import AttentionSpec, NormSpec
    from trtkit.models.feed_forward import MoeSpec
    from trtkit.models.hf_config import HfConfig

TRINITY_NAMES = {
    **EXPERT_NAMES,
    **{f"moe.shared.{name}": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
    "attention.z": "self_attn.gate_proj",
    "post_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_mlp_layernorm",
    "post_mlp_norm": "post_mlp_layernorm",
    "moe.router": "mlp.router.gate",
    "moe.choice_bias": "mlp.expert_bias",
}
LAGUNA_NAMES = {**SHARED_EXPERT_NAMES, "attention.z": "self_attn.g_proj"}
# What Trinity's published files state and transformers takes for granted.
_TRINITY = {
    "n_group": 1,
    "num_expert_groups": 1,
    "num_limited_groups": 1,
    "route_norm": True,
    "score_func": "sigmoid",
    "topk_group": 1,
}
_LAGUNA_ROPE: dict[str, dict[str, object]] = {
    "full_attention": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
}


def trinity_attentions(config: HfConfig, norm: NormSpec) -> list[AttentionSpec]:
    """Return each layer's attention: gates of each element, norms over heads, rotation where it slides."""
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="head", gate=GateSpec("sigmoid"))
    config.need("sliding_window")
    rope, window = rope_spec(config, attention.head_dim), window_part(config)
    types = layer_types(config, alternating_types(config, int(config.get("global_attn_every_n_layers", 4))))
    sliding = replace(attention, rope=rope, sliding_window=window)
    return [sliding if kind == "sliding_attention" else attention for kind in types]


def trinity_mixture(config: HfConfig) -> MoeSpec:
    """Return experts that sigmoids choose, with a bias of the choice, and shared ones."""
    for name, value in _TRINITY.items():
        config.refuse(name, value)
    for name in ("load_balance_coeff", "use_grouped_mm"):  # of training, and how it is computed
        config.get(name)
    routing = RoutingSpec(
        int(config.get("num_experts_per_tok", 6)),
        "sigmoid",
        choice_bias_axes=1,
        added_to_sum=1e-20,
        scale=float(config.get("route_scale", 1.0)),
    )
    expert, shared = mlp_part(config, size="moe_intermediate_size"), int(config.get("num_shared_experts", 2))
    if shared < 1:
        raise SourceError(f"`num_shared_experts` is `{shared}`; expected at least 1", config.where)
    both = replace(expert, intermediate_size=shared * expert.intermediate_size)
    return mixture_part(config, int(config.get("num_experts", 64)), routing, expert, both)


def laguna_attentions(config: HfConfig, norm: NormSpec) -> list[AttentionSpec]:
    """Return each layer's attention: its number of heads, its rotation, and gates of each head or element.

    Raises SourceError for gates of another kind, and for rotations that are stated for all layers.
    """
    gating = config.get("gating", "per-head") if config.get("gating") is not True else "per-head"
    if gating not in ("per-head", "per-element"):
        raise config.unsupported("gating", str(gating), ("per-head", "per-element"))
    count, gate = int(config.need("num_hidden_layers")), GateSpec("softplus", is_by_head=gating == "per-head")
    config.refuse("gating_types", [gating] * count)
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="head", gate=gate)
    heads = config.get("num_attention_heads_per_layer", [attention.num_attention_heads] * count)
    if len(heads) != count:
        what = f"`num_attention_heads_per_layer` has {len(heads)} entries for {count} layers"
        raise SourceError(what, config.where)
    types, window = layer_types(config, ["full_attention"] * count), window_part(config)
    ropes = ropes_by_type_alone(config, attention.head_dim, types, _LAGUNA_ROPE)
    return [
        replace(
            attention,
            num_attention_heads=int(count),
            rope=ropes[kind],
            sliding_window=window if kind == "sliding_attention" else None,
        )
        for count, kind in zip(heads, types, strict=True)
    ]


def laguna_mixture(config: HfConfig) -> MoeSpec:
    """Return experts that sigmoids of capped logits choose, with a bias of the choice, and a shared one."""
    config.refuse("moe_apply_router_weight_on_input", False)
    config.refuse("norm_topk_prob", True)
    config.refuse("decoder_sparse_step", 1)
    config.refuse("qkv_bias", False)
    config.get("mlp_only_layers")  # `mlp_layer_types` say it
    routing = RoutingSpec(
        int(config.get("num_experts_per_tok", 8)),
        "sigmoid",
        choice_bias_axes=1,
        softcap=float(config.get("moe_router_logit_softcapping", 0.0)),
        scale=float(config.get("moe_routed_scaling_factor", 1.0)),
    )
    expert, shared = (mlp_part(config, size=f"{name}_intermediate_size") for name in ("moe", "shared_expert"))
    return mixture_part(config, int(config.get("num_experts", 256)), routing, expert, shared)
