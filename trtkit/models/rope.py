"""Rotary embeddings from configs: the current `rope_parameters`, or the older `rope_theta` and `rope_scaling`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from trtkit.errors import SourceError
from trtkit.models.attention import QueryScaling, RopeSpec, Scaling
from trtkit.models.hf_config import FIX, HfConfig

# Required and optional parameters of each scaling method.
_NEEDED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "proportional": (),
}
_OPTIONAL: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": (),
    "dynamic": ("original_max_position_embeddings",),
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "llama3": (),
    "longrope": ("factor", "attention_factor"),
    "proportional": ("factor", "partial_rotary_factor"),
}
# Methods that depend on the original training length, which defaults to `max_position_embeddings`.
_SCALED_FROM = ("yarn", "llama3", "longrope")
LAYER_TYPES = ("full_attention", "sliding_attention")
_OLD_NAMES = {"su": "longrope"}


def rope_spec(config: HfConfig, head_dim: int, **fixed: Any) -> RopeSpec:
    """Return the rotary embedding that a config states.

    fixed: what the family fixes, all optional. `theta`, `partial` and `parameters`: used if the config states none
        (`partial` only in families that can rotate a part of each head). `is_interleaved`. `layer_type`: the type whose
        parameters to use, if the config has some per type. `has_sections`: M-RoPE. `default_sections`: interleaved
        M-RoPE, and its sections if the config states none. `read_elsewhere`: parameters that the family itself reads.
        `ignored`: parameters that it ignores.
    Raises SourceError for an unknown method or parameter.
    """
    stated = _stated(config, fixed.get("layer_type"), fixed.get("parameters", {}))
    theta = float(stated.pop("rope_theta", fixed.get("theta", 10000.0)))
    partial = float(stated.pop("partial_rotary_factor", fixed.get("partial", 1.0)))
    kind = str(stated.pop("rope_type", stated.pop("type", "default")))
    stated.pop("type", None)
    for name in fixed.get("ignored", ()):
        stated.pop(name, None)
    kind = _OLD_NAMES.get(kind, kind)
    usual = tuple(fixed.get("default_sections", ()))
    sections = tuple(stated.pop("mrope_section", usual)) if usual or fixed.get("has_sections") else ()
    kind = "default" if sections and kind == "mrope" else kind
    if kind not in get_args(Scaling):
        raise config.unsupported("rope_type", kind, get_args(Scaling))
    if kind == "proportional":  # rotates whole heads, a part of them with frequency 0
        stated["partial_rotary_factor"], partial = partial, 1.0
    if "partial" not in fixed:
        partial = _whole(config, kind, partial)
    limit = int(config.need("max_position_embeddings"))
    parameters = _parameters(config, kind, stated, limit, fixed.get("read_elsewhere", ()))
    dim = int(head_dim * partial)
    if dim < 2 or dim % 2:
        layers = f" in {fixed['layer_type']}" if fixed.get("layer_type") else ""
        what = f"{dim} of {head_dim} elements turn{layers}; expected an even number, at least 2"
        raise SourceError(what, config.where, "correct `head_dim` or `partial_rotary_factor`")
    for name in ("short_factor", "long_factor"):
        if name in parameters and len(parameters[name]) != dim // 2:  # type: ignore[arg-type]
            raise SourceError(f"`{name}` needs {dim // 2} numbers, half of the rotated size {dim}", config.where)
    if usual and len(sections) != len(usual):
        raise SourceError(f"`mrope_section` has {len(sections)} entries; expected {len(usual)}", config.where)
    if sections and not usual and sum(sections) != dim // 2:
        what = f"`mrope_section` {list(sections)} has {sum(sections)} pairs, a head has {dim // 2}"
        raise SourceError(what, config.where)
    is_interleaved = bool(fixed.get("is_interleaved"))
    return RopeSpec(theta, dim, is_interleaved, limit, kind, parameters, sections, bool(usual))  # type: ignore[arg-type]


def whole_rope_spec(config: HfConfig, head_dim: int, **fixed: object) -> RopeSpec:
    """Return `rope_spec`. Raises SourceError if it rotates only a part of each head."""
    rope = rope_spec(config, head_dim, partial=1.0, **fixed)
    if rope.dim != head_dim:
        what = f"`partial_rotary_factor` leaves {rope.dim} of {head_dim} elements, but whole heads are rotated"
        raise SourceError(what, config.where, "remove it")
    return rope


def ropes_by_layer_type(
    config: HfConfig, head_dim: int, types: Sequence[str], theta: float = 10000.0
) -> list[RopeSpec]:
    """Return each layer's rotary embedding by its layer type. types: used if the config lists none."""
    kinds = {kind: rope_spec(config, head_dim, layer_type=kind, theta=theta) for kind in LAYER_TYPES}
    return [kinds[kind] for kind in config.get("layer_types", types)]


def ropes_by_type_alone(
    config: HfConfig, head_dim: int, types: Sequence[str], usual: Mapping[str, Mapping[str, object]]
) -> dict[str, RopeSpec]:
    """Return each layer type's rotary embedding, from `rope_parameters` per type or the `usual` ones.

    Raises SourceError if model-wide fields, which transformers does not read, contradict them.
    """
    stated = parameters_by_type(config, types, usual).get("full_attention", {})
    for name in ("rope_theta", "partial_rotary_factor"):
        config.refuse(name, stated.get(name))
    config.refuse("rope_scaling")
    return {
        kind: rope_spec(config, head_dim, layer_type=kind, parameters=usual, partial=1.0) for kind in sorted(set(types))
    }


def parameters_by_type(
    config: HfConfig, types: Sequence[str], usual: Mapping[str, Mapping[str, object]]
) -> dict[str, dict[str, object]]:
    """Return `rope_parameters` per layer type, or the `usual` ones. Raises SourceError if a type in use is missing."""
    parameters = dict(config.get("rope_parameters", dict(usual)))
    for kind in sorted(set(types) - set(parameters)):
        raise SourceError(f"`rope_parameters` lacks `{kind}`, the type of some layers", config.where, FIX)
    return parameters


def original_length(rope: RopeSpec) -> int:
    """Return the length that a model was trained at before its rope was scaled."""
    length = rope.parameters.get("original_max_position_embeddings", rope.max_position_embeddings)
    assert isinstance(length, int | float)
    return int(length)


def yarn_attention_factor(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's attention factor for a length factor. Source: https://arxiv.org/abs/2309.00071, section 3.4."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _whole(config: HfConfig, kind: str, partial: float) -> float:
    """Return 1: transformers ignores `partial_rotary_factor` in families that rotate whole heads.

    Raises SourceError for a scaled rope with such a factor, which transformers fails to run.
    """
    if partial != 1.0 and kind != "default":
        what = f"`partial_rotary_factor` is {partial}, but `{config.get('model_type')}` rotates whole heads"
        raise SourceError(what, config.where, "remove it")
    return 1.0


def query_scaling(config: HfConfig, parameters: Mapping[str, object]) -> QueryScaling:
    """Return the scaling of queries by position, `llama_4_scaling_beta`. parameters: used if the config states none.

    Raises SourceError for missing parameters.
    """
    stated = _stated(config, None, parameters)
    kind, limit = (
        str(stated.get("rope_type", stated.get("type", "default"))),
        int(config.need("max_position_embeddings")),
    )
    beta = stated.get("llama_4_scaling_beta")
    length = stated.get("original_max_position_embeddings", limit if kind in _SCALED_FROM else None)
    for name, value in (("llama_4_scaling_beta", beta), ("original_max_position_embeddings", length)):
        if value is None:
            raise SourceError(f"`rope_parameters` has no `{name}`", config.where)
    return QueryScaling(float(beta or 0.0), int(length or 0))


def _stated(config: HfConfig, layer_type: str | None, usual: Mapping[str, object]) -> dict[str, Any]:
    """Return a config's rotary parameters under their current names; `usual` if it states none.

    Scaling that is not stated per layer type applies to full layers only (Gemma 3, OLMo 3).
    """
    new = dict(config.get("rope_parameters", {}) or ({} if config.get("rope_scaling") else usual))
    if layer_type is not None:
        others = sorted(set(new) - set(LAYER_TYPES))
        if others:
            raise SourceError(
                f"`rope_parameters` has `{others[0]}`; expected {' and '.join(LAYER_TYPES)}", config.where
            )
        new = dict(new.get(layer_type, {}))
    old = dict(config.get("rope_scaling", {})) if not new else {}
    if layer_type is not None and "rope_type" not in old and old.get("type", "default") != "default":
        what = f"`rope_scaling` states `type: {old['type']}`, but transformers reads only `rope_type` in this family"
        raise SourceError(what, config.where, "rename `type` to `rope_type`, or remove `rope_scaling`")
    for name in ("rope_theta", "partial_rotary_factor"):
        value = config.get(name)
        if value is not None:
            old.setdefault(name, value)
    local_theta = config.get("rope_local_base_freq")
    if layer_type == "sliding_attention":
        old = {} if local_theta is None else {"rope_theta": local_theta}
    # In transformers, the top-level field takes precedence if all layers share the parameters.
    original = None if layer_type else config.get("original_max_position_embeddings")
    return {**old, **new, **({} if original is None else {"original_max_position_embeddings": original})}


def _parameters(
    config: HfConfig, kind: str, stated: Mapping[str, Any], limit: int, extra: tuple[str, ...]
) -> dict[str, float | tuple[float, ...]]:
    """Return a scaling method's parameters. Raises SourceError for missing or unknown ones."""
    parameters = {name: value for name, value in stated.items() if value is not None}
    if kind in _SCALED_FROM:
        parameters.setdefault("original_max_position_embeddings", limit)
    if kind == "longrope":
        parameters.setdefault("factor", limit / float(parameters["original_max_position_embeddings"]))
    known = {*_NEEDED[kind], *_OPTIONAL[kind], *extra}
    if "original_max_position_embeddings" not in known:
        parameters.pop("original_max_position_embeddings", None)
    missing, unknown = sorted(set(_NEEDED[kind]) - set(parameters)), sorted(set(parameters) - known)
    if missing:
        raise SourceError(f"rope type `{kind}` needs `{missing[0]}`", config.where)
    if unknown:
        raise SourceError(f"rope type `{kind}` has no parameter `{unknown[0]}`", config.where)
    return {name: tuple(value) if isinstance(value, list) else float(value) for name, value in parameters.items()}
