"""Mixtures of experts from configs, and which layers have one instead of an MLP."""

from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.feed_forward import MlpSpec, MoeSpec, RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.parts import mlp_part, plain_mlp_part
from trtkit.models.spec import LayerSpec


def mixture_part(
    config: HfConfig, count: int, routing: RoutingSpec, expert: MlpSpec, shared: MlpSpec | None = None
) -> MoeSpec:
    """Return a mixture of `count` experts. Raises SourceError for a routing that does not fit that many."""
    size, two = count // routing.groups if routing.groups > 0 else 0, routing.group_score == "two_best"
    if routing.groups < 1 or count % routing.groups or not 1 <= routing.top_groups <= routing.groups:
        what = f"{routing.top_groups} of {routing.groups} groups cannot be chosen of {count} experts"
        raise SourceError(what, config.where, "the number of groups must divide the number of experts")
    if routing.groups > 1 and two and size < 2:
        raise SourceError(f"{routing.groups} groups of {count} experts have fewer than two each", config.where)
    if not 1 <= routing.top_k <= routing.top_groups * size:
        what = f"{routing.top_k} experts cannot be chosen of {routing.top_groups * size}"
        raise SourceError(what, config.where, "lower `num_experts_per_tok`, or choose from more groups")
    return MoeSpec(count, routing, expert, shared)


def grouped_mixture(config: HfConfig, expert: MlpSpec, shared: MlpSpec | None = None) -> MoeSpec:
    """Return DeepSeek-V3's mixture: `n_routed_experts`, selected by sigmoid and group, and a shared expert.

    shared: the shared expert; None for an MLP as wide as `n_shared_experts` experts.
    GLM-4.5 and dots.llm1 use it, too. HF: `DeepseekV3TopkRouter`.
    """
    config.refuse("moe_layer_freq", 1)
    count, routing = int(config.need("num_experts")), grouped_routing(config)
    return mixture_part(config, count, routing, expert, shared or shared_part(config, expert))


def grouped_routing(config: HfConfig) -> RoutingSpec:
    """Return DeepSeek-V3's routing of experts."""
    config.refuse("scoring_func", "sigmoid", "noaux_tc")
    config.refuse("topk_method", "noaux_tc")
    config.get("ep_size")  # for training, as are the next two
    config.get("aux_loss_alpha")
    config.get("seq_aux")
    return RoutingSpec(
        int(config.need("num_experts_per_tok")),
        "sigmoid",
        norm_topk_prob=bool(config.get("norm_topk_prob", True)),
        choice_bias_axes=1,
        groups=int(config.get("n_group", 1)),
        top_groups=int(config.get("topk_group", 1)),
        group_score="two_best",
        sum_epsilon=1e-20,
        scale=float(config.get("routed_scaling_factor", 1.0)),
        is_fp32=True,
    )


def latent_mixture(config: HfConfig) -> MoeSpec:
    """Return Nemotron-H's mixture of ungated MLPs, which may read a projection of the hidden state."""
    has_bias = bool(config.get("mlp_bias", False))
    mlp, latent = plain_mlp_part(config, has_bias=has_bias), config.get("moe_latent_size")
    expert = replace(mlp, intermediate_size=int(config.get("moe_intermediate_size", 7688)), has_bias=False)
    shared = replace(mlp, intermediate_size=int(config.get("moe_shared_expert_intermediate_size", 7688)))
    moe = grouped_mixture(config, expert, shared)
    return replace(moe, latent_size=None if latent is None else int(latent), has_latent_bias=has_bias)


def shared_expert_mixture(config: HfConfig, *, norm_topk_prob: bool, count: int, top_k: int) -> MoeSpec:
    """Return Qwen's mixture with a shared expert. count, top_k: used if the config does not state them."""
    sizes = int(config.get("num_experts", count)), int(config.get("num_experts_per_tok", top_k))
    expert, shared = (mlp_part(config, size=f"{name}_intermediate_size") for name in ("moe", "shared_expert"))
    routing = RoutingSpec(sizes[1], norm_topk_prob=norm_topk_prob)
    return replace(mixture_part(config, sizes[0], routing, expert, shared), is_shared_gated=True)


def shared_part(config: HfConfig, expert: MlpSpec) -> MlpSpec:
    """Return one MLP for all `n_shared_experts`. Raises SourceError if there are none."""
    count = int(config.need("n_shared_experts"))
    if count < 1:
        raise SourceError(f"`n_shared_experts` is `{count}`; expected at least 1", config.where)
    return replace(expert, intermediate_size=count * expert.intermediate_size)


def with_first_dense(config: HfConfig, layers: tuple[LayerSpec, ...], mlp: MlpSpec) -> tuple[LayerSpec, ...]:
    """Return `layers` with an MLP instead of experts in the first `first_k_dense_replace`."""
    dense = int(config.get("first_k_dense_replace", 0))
    return tuple(replace(layer, feed_forward=mlp) if index < dense else layer for index, layer in enumerate(layers))


def with_dense_types(
    config: HfConfig, layers: tuple[LayerSpec, ...], mlp: MlpSpec, first: int
) -> tuple[LayerSpec, ...]:
    """Return `layers` with an MLP instead of experts where `mlp_layer_types` is `dense`.

    first: number of dense layers if the config lists no types. Raises SourceError for unknown types.
    """
    types = dense_types(config, len(layers), first)
    return tuple(
        replace(layer, feed_forward=mlp) if kind == "dense" else layer
        for layer, kind in zip(layers, types, strict=True)
    )


def dense_types(config: HfConfig, count: int, first: int) -> list[str]:
    """Return `mlp_layer_types`, each `dense` or `sparse`; if the config lists none, the `first` of `count` are dense.

    Raises SourceError for unknown types.
    """
    usual = ["dense" if index < first else "sparse" for index in range(count)]
    types = list(config.get("mlp_layer_types", usual))
    for kind in types:
        if kind not in ("dense", "sparse"):
            raise config.unsupported("mlp_layer_types", kind, ("dense", "sparse"))
    if len(types) != count:
        raise SourceError(f"`mlp_layer_types` has {len(types)} entries for {count} layers", config.where)
    return types


def later_token_layers(config: HfConfig) -> tuple[str, ...]:
    """Return the name prefixes of multi-token prediction layers (`num_nextn_predict_layers`), which come last."""
    first = int(config.need("num_hidden_layers"))
    return tuple(f"model.layers.{first + index}." for index in range(int(config.get("num_nextn_predict_layers", 1))))
