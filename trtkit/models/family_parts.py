"""Spec parts that two or three related families share: Llama 4, Trinity, Laguna, MiMo, Hunyuan, Granite, Command A+."""

from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec, GateSpec, NormSpec, QueryScaling, RopeSpec
from trtkit.models.feed_forward import MlpSpec, MoeSpec, RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import dense_types, mixture_part
from trtkit.models.names import EXPERT_NAMES, SHARED_EXPERT_NAMES
from trtkit.models.parts import (
    alternating_types,
    attention_part,
    biased_attention_part,
    layer_types,
    layers_part,
    mlp_part,
    rms_norm_part,
    sliding_windows,
    window_part,
)
from trtkit.models.rope import rope_spec, ropes_by_type_alone
from trtkit.models.spec import LayerSpec

_CHUNKED_TYPES = ("full_attention", "chunked_attention")


def chunked_attentions(config: HfConfig) -> list[AttentionSpec]:
    """Return Llama 4's attention of each layer: chunked and rotated, or full, not rotated and with scaled queries."""
    count, interval = int(config.need("num_hidden_layers")), int(config.get("no_rope_layer_interval", 4))
    default = [int((index + 1) % interval != 0) for index in range(count)]
    turns = list(config.get("no_rope_layers", default) or default)  # despite its name, 1 for a layer that is rotated
    if len(turns) < count:
        raise SourceError(f"`no_rope_layers` has {len(turns)} entries for {count} layers", config.where)
    kinds = layer_types(config, [_CHUNKED_TYPES[bool(turn)] for turn in turns[:count]], _CHUNKED_TYPES)
    rotated, plain, chunk = _rotated(config), _plain(config), config.get("attention_chunk_size")
    if _CHUNKED_TYPES[1] in kinds and (chunk is None or int(chunk) < 1):
        raise SourceError(f"`attention_chunk_size` is `{chunk}`; expected at least 1", config.where)
    pairs = zip(turns, kinds, strict=False)
    return [
        replace(rotated if is_rotated else plain, chunk=int(chunk) if kind == _CHUNKED_TYPES[1] else None)
        for is_rotated, kind in pairs
    ]


def _rotated(config: HfConfig) -> AttentionSpec:
    """Return attention with a rotary embedding, followed by weightless norms of each query and key head."""
    attention = biased_attention_part(config)
    rope = rope_spec(config, attention.head_dim, theta=500000.0, is_interleaved=True)
    if not config.get("use_qk_norm", True):
        return replace(attention, rope=rope)
    norm = replace(rms_norm_part(config), has_weight=False)
    return replace(attention, rope=rope, norm=norm, qk_norm="head", is_rotated_first=True)


def _plain(config: HfConfig) -> AttentionSpec:
    scaling = QueryScaling(float(config.get("attn_scale", 0.1)), int(config.get("floor_scale", 8192)), first=1)
    has_scaling = bool(config.get("attn_temperature_tuning", True))
    return replace(biased_attention_part(config), query_scaling=scaling if has_scaling else None)


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
# Fields of Trinity's published configs that transformers does not read: it always computes these values.
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
    """Return Trinity's attention of each layer: gated by element, qk-norm by head, rotary only in sliding layers."""
    attention = replace(biased_attention_part(config), norm=norm, qk_norm="head", gate=GateSpec("sigmoid"))
    config.need("sliding_window")
    rope, window = rope_spec(config, attention.head_dim), window_part(config)
    types = layer_types(config, alternating_types(config, int(config.get("global_attn_every_n_layers", 4))))
    sliding = replace(attention, rope=rope, sliding_window=window)
    return [sliding if kind == "sliding_attention" else attention for kind in types]


def trinity_mixture(config: HfConfig) -> MoeSpec:
    """Return Trinity's mixture: routing by sigmoid with a selection bias, and shared experts."""
    for name, value in _TRINITY.items():
        config.refuse(name, value)
    for name in ("load_balance_coeff", "use_grouped_mm"):  # for training; an implementation choice
        config.get(name)
    routing = RoutingSpec(
        int(config.get("num_experts_per_tok", 6)),
        "sigmoid",
        choice_bias_axes=1,
        sum_epsilon=1e-20,
        scale=float(config.get("route_scale", 1.0)),
    )
    expert, shared = mlp_part(config, size="moe_intermediate_size"), int(config.get("num_shared_experts", 2))
    if shared < 1:
        raise SourceError(f"`num_shared_experts` is `{shared}`; expected at least 1", config.where)
    both = replace(expert, intermediate_size=shared * expert.intermediate_size)
    return mixture_part(config, int(config.get("num_experts", 64)), routing, expert, both)


def laguna_attentions(config: HfConfig, norm: NormSpec) -> list[AttentionSpec]:
    """Return Laguna's attention of each layer, with its own number of heads, rotary embedding and gates.

    Raises SourceError for unknown gates, and for rotary parameters that are not stated per layer type.
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
    """Return Laguna's mixture: routing by sigmoid of soft-capped logits with a selection bias, and a shared expert."""
    config.refuse("moe_apply_router_weight_on_input", False)
    config.refuse("norm_topk_prob", True)
    config.refuse("decoder_sparse_step", 1)
    config.refuse("qkv_bias", False)
    config.get("mlp_only_layers")  # superseded by `mlp_layer_types`
    routing = RoutingSpec(
        int(config.get("num_experts_per_tok", 8)),
        "sigmoid",
        choice_bias_axes=1,
        softcap=float(config.get("moe_router_logit_softcapping", 0.0)),
        scale=float(config.get("moe_routed_scaling_factor", 1.0)),
    )
    expert, shared = (mlp_part(config, size=f"{name}_intermediate_size") for name in ("moe", "shared_expert"))
    return mixture_part(config, int(config.get("num_experts", 256)), routing, expert, shared)


_MIMO_PARTIAL = 0.334
_MIMO_ROPE: dict[str, dict[str, object]] = {
    "full_attention": {"rope_type": "default", "rope_theta": 5000000.0, "partial_rotary_factor": _MIMO_PARTIAL},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": _MIMO_PARTIAL},
}


def mimo_attentions(config: HfConfig) -> list[AttentionSpec]:
    """Return MiMo's attention of each layer: sliding layers have sinks and twice as many key/value heads.

    Raises SourceError for values larger than keys, and for a rotary embedding without `partial_rotary_factor`.
    """
    attention = attention_part(config, has_qkv_bias=bool(config.get("attention_bias", False)))
    value_dim, scale = int(config.need("v_head_dim")), config.get("attention_value_scale", 1.0)
    if value_dim > attention.head_dim:
        raise SourceError(f"`v_head_dim` is {value_dim}, above `head_dim`, {attention.head_dim}", config.where)
    attention = replace(attention, value_dim=value_dim, value_scale=float(scale))
    config.need("sliding_window")
    count, window = int(config.need("num_hidden_layers")), window_part(config)
    others = config.get("sliding_window_size")  # does not count the token itself
    usual = ["sliding_attention" if index and (index + 1) % 6 else "full_attention" for index in range(count)]
    types = layer_types(config, usual)
    for kind, stated in config.get("rope_parameters", _MIMO_ROPE).items():
        if isinstance(stated, dict) and stated.get("partial_rotary_factor") is None:
            what = f"`rope_parameters` of {kind} has no `partial_rotary_factor`"
            raise SourceError(what, config.where, f"state it, {_MIMO_PARTIAL} if it is transformers' default")
    ropes = ropes_by_type_alone(config, attention.head_dim, types, _MIMO_ROPE)
    sliding = replace(
        attention,
        num_key_value_heads=2 * attention.num_key_value_heads,
        has_sinks=True,
        sliding_window=window if others is None else int(others) + 1,
    )
    _check_published(config, sliding, types)
    is_sliding = [kind == "sliding_attention" for kind in types]
    layers = [sliding if slides else attention for slides in is_sliding]
    return [replace(layer, rope=ropes[kind]) for layer, kind in zip(layers, types, strict=True)]


def _check_published(config: HfConfig, sliding: AttentionSpec, types: list[str]) -> None:
    """Raise SourceError if fields of published configs contradict what transformers computes in sliding layers."""
    config.refuse("swa_num_attention_heads", sliding.num_attention_heads)
    config.refuse("swa_num_key_value_heads", sliding.num_key_value_heads)
    config.refuse("swa_head_dim", sliding.head_dim)
    config.refuse("swa_v_head_dim", sliding.value_dim)
    theta = config.get("rope_parameters", _MIMO_ROPE).get("sliding_attention", {}).get("rope_theta")
    config.refuse("swa_rope_theta", theta)
    config.refuse("add_swa_attention_sink_bias", True)
    config.refuse("add_full_attention_sink_bias", False)
    config.refuse("hybrid_layer_pattern", [int(kind == "sliding_attention") for kind in types])
    config.refuse("attention_projection_layout", "split")
    config.get("attention_chunk_size")  # transformers does not read it


HUNYUAN_NAMES = {"attention.q_norm": "self_attn.query_layernorm", "attention.k_norm": "self_attn.key_layernorm"}
# Fields of published configs that transformers' config classes lack: it always computes these values.
_HUNYUAN_FIXED = {
    "use_qk_norm": True,
    "use_cla": False,
    "norm_type": "rms",
    "mlp_bias": False,
    "use_rotary_pos_emb": True,
}
_HUNYUAN_IMMATERIAL = ("eod_token_id", "cla_share_factor", "org_vocab_size", "class_num", "dense_list", "pool_type")


def hunyuan_attention(config: HfConfig) -> AttentionSpec:
    """Return Hunyuan's attention, with qk-norm after the rotary embedding. Raises SourceError for other kinds."""
    attention = biased_attention_part(config)
    for name, value in (*_HUNYUAN_FIXED.items(), ("attention_head_dim", attention.head_dim)):
        config.refuse(name, value)
    for name in _HUNYUAN_IMMATERIAL:
        config.get(name)
    return replace(attention, norm=rms_norm_part(config), qk_norm="head", is_rotated_first=True)


def hunyuan_rope(config: HfConfig, head_dim: int) -> RopeSpec:
    """Return Hunyuan's rotary embedding. `dynamic` with a fixed `alpha` only changes theta, alike at every length."""
    stated = config.get("rope_parameters", {}) or config.get("rope_scaling", {})
    kind = stated.get("rope_type", stated.get("type"))
    if kind != "dynamic" or not stated.get("alpha"):
        return rope_spec(config, head_dim)
    theta = float(stated.get("rope_theta", config.get("rope_theta", 10000.0)))
    return RopeSpec(theta * float(stated["alpha"]) ** (head_dim / (head_dim - 2)), head_dim)


GRANITE_SINKS = {"attention.sinks": "self_attn.sinks"}


def sliding_granite_layers(config: HfConfig, feed_forward: MlpSpec | MoeSpec) -> tuple[LayerSpec, ...]:
    """Return Granite's layers with sinks: three sliding ones, then a full one; each layer has its own rotary theta.

    Raises SourceError if the thetas are not one per layer.
    """
    attention = biased_attention_part(config)
    attention = replace(attention, scale=float(config.get("attention_multiplier", 1.0)), has_sinks=True)
    count = int(config.need("num_hidden_layers"))
    types = ["sliding_attention" if index % 4 else "full_attention" for index in range(count)]
    windows, rope = sliding_windows(config, types), rope_spec(config, attention.head_dim)
    thetas = [float(theta) for theta in config.get("layer_rope_theta", [rope.theta] * count)]
    if len(thetas) != count:
        raise SourceError(f"`layer_rope_theta` has {len(thetas)} entries for {count} layers", config.where)
    ropes = [replace(rope, theta=theta) if theta else None for theta in thetas]  # 0: no rotary embedding
    return layers_part(config, attention, feed_forward, ropes, windows)


def cohere_layers(config: HfConfig, moe: MoeSpec, first: int) -> tuple[LayerSpec, ...]:
    """Return Command A+'s layers of experts, with a rotary embedding in sliding layers.

    Dense layers have one too if none of them slides.

    first: number of dense layers if the config lists no types.
    """
    attention, count = biased_attention_part(config), int(config.need("num_hidden_layers"))
    rope = rope_spec(config, attention.head_dim, is_interleaved=True)
    every = int(config.get("prefix_dense_sliding_window_pattern", 1)), int(config.get("sliding_window_pattern", 4))
    if min(every) < 1:
        raise SourceError(
            f"patterns of sliding windows are {every[0]} and {every[1]}; expected 1 or more", config.where
        )
    config.need("sliding_window")
    numbers = [(index + 1, every[0]) for index in range(first)] + [(n + 1, every[1]) for n in range(count - first)]
    usual = ["sliding_attention" if number % size else "full_attention" for number, size in numbers]
    windows = sliding_windows(config, usual)
    is_turned = [every[0] == 1 and kind == "dense" for kind in dense_types(config, count, first)]
    ropes = [rope if window or turns else None for window, turns in zip(windows, is_turned, strict=True)]
    return layers_part(config, attention, moe, ropes, windows)


def averaged_mixture(config: HfConfig, expert: MlpSpec) -> MoeSpec:
    """Return Command A+'s mixture, averaged with the shared experts' output or added to it.

    Raises SourceError for another routing or combination.
    """
    scores = config.get("expert_selection_fn", "softmax")
    if scores not in ("softmax", "sigmoid"):
        raise config.unsupported("expert_selection_fn", scores, ("softmax", "sigmoid"))
    strategy, shared = config.get("shared_expert_combination_strategy", "average"), None
    if strategy not in ("average", "sum"):
        raise config.unsupported("shared_expert_combination_strategy", strategy, ("average", "sum"))
    count, is_normed = int(config.get("num_shared_experts", 0)), bool(config.get("norm_topk_prob", True))
    part = 0.5 if strategy == "average" and count else 1.0
    if count:
        shared = replace(expert, intermediate_size=count * expert.intermediate_size, factor=part)
    sizes = int(config.get("num_experts", 8)), int(config.get("num_experts_per_tok", 2))
    routing = RoutingSpec(sizes[1], scores, norm_topk_prob=is_normed or scores == "softmax", scale=part)
    return mixture_part(config, sizes[0], routing, expert, shared)
