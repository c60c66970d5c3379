"""Spec parts of the Gemma families: soft caps, shared caches, per-layer embeddings, the layers of Gemma 3n and 4."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec, NormSpec
from trtkit.models.feed_forward import MlpSpec, MoeSpec, PerLayerSpec, RoutingSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.mixtures import mixture_part
from trtkit.models.names import SANDWICH_NORMS, llama_names
from trtkit.models.parts import (
    alternating_types,
    biased_attention_part,
    decoder_part,
    gemma_mlp_part,
    gemma_norm_part,
    layers_part,
    rms_norm_part,
    sliding_windows,
)
from trtkit.models.rope import rope_spec, ropes_by_layer_type
from trtkit.models.spec import BlockSpec, DecoderSpec, EmbeddingSpec, LayerSpec

OUTSIDE = {
    "per_layer_table": "model.embed_tokens_per_layer",
    "per_layer_projection": "model.per_layer_model_projection",
    "per_layer_norm": "model.per_layer_projection_norm",
}
INSIDE = {
    **SANDWICH_NORMS,
    "per_layer.gate": "per_layer_input_gate",
    "per_layer.down": "per_layer_projection",
    "per_layer.norm": "post_per_layer_input_norm",
}


def soft_capped_part(config: HfConfig, norms: Mapping[str, str]) -> DecoderSpec:
    """Return the spec of Gemma 2 or VaultGemma. norms: the layers' norms and their checkpoint names."""
    norm = gemma_norm_part(config)
    attention = replace(
        biased_attention_part(config),
        scale=float(config.need("query_pre_attn_scalar")) ** -0.5,
        softcap=config.get("attn_logit_softcapping"),
    )
    count = int(config.need("num_hidden_layers"))
    types = ["full_attention" if index % 2 else "sliding_attention" for index in range(count)]
    rope, windows = rope_spec(config, attention.head_dim), sliding_windows(config, types)
    layers = layers_part(config, attention, gemma_mlp_part(config), rope, windows)
    return normed_part(config, layers, norm, norms)


def normed_part(
    config: HfConfig, layers: tuple[LayerSpec, ...], norm: NormSpec, norms: Mapping[str, str]
) -> DecoderSpec:
    """Return a spec with Gemma's scaled embeddings and capped logits. norms: the layers' norms and checkpoint names."""
    model = decoder_part(config, layers, norm, llama_names({}, norms))
    return replace(
        model,
        block=BlockSpec(norm, tuple(norms)),
        head=replace(model.head, softcap=config.get("final_logit_softcapping")),
        embedding=EmbeddingSpec(scale=model.hidden_size**0.5),
    )


def cache_sources(config: HfConfig, types: Sequence[str]) -> list[int | None]:
    """Return which layer's cache each layer reads; None for its own, otherwise the last of its type that has one.

    Raises SourceError if no such layer exists.
    """
    first = len(types) - int(config.get("num_kv_shared_layers", 0))
    if first < 1 or set(types[:first]) != set(types):
        what = f"`num_kv_shared_layers` leaves {max(first, 0)} layers with caches, which lack a type that others read"
        raise SourceError(what, config.where)
    last = {kind: index for index, kind in enumerate(types[:first])}
    return [None if index < first else last[kind] for index, kind in enumerate(types)]


def unused_weights(sources: Sequence[int | None]) -> tuple[str, ...]:
    """Return name prefixes of the key and value weights that checkpoints hold for layers without their own caches."""
    return tuple(
        f"model.layers.{index}.self_attn.{name}."
        for index, source in enumerate(sources)
        for name in ("k_proj", "v_proj", "k_norm", "v_norm")
        if source is not None
    )


def per_layer_spec(config: HfConfig) -> PerLayerSpec | None:
    """Return the per-layer embeddings; None if their size is 0."""
    size, layers = int(config.get("hidden_size_per_layer_input", 256)), int(config.need("num_hidden_layers"))
    rows = int(config.get("vocab_size_per_layer_input", 262144))
    activation = str(config.get("hidden_activation", "gelu_pytorch_tanh"))
    return PerLayerSpec(size, rows, layers, activation) if size else None


STREAMS = {
    f"streams.{ours}.{{i}}": f"model.altup_{prefix}projections.{{i}}"
    for ours, prefix in (("in", ""), ("out", "unembed_"))
}
GEMMA3N_NAMES = {
    "streams.router": "altup.modality_router",
    "streams.router_norm": "altup.router_norm",
    "streams.predict": "altup.prediction_coefs",
    "streams.correct": "altup.correction_coefs",
    "streams.scale": "altup.correct_output_scale",
    "laurel.left": "laurel.linear_left",
    "laurel.right": "laurel.linear_right",
    "laurel.norm": "laurel.post_laurel_norm",
}
"""Names inside layers, in addition to those of `gemma_parts`."""
_SPARSE_LAYERS, _SPARSITY = 10, 0.95


def gemma3n_layers(config: HfConfig) -> tuple[LayerSpec, ...]:
    """Return the layers of Gemma 3n. Raises SourceError for lists that do not have one entry per layer."""
    types = list(config.get("layer_types", alternating_types(config, 5)))
    norm = rms_norm_part(config)
    usual = replace(
        biased_attention_part(config),
        scale=1.0,
        norm=norm,
        qk_norm="head",
        value_norm=replace(norm, has_weight=False),
    )
    windows, ropes = sliding_windows(config, types), ropes_by_layer_type(config, usual.head_dim, types)
    return tuple(
        LayerSpec(replace(usual, rope=rope, sliding_window=window, cache_of=source), mlp)
        for rope, window, source, mlp in zip(ropes, windows, cache_sources(config, types), _mlps(config), strict=True)
    )


def _mlps(config: HfConfig) -> list[MlpSpec]:
    count, sizes = int(config.need("num_hidden_layers")), config.need("intermediate_size")
    sizes = sizes if isinstance(sizes, list) else [sizes] * count
    first = _SPARSE_LAYERS if count > _SPARSE_LAYERS else 0
    usual = [_SPARSITY if index < first else 0.0 for index in range(count)]
    sparsities = config.get("activation_sparsity_pattern", usual)
    for name, values in (("intermediate_size", sizes), ("activation_sparsity_pattern", sparsities)):
        if len(values) != count:
            raise SourceError(f"`{name}` has {len(values)} entries for {count} layers", config.where)
    activation = str(config.get("hidden_activation", "gelu_pytorch_tanh"))
    return [
        MlpSpec(int(size), activation, sparsity=float(sparsity))
        for size, sparsity in zip(sizes, sparsities, strict=True)
    ]


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
"""Checkpoint names of a mixture next to an MLP (Gemma 4)."""


def gemma4_attentions(config: HfConfig) -> list[AttentionSpec]:
    """Return Gemma 4's attention of each layer. Raises SourceError for settings that transformers cannot run."""
    for name in ("rope_theta", "rope_scaling", "rope_local_base_freq"):
        config.refuse(name)
    types = list(config.get("layer_types", alternating_types(config, 6)))
    windows = sliding_windows(config, types)
    types[-1], windows[-1] = "full_attention", None  # as in transformers, whatever the config states
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


def gemma4_feed_forward(config: HfConfig, mlp: MlpSpec, norm: NormSpec) -> MlpSpec | MoeSpec:
    """Return Gemma 4's feed-forward part: an MLP, and a mixture of experts next to it if `enable_moe_block` is set."""
    count, top_k, width = (config.get(name) for name in ("num_experts", "top_k_experts", "moe_intermediate_size"))
    if not config.get("enable_moe_block", False):
        return mlp
    for name, value in (("num_experts", count), ("top_k_experts", top_k), ("moe_intermediate_size", width)):
        if value is None:
            raise SourceError(f"`enable_moe_block` is set, and `{name}` is missing", config.where)
    expert = replace(mlp, intermediate_size=int(width))
    return replace(mixture_part(config, int(count), RoutingSpec(int(top_k)), expert, mlp), separate_norm=norm)


def _sizes(config: HfConfig, types: list[str]) -> list[tuple[int, int]]:
    """Return each layer's (head size, number of key/value heads)."""
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
