"""The config.json of a TensorRT-LLM checkpoint, from a model's spec.

Fields: TensorRT-LLM's `models/*/config.py`, release 1.2, and ModelOpt's `export_tensorrt_llm_checkpoint`. The written
config is read back: a model that its fields do not describe completely is refused.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trtkit.errors import Problem, ProblemsError, SourceError
from trtkit.jobs.json_form import to_json
from trtkit.models.feed_forward import MoeSpec
from trtkit.models.registry import decoder_spec, hf_class
from trtkit.models.rope import original_length
from trtkit.models.spec import LearnedPositions
from trtkit.sources.trtllm.config import check_config, hf_config
from trtkit.sources.trtllm.families import FAMILIES
from trtkit.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from trtkit.models.attention import AttentionSpec, RopeSpec
    from trtkit.models.parallel import Grid
    from trtkit.models.spec import DecoderSpec
    from trtkit.sources.trtllm.fields import Fields

FORMAT = "TensorRT-LLM's checkpoints"
SHARES_TABLE = ("gemma", "gemma2", "gemma3_text")
"""Families whose checkpoints have no separate LM head: TensorRT-LLM uses the embedding."""
_USUAL_POSITIONS = 2048
_QWEN_LENGTH = 8192
"""TensorRT-LLM's default for models that do not state `seq_length`."""
_SCALED = ("default", "linear", "llama3", "longrope")
_TOLERANCE = 1e-12
_ACTIVATIONS = {"relu2": "squared-relu"}
"""TensorRT-LLM's activation names by transformers' names."""


def architecture_of(model_type: str, where: str) -> str:
    """Return TensorRT-LLM's name of a family. Raises SourceError if it has none."""
    if not any(family.model_type == model_type for family in FAMILIES.values()):
        known = ", ".join(sorted({family.model_type for family in FAMILIES.values()}))
        raise SourceError(f"{FORMAT} have no family for `model_type` `{model_type}`", where, f"known: {known}")
    return hf_class(model_type)


def checkpoint_config(fields: Fields, spec: DecoderSpec, dtype: str, grid: Grid, where: str) -> Fields:
    """Return the config of an unquantized checkpoint. fields: of the model's config.json.

    dtype: NumPy's name of the weights' type. Raises SourceError for what the format cannot express.
    """
    layer = next((one for one in spec.layers if one.attention.sliding_window is None), spec.layers[0])
    attention, part = layer.attention, layer.feed_forward
    mlp = part.expert if isinstance(part, MoeSpec) else part
    assert mlp is not None
    config = {
        "producer": {"name": "trtkit", "version": __version__},
        "architecture": architecture_of(spec.model_type, where),
        "dtype": dtype,
        "logits_dtype": "float16" if dtype == "bfloat16" else dtype,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": attention.num_attention_heads,
        "num_key_value_heads": attention.num_key_value_heads,
        "hidden_size": spec.hidden_size,
        "norm_epsilon": spec.block.norm.eps,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings or _USUAL_POSITIONS,
        "hidden_act": "swiglu" if isinstance(part, MoeSpec) else _ACTIVATIONS.get(mlp.activation, mlp.activation),
        "use_parallel_embedding": True,
        "embedding_sharding_dim": 0,
        "head_size": attention.head_dim,
        "intermediate_size": int(fields.get("intermediate_size") or mlp.intermediate_size),
        "share_embedding_table": shares_table(spec, grid),
        "residual_mlp": False,
        "qk_layernorm": attention.qk_norm != "none",
        "bias": attention.has_output_bias,
        "attn_bias": attention.has_qkv_bias,
        "mlp_bias": mlp.has_bias,
        "mapping": _mapping(grid, has_experts=isinstance(part, MoeSpec)),
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }
    mixture = _mixture(part) if isinstance(part, MoeSpec) else {}
    return {**config, **_positions(spec, attention, where), **mixture, **_particular(fields, spec, attention)}


def _mapping(grid: Grid, *, has_experts: bool) -> Fields:
    mapping = {"world_size": grid.ranks, "tp_size": grid.tensor, "pp_size": grid.pipeline}
    return {**mapping, **({"moe_tp_size": grid.tensor, "moe_ep_size": 1} if has_experts else {})}


def shares_table(spec: DecoderSpec, grid: Grid) -> bool:
    """Whether the checkpoint has no LM head of its own. The last of several pipeline stages always has one."""
    return spec.head.is_tied and spec.model_type in SHARES_TABLE and grid.pipeline == 1


def _positions(spec: DecoderSpec, attention: AttentionSpec, where: str) -> Fields:
    """Return the fields of the position embedding."""
    rope = attention.rope
    if rope is None:
        if attention.has_alibi:
            return {"position_embedding_type": "alibi" if attention.alibi_scale == 1 else "alibi_with_scale"}
        if isinstance(spec.embedding.positions, LearnedPositions):
            return {"position_embedding_type": "learned_absolute"}
        raise SourceError(f"{FORMAT} have no model without position embeddings", where)
    kind = "long_rope" if rope.scaling == "longrope" else "rope_gptj" if rope.is_interleaved else "rope_gpt_neox"
    turned = {"position_embedding_type": kind, "rotary_base": rope.theta, "rotary_scaling": None}
    if spec.model_type == "gptj":
        return {**turned, "rotary_dim": rope.dim}
    return {**turned, "rotary_pct": rope.dim / attention.head_dim, **_scaling(rope, where)}


def _scaling(rope: RopeSpec, where: str) -> Fields:
    """Return the fields that scale rotary embeddings to longer sequences."""
    numbers = {name: list(one) if isinstance(one, tuple) else one for name, one in rope.parameters.items()}
    if rope.scaling not in _SCALED:
        what = f"`rope_type` is `{rope.scaling}`, which is not exported"
        raise SourceError(what, where, f"known: {', '.join(_SCALED)}")
    if rope.scaling == "default":
        return {}
    if rope.scaling == "longrope":
        factors = {f"longrope_scaling_{name}_factors": numbers[f"{name}_factor"] for name in ("short", "long")}
        return {"original_max_position_embeddings": original_length(rope), **factors}
    return {"rotary_scaling": {"rope_type": rope.scaling, "type": rope.scaling, **numbers}}


def _mixture(part: MoeSpec) -> Fields:
    routing, shared = part.routing, part.shared
    moe = {"num_experts": part.num_experts, "top_k": routing.top_k, "normalization_mode": int(routing.norm_topk_prob)}
    return {
        "moe": moe,
        "moe_intermediate_size": part.expert.intermediate_size,
        "moe_shared_expert_intermediate_size": 0 if shared is None else shared.intermediate_size,
    }


def _particular(fields: Fields, spec: DecoderSpec, attention: AttentionSpec) -> Fields:
    """Return the fields specific to a family."""
    kind = spec.model_type
    if kind.startswith("qwen"):
        return {"qwen_type": kind, "seq_length": _QWEN_LENGTH}
    if kind == "phi3":
        return {"hidden_act": "swiglu"} if fields.get("hidden_act", "silu") == "silu" else {}
    particular: dict[str, Callable[[], Fields]] = {
        "granite": lambda: {
            "embedding_multiplier": spec.embedding.scale,
            "attention_multiplier": attention.scale * math.sqrt(attention.head_dim),
            "residual_multiplier": spec.block.residual_multiplier,
            "output_multiplier_scale": spec.head.logit_scale,
        },
        "cohere": lambda: {"output_multiplier_scale": spec.head.logit_scale},
        "gemma2": lambda: {**_soft_caps(spec, attention), "attn_logit_softcapping": attention.softcap},
        "gemma3_text": lambda: {**_soft_caps(spec, attention), **_windows(spec)},
        "opt": lambda: {"do_layer_norm_before": not spec.block.is_post_norm},
        "mpt": lambda: {"clip_qkv": attention.qkv_clip, "alibi_bias_max": 8},
        "falcon": lambda: {
            "new_decoder_architecture": bool(fields.get("new_decoder_architecture")),
            "parallel_attention": spec.block.is_parallel,
        },
    }
    return particular[kind]() if kind in particular else {}


def _soft_caps(spec: DecoderSpec, attention: AttentionSpec) -> Fields:
    scalar = round(attention.scale**-2, 6)  # 256 ** -0.5 squared is not exactly 1 / 256
    return {"inter_layernorms": True, "query_pre_attn_scalar": scalar, "final_logit_softcapping": spec.head.softcap}


def _windows(spec: DecoderSpec) -> Fields:
    """Return the fields of Gemma 3's sliding layers: all except each `pattern`th."""
    windows = [layer.attention.sliding_window for layer in spec.layers]
    sliding = next((layer.attention for layer in spec.layers if layer.attention.sliding_window is not None), None)
    pattern = windows.index(None) + 1 if None in windows else len(windows) + 1
    local = None if sliding is None or sliding.rope is None else sliding.rope.theta
    window = None if sliding is None else sliding.sliding_window
    # Releases spell the pattern with and without the underscore.
    return {
        "_sliding_window_pattern": pattern,
        "sliding_window_pattern": pattern,
        "sliding_window": window,
        "rope_local_base_freq": local,
    }


def check_expressed(config: Fields, spec: DecoderSpec, tensors: Collection[str], where: str) -> None:
    """Raise ProblemsError for everything that a reader of the checkpoint would compute differently.

    tensors: their names.
    """
    check_config(config, where)
    read = decoder_spec(hf_config(config, tensors), where)
    stored = replace(spec, head=replace(spec.head, is_tied="lm_head.weight" not in tensors))
    if spec.model_type.startswith("qwen") and spec.layers[0].attention.has_output_bias:
        raise SourceError("TensorRT-LLM's Qwen has no bias after attention", where, "serve this model with trtkit")
    problems = [
        Problem(f"`{name}` is {value}, the checkpoint would say {other}", where)
        for name, value, other in _differences("", to_json(stored), to_json(read))
        if not name.startswith(("names", "table_copies", "unused"))
    ]
    if problems:
        architecture = FAMILIES[config["architecture"]].model_type
        what = f"{FORMAT} do not express this `{architecture}` model"
        raise ProblemsError(what, problems[:8], "serve this model with trtkit")


def _differences(name: str, one: object, other: object) -> Iterator[tuple[str, object, object]]:
    """Yield the differences between two JSON values, with their dotted names."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from _differences(f"{name}.{key}".lstrip("."), one.get(key), other.get(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from _differences(f"{name}.{index}", *pair)
    elif isinstance(one, float) and isinstance(other, float | int):
        if not math.isclose(one, other, rel_tol=_TOLERANCE):
            yield name, one, other
    elif one != other:
        yield name, one, other
