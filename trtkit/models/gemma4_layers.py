"""Attention of Gemma 4's layers, which differ by type: head size, key/value heads, rope, window."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import SourceError
from trtkit.models.feed_forward import RoutingSpec
from trtkit.models.gemma_parts import cache_sources
from trtkit.models.mixtures import mixture_part
from trtkit.models.parts import alternating_types, biased_attention_part, rms_norm_part, sliding_windows
from trtkit.models.rope import rope_spec

if TYPE_CHECKING:
    from trtkit.models.attention import AttentionSpec, NormSpec
    from trtkit.models.feed_forward import MlpSpec, MoeSpec
    from trtkit.models.hf_config import HfConfig

_ROPE = {
    "sliding_attention": {"rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
EXPERT_NAMES = {
    "moe.router": "router.proj",
    "moe.router_scale": "router.scale",
    "moe.expert_scale": "router.per_expert_scale",
    "moe.input_norm": "pre_feedforward_layernorm_2",
    "moe.output_norm": "post_feedforward_layernorm_2",
    "moe.shared_norm": "post_feedforward_layernorm_1",
    **{f"moe.experts.{{e}}.{name}": f"experts.{{e}}.{name}_proj" for name in ("gate", "up", "down")},
    **{f"moe.shared.{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
}
"""A mixture next to an MLP."""


def attentions(config: HfConfig) -> list[AttentionSpec]:
    """Return each layer's attention. Raises SourceError for settings that transformers does not take."""
    for name in ("rope_theta", "rope_scaling", "rope_local_base_freq"):
        config.refuse(name)
    types = list(config.get("layer_types", alternating_types(config, 6)))
    windows = sliding_windows(config, types)
    types[-1], windows[-1] = "full_attention", None  # whatever the config says
    norm, has_one_matrix = rms_norm_part(config), bool(config.get("attention_k_eq_v", False))
    usual = replace(
        biased_attention_part(config),
        scale=1.0,
        norm=norm,
        qk_norm="head",
        value_norm=replace(norm, has_weight=False),
    )
    sizes, sources = _sizes(config, types), cache_sources(config, types)
    ropes = {
        kind: rope_spec(config, sizes[types.index(kind)][0], layer_type=kind, parameters=_ROPE)
        for kind in dict.fromkeys(types)
    }
    return [
        replace(
            usual,
            head_dim=head_dim,
            num_key_value_heads=heads,
            qkv="no_values" if has_one_matrix and kind == "full_attention" else "separate",
            rope=ropes[kind],
            sliding_window=window,
            cache_of=source,
        )
        for kind, window, source, (head_dim, heads) in zip(types, windows, sources, sizes, strict=True)
    ]


def with_experts(config: HfConfig, mlp: MlpSpec, norm: NormSpec) -> MlpSpec | MoeSpec:
    """Return a layer's feed-forward part: an MLP, with a mixture of experts next to it if `enable_moe_block` is set."""
    count, top_k, width = (config.get(name) for name in ("num_experts", "top_k_experts", "moe_intermediate_size"))
    if not config.get("enable_moe_block", False):
        return mlp
    for name, value in (("num_experts", count), ("top_k_experts", top_k), ("moe_intermediate_size", width)):
        if value is None:
            raise SourceError(f"`enable_moe_block` is set, and `{name}` is missing", config.where)
    expert = replace(mlp, intermediate_size=int(width))
    return replace(mixture_part(config, int(count), RoutingSpec(int(top_k)), expert, mlp), apart=norm)


def _sizes(config: HfConfig, types: list[str]) -> list[tuple[int, int]]:
    """Return each layer's head size and key/value heads."""
    head_dim, heads = int(config.need("head_dim")), int(config.need("num_key_value_heads"))
    full = int(config.get("global_head_dim", 512)), heads
    own_heads, stated = config.get("num_global_key_value_heads"), config.get("per_layer_config")
    if own_heads is not None and config.get("attention_k_eq_v", False):
        full = full[0], int(own_heads)
    if stated is None:
        return [full if kind == "full_attention" else (head_dim, heads) for kind in types]
    sizes = [(head_dim, heads)] * len(types)
    for name, changes in stated.items():
        others = sorted(set(changes) - {"head_dim", "num_key_value_heads"})
        if others:
            raise SourceError(
                f"`per_layer_config` of layer {name} has `{others[0]}`, which is not supported", config.where
            )
        sizes[int(name)] = int(changes.get("head_dim", head_dim)), int(changes.get("num_key_value_heads", heads))
    for kind in dict.fromkeys(types):
        if len({size for size, layer_kind in zip(sizes, types, strict=True) if layer_kind == kind}) > 1:
            raise SourceError(f"`per_layer_config` gives layers of type `{kind}` several sizes", config.where)
    return sizes
