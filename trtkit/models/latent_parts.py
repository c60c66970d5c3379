"""Multi-head latent attention (DeepSeek): its spec from a config, and its checkpoint names."""

from collections.abc import Mapping
from dataclasses import replace

from trtkit.errors import SourceError
from trtkit.models.attention import AttentionSpec, LatentSpec, NormSpec, RopeSpec
from trtkit.models.hf_config import HfConfig
from trtkit.models.rope import query_scaling, rope_spec, yarn_attention_factor

LATENT_NAMES = {
    "attention.q_a": "self_attn.q_a_proj",
    "attention.q_a_norm": "self_attn.q_a_layernorm",
    "attention.q_b": "self_attn.q_b_proj",
    "attention.kv_a": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_a_norm": "self_attn.kv_a_layernorm",
    "attention.kv_b": "self_attn.kv_b_proj",
}
_EPS = 1e-6
"""Epsilon of the latent vectors' norms; `rms_norm_eps` does not apply to them."""


def latent_rope(config: HfConfig, *, is_interleaved: bool) -> RopeSpec:
    """Return the rotary embedding of the `qk_rope_head_dim` rotated elements. Raises SourceError if it is odd."""
    rope_dim = int(config.need("qk_rope_head_dim"))
    if rope_dim % 2:
        raise SourceError(f"`qk_rope_head_dim` is {rope_dim}; expected an even number", config.where)
    return rope_spec(config, rope_dim, is_interleaved=is_interleaved)


def latent_attention_part(config: HfConfig, rope: RopeSpec | None) -> AttentionSpec:
    """Return latent attention from `kv_lora_rank` and related fields.

    rope: None if not even the `qk_rope_head_dim` elements are rotated; all heads still share their keys.
    Raises SourceError for grouped-query heads and for a rope of another size than `qk_rope_head_dim`, neither of which
    transformers can run.
    """
    heads = int(config.need("num_attention_heads"))
    config.refuse("num_key_value_heads", heads)
    rank, rope_dim = int(config.need("kv_lora_rank")), int(config.need("qk_rope_head_dim"))
    if rope is not None and rope.dim != rope_dim:
        what = f"`qk_rope_head_dim` is {rope_dim}, and the rotary embedding turns {rope.dim} elements"
        raise SourceError(what, config.where, "correct `partial_rotary_factor`")
    latent = LatentSpec(
        nope_dim=int(config.need("qk_nope_head_dim")),
        rope_dim=rope_dim,
        value_dim=int(config.get("v_head_dim", int(config.need("hidden_size")) // heads)),
        query_rank=config.get("q_lora_rank"),
    )
    whole = latent.nope_dim + rope_dim
    config.refuse("qk_head_dim", whole)
    if rope is not None:
        config.refuse("head_dim", rope_dim, whole)  # transformers computes it from the other sizes
    has_bias = bool(config.get("attention_bias", False))
    return AttentionSpec(
        heads,
        1,
        rank + rope_dim,
        whole**-0.5 * (1.0 if rope is None else _temperature(rope)),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        norm=NormSpec("rms", _EPS),
        rope=rope,
        latent=latent,
    )


def scaled_latent_part(config: HfConfig, parameters: Mapping[str, object]) -> AttentionSpec:
    """Return latent attention with queries scaled by position. parameters: rotary ones if the config states none.

    Raises SourceError for a rope without scaling, which transformers cannot run.
    """
    turned = int(config.need("qk_rope_head_dim"))
    whole, is_interleaved = turned + int(config.need("qk_nope_head_dim")), bool(config.get("rope_interleave", True))
    fixed = {"is_interleaved": is_interleaved, "partial": turned / whole, "parameters": parameters}
    rope = rope_spec(config, whole, **fixed, ignored=("llama_4_scaling_beta", "max_position_embeddings"))
    if rope.scaling == "default":
        raise SourceError("`rope_type` is `default`, which is not supported for this model", config.where)
    return replace(latent_attention_part(config, rope), query_scaling=query_scaling(config, parameters))


def _temperature(rope: RopeSpec) -> float:
    """Return the factor of the scores that YaRN scaling asks for. HF: `yarn_apply_mscale`."""
    weight, factor = (rope.parameters.get(name, 0.0) for name in ("mscale_all_dim", "factor"))
    assert isinstance(weight, int | float)
    assert isinstance(factor, int | float)
    return yarn_attention_factor(factor, weight) ** 2 if weight else 1.0
