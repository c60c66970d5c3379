"""llama.cpp's names and storage layouts for Gemma 3n and 4, whose norms multiply by the weight itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trtkit.errors import SourceError
from trtkit.sources.gguf.layout import (
    GELU,
    MOE_EXPERTS,
    NAMES,
    QK_NORMS,
    RMS_FIELDS,
    SANDWICH_BLOCKS,
    WINDOW,
    GgufFamily,
)
from trtkit.sources.gguf.metadata import sliding_types
from trtkit.sources.gguf.rope import share

if TYPE_CHECKING:
    from trtkit.sources.gguf.file import GgufFile
    from trtkit.sources.gguf.metadata import Fields, Metadata

_FIELDS = {
    **{key: field for key, field in RMS_FIELDS.items() if key != "feed_forward_length"},
    **WINDOW,
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.shared_kv_layers": "num_kv_shared_layers",
    "embedding_length_per_layer_input": "hidden_size_per_layer_input",
}
_NAMES = {
    **NAMES,
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
_BLOCKS = {
    **SANDWICH_BLOCKS,
    **QK_NORMS,
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}


def _rows(file: GgufFile, name: str) -> int:
    """Return the number of rows of a tensor, 0 if it is missing."""
    return file.tensors[name].shape[0] if name in file.tensors else 0


def _sparsity(deviations: float) -> float:
    """Return the share of a normal distribution below `deviations` standard deviations."""
    return round(0.5 * (1 + math.erf(deviations / math.sqrt(2))), 6)


def _gemma3n(metadata: Metadata, file: GgufFile) -> Fields:
    return {
        "intermediate_size": [int(value) for value in metadata.listed("feed_forward_length")],
        "layer_types": sliding_types(metadata),
        "activation_sparsity_pattern": [_sparsity(value) for value in metadata.listed("activation_sparsity_scale")],
        "laurel_rank": _rows(file, "blk.0.laurel_l.weight"),
        "vocab_size_per_layer_input": _rows(file, "per_layer_token_embd.weight"),
    }


_GEMMA3N = GgufFamily(
    "gemma3n_text",
    {**_FIELDS, "altup.active_idx": "altup_active_idx", "altup.num_inputs": "altup_num_inputs"},
    {
        **_NAMES,
        "altup_proj": "model.altup_projections.{e}",
        "altup_unembd_proj": "model.altup_unembed_projections.{e}",
    },
    {
        **_BLOCKS,
        "altup_correct_coef": "altup.correction_coefs",
        "altup_correct_scale.weight": "altup.correct_output_scale",
        "altup_predict_coef": "altup.prediction_coefs",
        "altup_router": "altup.modality_router",
        "altup_router_norm": "altup.router_norm",
        "laurel_l": "laurel.linear_left",
        "laurel_r": "laurel.linear_right",
        "laurel_post_norm": "laurel.post_laurel_norm",
    },
    fixed={**GELU, "final_logit_softcapping": None, "num_kv_shared_layers": 0},
    derived=_gemma3n,
    has_two_ropes=True,
    near_theta=10000.0,
)


def _gemma4(metadata: Metadata, file: GgufFile) -> Fields:
    types = sliding_types(metadata)
    heads = dict(zip(types, metadata.listed("attention.head_count_kv"), strict=False))
    widths = [int(width) for width in metadata.listed("feed_forward_length")]
    near, full = heads.get("sliding_attention"), heads.get("full_attention")
    count = len(types) - int(metadata.get("attention.shared_kv_layers", 0))
    full_layers = [index for index, kind in enumerate(types[:count]) if kind == "full_attention"]
    return {
        "layer_types": types,
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] != widths[0],
        "num_key_value_heads": near or full,
        "num_global_key_value_heads": None if near in (None, full) else full,
        "attention_k_eq_v": not all(f"blk.{index}.attn_v.weight" in file.tensors for index in full_layers),
        "vocab_size_per_layer_input": _rows(file, "per_layer_token_embd.weight"),
        "enable_moe_block": bool(metadata.get("expert_count")),
        "rope_parameters": _gemma4_ropes(metadata, file),
    }


def _gemma4_ropes(metadata: Metadata, file: GgufFile) -> Fields:
    """Return rotary embeddings by layer type. The file divides the frequencies that are not rotated by 1e30.

    Raises SourceError for other divisors, and for sliding-window layers with partial rotation.
    """
    near, full = int(metadata.need("attention.key_length_swa")), int(metadata.need("attention.key_length"))
    metadata.ignore("attention.value_length_swa")
    for key, size in (("rope.dimension_count_swa", near), ("rope.dimension_count", full)):
        if (turned := metadata.get(key, size)) != size:
            raise SourceError(f"`{key}` is `{turned}`, only `{size}` is supported", metadata.where)
    divisors = file.stored("rope_freqs.weight").read() if "rope_freqs.weight" in file.tensors else np.ones(full // 2)
    turned = int(np.count_nonzero(divisors == 1))
    if len(divisors) != full // 2 or not (divisors[:turned] == 1).all() or not (divisors[turned:] >= 1e29).all():
        raise SourceError("`rope_freqs.weight` holds frequencies that are not Gemma 4's", metadata.where)
    theta = float(metadata.get("rope.freq_base", 10000.0))
    whole = {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": share(2 * turned, full)}
    local = float(metadata.get("rope.freq_base_swa", theta))
    return {"full_attention": whole, "sliding_attention": {"rope_type": "default", "rope_theta": local}}


_EXPERT_NORMS = {
    "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
}
_GEMMA4 = GgufFamily(
    "gemma4_text",
    {
        **{key: field for key, field in _FIELDS.items() if key != "attention.head_count_kv"},
        "attention.key_length": "global_head_dim",
        "attention.key_length_swa": "head_dim",
        "expert_count": "num_experts",
        "expert_used_count": "top_k_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
    },
    _NAMES,
    {
        **_BLOCKS,
        **_EXPERT_NORMS,
        "layer_output_scale.weight": "layer_scalar",
        "ffn_gate_inp": "router.proj",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.per_expert_scale",
    },
    experts={name: hf.removeprefix("mlp.") for name, hf in MOE_EXPERTS.items()},
    fixed={**GELU, "final_logit_softcapping": None, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0},
    derived=_gemma4,
    heads="listed",
    has_rope=False,
)

GEMMAS = {"gemma3n": _GEMMA3N, "gemma4": _GEMMA4}
